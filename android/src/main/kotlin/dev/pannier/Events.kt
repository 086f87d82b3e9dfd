package dev.pannier

import java.io.File
import kotlin.time.Duration

/** One event of a generation. Exactly one [Terminal] ends each. */
public sealed interface GenerationEvent {
    /** The last event of a generation. */
    public sealed interface Terminal : GenerationEvent

    /**
     * The prompt was accepted.
     *
     * @property promptTokens tokens of the prompt, with the history.
     * @property cachedTokens how many of them need not be read again.
     */
    public data class Started(public val promptTokens: Long, public val cachedTokens: Long) : GenerationEvent

    /** A part of the prompt was read: [done] of [total] tokens. */
    public data class Prefill(public val done: Long, public val total: Long) : GenerationEvent

    /**
     * More of the answer: whole characters only.
     *
     * @property tokens the tokens since the last such event; most often one.
     */
    public data class Text(public val text: String, public val tokens: List<Token>) : GenerationEvent

    /** Something happened that changes the answer or its cost and that nobody asked for. */
    public data class Notice(public val kind: NoticeKind) : GenerationEvent

    /** The answer is complete. */
    public data class Completed(public val answer: Answer) : Terminal

    /** The generation failed. */
    public data class Failed(public val error: PannierException) : Terminal

    /** The generation was cancelled: by [ChatSession.cancel], or because the session or its model was closed or unloaded. */
    public data class Cancelled(public val stats: GenerationStats) : Terminal
}

/** What is never silent. */
public sealed interface NoticeKind {
    /** The start of the prompt had been read before, but [tokens] tokens of it are read again. */
    public data class PrefixNotReused(public val tokens: Long) : NoticeKind

    /**
     * Memory is scarce, or no longer: the cache of weights changes its size before the next token. Only speed depends on it.
     *
     * @property level how scarce.
     * @property cacheBytes the size that the cache will have.
     */
    public data class PressureChanged(public val level: MemoryPressure, public val cacheBytes: Long) : NoticeKind

    /** Memory is scarce: the draft model, [bytes] of the budget, was given up until the model is loaded again. Only speed depends on it. */
    public data class DraftReleased(public val bytes: Long) : NoticeKind

    /** The device is as hot as [heat] says: [threads] threads compute from the next token on. Only speed depends on it. */
    public data class HeatChanged(public val heat: DeviceHeat, public val threads: Int) : NoticeKind

    /** The policy of the KV cache has forgotten tokens: the answer may be another than with all of them. */
    public data class Evicted(public val eviction: Eviction) : NoticeKind

    /** The conversation did not fit into the context: its oldest [messages] left the history. */
    public data class TurnsDropped(public val messages: Long) : NoticeKind

    /** Which view of a model in nested precision goes on from here, and why; told with [WeightPrecision.Auto]. */
    public data class ViewChosen(public val view: WeightView, public val reason: ViewReason) : NoticeKind

    /** The answer was cut inside of a character; its first bytes are not part of the text. */
    public data object IncompleteCharacter : NoticeKind

    /** Something that this version has no word for. */
    public data object Other : NoticeKind
}

/** Which view of the weights was used. */
public enum class WeightView {
    /** The low plane of a file in nested precision. */
    Low,

    /** All there is. */
    Full,
}

/** Why a view was chosen. */
public enum class ViewReason {
    /** The prompt is short: the low view begins. */
    ShortPrompt,

    /** The prompt is long: the full view reads it. */
    LongPrompt,

    /** The low view was sure of its first words, and goes on. */
    Sure,

    /** The low view was unsure of its first words: the full view goes on. */
    Unsure,

    /** There is no other view. */
    OnlyOne,

    /** Something that this version has no word for. */
    Other,
}

/**
 * A token of the answer with the model's own opinion of it.
 *
 * @property logprob natural logarithm of its probability.
 * @property margin probability of the most likely token minus that of the second: 0 is a coin toss, 1 is certain.
 * @property entropy of the distribution, in nats.
 * @property top the most likely tokens, as many as were asked for.
 */
public data class Token(
    public val id: Int,
    public val logprob: Float,
    public val margin: Float,
    public val entropy: Float,
    public val top: List<TokenChoice>,
)

/** A token with the natural logarithm of its probability. */
public data class TokenChoice(public val id: Int, public val logprob: Float)

/** Why an answer ended. */
public enum class FinishReason {
    /** The model ended it. */
    Stop,

    /** A stop string appeared. */
    StopString,

    /** As many tokens as were asked for. */
    Length,

    /** The context is full. */
    ContextFull,

    /** The deadline passed. */
    Deadline,

    /** A cloud's own reason, such as a content filter. */
    Other,
}

/** Who answered. */
public enum class AnswerSource {
    /** The model on this device. */
    OnDevice,

    /** A model in the cloud, which the app configured and allowed. */
    Cloud,

    /** The beginning from this device, the rest from the cloud. */
    Both,
}

/**
 * A finished answer.
 *
 * @property seed the seed that repeats it.
 * @property confidence estimated probability that the answer is right; `null` where nobody can tell.
 */
public data class Answer(
    public val text: String,
    public val finishReason: FinishReason,
    public val seed: Long,
    public val source: AnswerSource,
    public val confidence: Double?,
    public val stats: GenerationStats,
)

/**
 * What a generation took.
 *
 * @property promptTokens tokens of the prompt, with the history.
 * @property cachedTokens tokens of the prompt that were not read again.
 * @property timeToFirstToken from the call to the first token.
 * @property prefillTokensPerSecond 0 if nothing was read.
 * @property decodeTokensPerSecond 0 if there was at most one token.
 * @property peakAnonymousBytes the most anonymous memory the process was seen to have; `null` where the system does not tell.
 * @property kvType element types of the KV cache that the answer was computed with.
 * @property evicted tokens that the policy of the KV cache has forgotten meanwhile.
 * @property view the view of the weights that the last token was computed with; full, unless the file is in nested precision.
 * @property proposedTokens tokens that were guessed and checked in a pass.
 * @property acceptedTokens those of them that became part of the answer.
 * @property acceptanceRate the share of guessed tokens that were right, from 0 to 1; `null` if none were guessed. Those behind a wrong one
 * count as wrong.
 * @property tokensPerPass tokens that a pass gave on average, after the first one; 1 without guesses; `null` if there was no such pass.
 * @property flashBytesPerToken bytes of weights read from flash for each token of the answer after the first; `null` if nothing is streamed.
 */
public data class GenerationStats(
    public val promptTokens: Long,
    public val cachedTokens: Long,
    public val generatedTokens: Long,
    public val timeToFirstToken: Duration?,
    public val totalTime: Duration,
    public val prefillTokensPerSecond: Double,
    public val decodeTokensPerSecond: Double,
    public val peakAnonymousBytes: Long?,
    public val kvType: KvType?,
    public val evicted: Long,
    public val view: WeightView,
    public val proposedTokens: Long,
    public val acceptedTokens: Long,
    public val acceptanceRate: Double?,
    public val tokensPerPass: Double?,
    public val flashBytesPerToken: Double?,
)

/** What a model is doing. */
public sealed interface ModelState {
    /** There is no file. */
    public data object NotDownloaded : ModelState

    /** The file is arriving: [done] bytes of [total], where known. */
    public data class Downloading(public val done: Long, public val total: Long?) : ModelState

    /** The file is there; nothing is loaded. */
    public data object Downloaded : ModelState

    /** The file is being rewritten into the layout for streaming. */
    public data class Preparing(public val fraction: Float) : ModelState

    /** The model is being loaded. */
    public data class Loading(public val fraction: Float) : ModelState

    /** Loaded, and idle. */
    public data object Ready : ModelState

    /** Loaded, and answering. */
    public data object Generating : ModelState

    /** Unloaded because the app went to the background. */
    public data object Suspended : ModelState

    /** Unloaded; loaded again when it is used. */
    public data object Unloaded : ModelState

    /** The last attempt to download or load failed. */
    public data class Failed(public val reason: String) : ModelState
}

/** What a download tells. [Completed] is the last one; a download that fails throws instead. */
public sealed interface DownloadEvent {
    /** A source answered; [resumedFrom] bytes were there before. */
    public data class Started(public val resumedFrom: Long, public val total: Long?) : DownloadEvent

    /**
     * Bytes arrived.
     *
     * @property bytesPerSecond speed over the last seconds.
     * @property remaining expected time to the last byte, where it can be told.
     */
    public data class Progress(
        public val done: Long,
        public val total: Long?,
        public val bytesPerSecond: Double,
        public val remaining: Duration?,
    ) : DownloadEvent

    /** The bytes on disk could not be continued; the download began again. */
    public data class Restarted(public val reason: String) : DownloadEvent

    /** A source failed and is tried again after a pause. */
    public data class Retrying(public val reason: String, public val after: Duration) : DownloadEvent

    /** A source failed for good; the next one is tried, if there is one. */
    public data class SourceFailed(public val reason: String) : DownloadEvent

    /** The digest is being computed. */
    public data class Verifying(public val done: Long, public val total: Long) : DownloadEvent

    /** The file is whole, verified, and in its place. */
    public data class Completed(public val file: File, public val bytes: Long) : DownloadEvent
}
