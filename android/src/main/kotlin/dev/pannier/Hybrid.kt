package dev.pannier

import dev.pannier.ffi.CancelHandle
import dev.pannier.ffi.HybridChat
import dev.pannier.ffi.HybridConfig
import dev.pannier.ffi.HybridSink
import dev.pannier.ffi.HybridUpdate
import dev.pannier.ffi.TurnSettings
import java.util.concurrent.atomic.AtomicBoolean
import kotlin.time.Duration
import kotlinx.coroutines.channels.Channel
import kotlinx.coroutines.channels.SendChannel
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.buffer
import kotlinx.coroutines.flow.channelFlow

/**
 * A conversation that the device and a cloud answer together. It stands on a [ChatSession] and shares its history: use one of both at a
 * time. Without a [cloud] nothing can leave the device, whatever the policy.
 *
 * @property chat the conversation on the device.
 * @param policy who answers.
 * @param rules what is decided before any work.
 * @param cloud the cloud, with the consent to use it.
 * @param device tells the state of the device when a turn begins; `null`: unknown.
 * @param rule the app's own say, asked before any work; it answers `null` when it has none. Never overrides privacy.
 */
public class HybridSession @JvmOverloads constructor(
    public val chat: ChatSession,
    policy: HybridPolicy = HybridPolicy.OnDeviceOnly,
    rules: HybridRules = HybridRules(),
    cloud: Cloud? = null,
    device: (() -> DeviceCondition)? = null,
    rule: ((AdmissionFacts) -> AnswerRoute?)? = null,
) {
    private val ffi: HybridChat = HybridChat(
        chat.ffi,
        HybridConfig(policy.toFfi(), rules.toFfi(), cloud?.ffi, chat.model.file.path),
        device?.let(::Probe),
        rule?.let(::Rule),
    )

    /** The conversation so far, the system message first. */
    public val history: List<ChatMessage> get() = ffi.history().map { it.toPublic() }

    /** What confidences of this model are worth. */
    public val calibration: Calibration = ffi.calibration().toPublic()

    /** Whether this conversation stays on the device for good. */
    public val isLockedToDevice: Boolean get() = ffi.isLockedToDevice()

    /** From now on, this conversation stays on the device. There is no way back. */
    public fun lockToDevice() {
        ffi.lockToDevice()
    }

    /** Says [text] as the user. See the other [send]. */
    public fun send(
        text: String,
        options: GenerationOptions = GenerationOptions(),
        task: String? = null,
        onDeviceOnly: Boolean = false,
    ): Flow<HybridEvent> = send(listOf(ChatMessage(Role.User, text)), options, task, onDeviceOnly)

    /**
     * Adds messages and streams the answer. Nothing happens until the flow is collected; each collection is a turn.
     *
     * The last event is a [HybridEvent.Terminal], exactly one. A call that is refused throws [PannierException.Busy] or
     * [PannierException.InvalidArgument] instead of giving events. Cancelling the collector cancels both sides.
     *
     * @param task the app's class of the task, for its rules.
     * @param onDeviceOnly this turn stays on the device.
     */
    public fun send(
        messages: List<ChatMessage>,
        options: GenerationOptions = GenerationOptions(),
        task: String? = null,
        onDeviceOnly: Boolean = false,
    ): Flow<HybridEvent> = channelFlow {
        val cancel = CancelHandle()
        val sink = Relay(channel)
        try {
            ffi.send(messages.map { it.toFfi() }, options.toFfi(), TurnSettings(task, onDeviceOnly), sink, cancel)
        } catch (e: dev.pannier.ffi.PannierException) {
            if (!sink.ended.get()) throw e.toPublic()
        } finally {
            cancel.cancel()
            cancel.close()
        }
    }.buffer(Channel.UNLIMITED)

    private class Relay(private val events: SendChannel<HybridEvent>) : HybridSink {
        val ended = AtomicBoolean()

        override fun onUpdate(update: HybridUpdate) {
            val told = update.toPublic()
            if (told is HybridEvent.Terminal) ended.set(true)
            events.trySend(told)
        }
    }

    /** An app's code that throws has no opinion. */
    private class Probe(private val ask: () -> DeviceCondition) : dev.pannier.ffi.DeviceProbe {
        override fun condition(): dev.pannier.ffi.DeviceCondition =
            runCatching(ask).getOrElse { DeviceCondition() }.toFfi()
    }

    private class Rule(private val ask: (AdmissionFacts) -> AnswerRoute?) : dev.pannier.ffi.AdmissionRule {
        override fun route(facts: dev.pannier.ffi.AdmissionFacts): dev.pannier.ffi.AnswerRoute? =
            runCatching { ask(facts.toPublic()) }.getOrNull()?.toFfi()
    }
}

/** Who answers. */
public sealed interface HybridPolicy {
    /** Nothing leaves the device. */
    public data object OnDeviceOnly : HybridPolicy

    /**
     * The device answers; the cloud is asked where the device is not sure enough.
     *
     * @property minConfidence below this probability of being right, the cloud is asked.
     * @property checkAfterTokens the first look at an answer comes after this many tokens.
     * @property maxEdgeLatency if the device has shown nothing by then, the cloud is asked; `null`: it may take its time.
     * @property holdUntilChecked show nothing before the first look, so that nothing has to be taken back.
     * @property checkSentences look again at every sentence.
     * @property hysteresis an answer that passed is given up only when its score falls this far below, twice in a row.
     * @property askItself at the end, also ask the model whether it is right: one short prefill.
     * @property style what the cloud does with the draft.
     * @property minGain where the model's calibration also knows the cloud: only what that is likelier to get right by this much is
     *   handed over.
     */
    public data class EdgeFirst @JvmOverloads constructor(
        public val minConfidence: Double = 0.7,
        public val checkAfterTokens: Int = 50,
        public val maxEdgeLatency: Duration? = null,
        public val holdUntilChecked: Boolean = true,
        public val checkSentences: Boolean = true,
        public val hysteresis: Double = 0.1,
        public val askItself: Boolean = false,
        public val style: HandOffStyle = HandOffStyle.Replace,
        public val minGain: Double = 0.0,
    ) : HybridPolicy

    /** The cloud answers; the device does when the cloud cannot. */
    public data object CloudFirst : HybridPolicy

    /** Only the cloud answers. */
    public data object CloudOnly : HybridPolicy
}

/** What the cloud does with a draft that is not good enough. If the cloud fails, the draft stands. */
public enum class HandOffStyle {
    /** Answers anew; the draft is taken back. */
    Replace,

    /** Goes on behind the sentences that were sure enough. */
    Continue,

    /** Judges the finished draft, and corrects it if need be. */
    Verify,
}

/**
 * What is decided before any work. What is not given is off.
 *
 * @property cloudTasks classes of tasks that go to the cloud.
 * @property edgeTasks classes of tasks that stay on the device.
 * @property maxEdgePrompt longer prompts (in tokens) go to the cloud; those that do not fit the context always do.
 * @property minBattery below this charge (0 to 1), unplugged, the cloud is asked.
 * @property maxHeat from this heat on, the cloud is asked.
 * @property spareMemory under memory pressure, the cloud is asked.
 */
public data class HybridRules @JvmOverloads constructor(
    public val cloudTasks: List<String> = emptyList(),
    public val edgeTasks: List<String> = emptyList(),
    public val maxEdgePrompt: Long? = null,
    public val minBattery: Float? = null,
    public val maxHeat: DeviceHeat? = null,
    public val spareMemory: Boolean = false,
)

/** Heat, as it matters to the policy. */
public enum class DeviceHeat {
    /** Cool. */
    Nominal,

    /** Warm. */
    Fair,

    /** The system slows down. */
    Serious,

    /** The system is about to shut things down. */
    Critical,
}

/**
 * What the device says about itself; `null`: unknown.
 *
 * @property battery charge from 0 to 1.
 * @property memoryPressure the system asked for memory back.
 */
public data class DeviceCondition @JvmOverloads constructor(
    public val battery: Float? = null,
    public val charging: Boolean? = null,
    public val heat: DeviceHeat = DeviceHeat.Nominal,
    public val memoryPressure: Boolean = false,
    public val online: Boolean? = null,
)

/** Which side. */
public enum class AnswerRoute {
    /** The device. */
    Edge,

    /** The cloud. */
    Cloud,
}

/**
 * What an app's own rule sees.
 *
 * @property promptTokens tokens of the prompt on the device, if it was counted.
 * @property task the app's class of the task.
 */
public data class AdmissionFacts(
    public val promptTokens: Long?,
    public val task: String?,
    public val device: DeviceCondition,
)

/**
 * What confidences of a model are worth.
 *
 * @property fitted fitted on answers of this very model file. If not, scores order answers, and their size is a guess.
 * @property auroc area under the receiver operating characteristic on answers that were not fitted on.
 * @property error expected calibration error on these.
 * @property problem why a calibration that is there was not used.
 */
public data class Calibration(
    public val fitted: Boolean,
    public val auroc: Double?,
    public val error: Double?,
    public val problem: String?,
)
