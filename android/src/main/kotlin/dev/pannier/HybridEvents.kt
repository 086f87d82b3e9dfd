package dev.pannier

import kotlin.time.Duration

/** One event of a turn of a [HybridSession]. Exactly one [Terminal] ends each. */
public sealed interface HybridEvent {
    /** The last event of a turn. */
    public sealed interface Terminal : HybridEvent

    /** A decision, with its reason. Nothing is handed over silently. */
    public data class Decision(public val decision: HandOff) : HybridEvent

    /** A part of the prompt was read on the device: [done] of [total] tokens. */
    public data class Prefill(public val done: Long, public val total: Long) : HybridEvent

    /**
     * More of the answer: whole characters only.
     *
     * @property source whose it is.
     * @property confidence how sure the device is of the sentence under way; `null` for the cloud's text.
     */
    public data class Text(
        public val text: String,
        public val source: AnswerSource,
        public val confidence: Confidence?,
    ) : HybridEvent

    /** A sentence of the device's draft is complete, and was shown. */
    public data class Sentence(public val text: String, public val confidence: Confidence) : HybridEvent

    /**
     * Shown text is taken back.
     *
     * @property remaining what remains of the answer: show this instead.
     */
    public data class Discard(public val remaining: String) : HybridEvent

    /** Exactly this will leave the device, if consent is given. */
    public data class Outgoing(public val payload: CloudPayload) : HybridEvent

    /** Something of the device's generation that nobody asked for. */
    public data class Notice(public val kind: NoticeKind) : HybridEvent

    /** The answer is complete. */
    public data class Completed(public val answer: HybridAnswer) : Terminal

    /** There is no answer. */
    public data class Failed(public val error: PannierException) : Terminal

    /** The turn was cancelled. What was shown is part of the history. */
    public data object Cancelled : Terminal
}

/**
 * A probability of being right.
 *
 * @property value from 0 to 1.
 * @property fitted whether it was fitted on answers of this model. If not, its size is a guess.
 */
public data class Confidence(public val value: Double, public val fitted: Boolean)

/** When a decision fell. */
public enum class HandOffMoment {
    /** Before any work. */
    Admission,

    /** Before the first visible token, or where that would have been. */
    FirstCheck,

    /** At the border of a sentence. */
    Sentence,

    /** The draft is complete. */
    End,

    /** When one side failed. */
    Failure,
}

/** Why a side was taken. */
public enum class HandOffReason {
    /** The policy prefers it. */
    Policy,

    /** The app's own rule. */
    AppRule,

    /** The class of the task. */
    Task,

    /** The prompt is too long for the device. */
    PromptTooLong,

    /** Little charge left. */
    Battery,

    /** Too hot. */
    Heat,

    /** The system needs memory. */
    MemoryPressure,

    /** The draft is good enough. */
    Confident,

    /** The draft is not good enough. */
    Unsure,

    /** The draft is not good enough, but the cloud's answer is not expected to be better. */
    NoGain,

    /** The device was too slow. */
    Slow,

    /** The device failed. */
    EdgeFailed,

    /** The cloud failed. */
    CloudFailed,

    /** The cloud judged the draft to be right. */
    Verified,

    /** The cloud corrected the draft. */
    Corrected,

    /** No cloud is configured. */
    NoCloud,

    /** The policy, the conversation, or this turn stays on the device. */
    OnDeviceOnly,

    /** The app, or its user, did not consent. */
    NoConsent,

    /** The redactor refused. */
    RedactionRefused,

    /** No network. */
    Offline,

    /** A cost cap is in the way. */
    CostCap,

    /** Too many requests in the last minute. */
    RateLimit,

    /** The cloud failed repeatedly and is left alone for a while. */
    CircuitOpen,

    /** Something that this version has no word for. */
    Other,
}

/**
 * A decision with its reason and numbers.
 *
 * @property route who goes on.
 * @property explanation why, in words for a developer. Holds no text of the conversation.
 * @property confidence the score it was based on.
 * @property threshold what the score was compared with.
 * @property tokens tokens of the draft so far.
 * @property elapsed since the turn began.
 */
public data class HandOff(
    public val moment: HandOffMoment,
    public val route: AnswerRoute,
    public val reason: HandOffReason,
    public val explanation: String,
    public val confidence: Double?,
    public val threshold: Double?,
    public val tokens: Long,
    public val elapsed: Duration,
)

/**
 * A finished turn.
 *
 * @property source where the answer comes from.
 * @property confidence how sure the device was of its draft, if it made one.
 * @property decisions all decisions, in order.
 * @property stats what the device's generation took, if it ran to its end.
 * @property cloudPromptTokens tokens that the cloud was sent, as it counts.
 * @property cloudCompletionTokens tokens that the cloud answered with.
 * @property costMicros what that cost, in millionths of the app's currency.
 * @property elapsed from the call to the end.
 */
public data class HybridAnswer(
    public val text: String,
    public val source: AnswerSource,
    public val confidence: Confidence?,
    public val finishReason: FinishReason,
    public val decisions: List<HandOff>,
    public val stats: GenerationStats?,
    public val cloudPromptTokens: Long,
    public val cloudCompletionTokens: Long,
    public val costMicros: Long,
    public val elapsed: Duration,
)
