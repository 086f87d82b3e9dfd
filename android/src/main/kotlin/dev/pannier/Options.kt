package dev.pannier

import java.io.File
import kotlin.time.Duration

/** How much anonymous memory all models of a [Pannier] may take together. Pages of model files do not count: the system takes them back. */
public class MemoryBudget private constructor(
    /** The budget in bytes; `null`: none. */
    public val bytes: Long?,
) {
    override fun equals(other: Any?): Boolean = other is MemoryBudget && other.bytes == bytes

    override fun hashCode(): Int = bytes.hashCode()

    override fun toString(): String = "MemoryBudget(bytes=$bytes)"

    public companion object {
        /** No limit. For desktops and tests; on a phone give a limit. */
        @JvmField
        public val Unlimited: MemoryBudget = MemoryBudget(null)

        /** This many bytes. */
        @JvmStatic
        public fun ofBytes(bytes: Long): MemoryBudget {
            require(bytes > 0) { "a budget must be positive" }
            return MemoryBudget(bytes)
        }

        /** This many mebibytes. */
        @JvmStatic
        public fun ofMebibytes(mebibytes: Int): MemoryBudget = ofBytes(Math.multiplyExact(mebibytes.toLong(), 1L shl 20))
    }
}

/**
 * How a model is loaded.
 *
 * @property context the longest conversation in tokens; `null`: what the model was trained for.
 * @property threads `null`: the performance cores.
 * @property prefillChunk the most prompt tokens per pass; more need more memory and make other sessions wait longer.
 * @property kv the KV cache: element types, and what may be forgotten.
 * @property precision which view of a file in nested precision answers if a request does not say. With [WeightPrecision.Low] the rest of the
 * file is never read, and there is no other view; loading another file so is [PannierException.Unsupported].
 * @property draft the file of a smaller model of the same vocabulary that guesses tokens for this one, such as [ModelStore.find] gives; `null`:
 * none. It is loaded with the model, within the same budget, and given up first when memory is scarce. A file that is not there is
 * [PannierException.NotFound], another vocabulary [PannierException.InvalidArgument], and a budget that does not hold it whole
 * [PannierException.OutOfBudget]; each when the model is loaded.
 * @property speculation where guesses come from if a request does not say; `null`: from [draft] if there is one, else nowhere.
 * [Speculation.Draft] without [draft] is [PannierException.InvalidArgument].
 */
public data class ModelOptions @JvmOverloads constructor(
    public val context: Int? = null,
    public val threads: Int? = null,
    public val prefillChunk: Int? = null,
    public val kv: KvOptions = KvOptions(),
    public val precision: WeightPrecision = WeightPrecision.Full,
    public val draft: File? = null,
    public val speculation: Speculation? = null,
)

/**
 * Where guessed tokens come from. Several are checked in one pass, which is faster where they are right often enough; whether they are is
 * measured, and guesses that do not pay are not made. The answer does not depend on it, not by a bit.
 */
public enum class Speculation {
    /** Nowhere: one token per pass. */
    Off,

    /** From earlier text and from the draft model, whatever there is and pays at the moment. */
    Auto,

    /** From earlier text that ended in the same tokens. It takes next to no memory, and pays where an answer quotes, edits or repeats. */
    Ngram,

    /** From the draft model that the model was loaded with. */
    Draft,
}

/** Which view of a file in nested precision answers (`pannier quantize --nested`). Other files have the full view only. */
public enum class WeightPrecision {
    /** The low plane: 3.5 bits per weight, for speed and for small memory. Answers differ from those of the full view. */
    Low,

    /** Both planes. */
    Full,

    /**
     * Decided for each request, by the length of its prompt and by how sure the low view is of the first words of its answer; told in
     * [NoticeKind.ViewChosen]. Loading takes the memory of the full view.
     */
    Auto,
}

/** What happens when the next turn does not fit into the context. */
public sealed interface Overflow {
    /** The turn fails with [PannierException.ContextOverflow]; the history stays as it is. */
    public data object Fail : Overflow

    /**
     * The oldest turns leave the history, so that the prompt and an answer of [reserve] tokens fit; told in [NoticeKind.TurnsDropped].
     * System messages at the beginning stay.
     */
    public data class DropOldest(public val reserve: Int = 256) : Overflow
}

/**
 * How an answer is generated. `null` is the engine's default.
 *
 * @property maxTokens at most this many tokens; `null`: until the model ends or the context is full.
 * @property stop the answer ends before the first of these strings. At most 64, of 1 to 1024 bytes.
 * @property temperature 0 always takes the most likely token; 1 is the model's own distribution.
 * @property topK keep the most likely tokens; 0 keeps all.
 * @property topP keep the smallest set of tokens that has this probability; 1 keeps all.
 * @property minP drop tokens less likely than this share of the most likely one; 0 keeps all.
 * @property repetitionPenalty makes what was said lately less likely; 1 is off.
 * @property seed repeats an answer; `null`: another one each time. [Answer.seed] tells which.
 * @property topLogprobs how many alternatives to report for each token.
 * @property deadline ends the answer with what there is.
 * @property precision which view of a model in nested precision answers; `null`: as the model was loaded. A view that is not there ends the
 * turn with [PannierException.Unsupported]. Views are never mixed: what a session has read with another one is read again.
 * @property speculation where guessed tokens come from; `null`: as the model was loaded. [Speculation.Draft] ends the turn with
 * [PannierException.InvalidArgument] if the model was loaded without a draft model.
 * @property draftLength always guess so many tokens, from 0 to 8, whether it pays or not: for measurements; `null`: as many as pay.
 */
public data class GenerationOptions @JvmOverloads constructor(
    public val maxTokens: Int? = null,
    public val stop: List<String> = emptyList(),
    public val temperature: Float? = null,
    public val topK: Int? = null,
    public val topP: Float? = null,
    public val minP: Float? = null,
    public val repetitionPenalty: Float? = null,
    public val seed: Long? = null,
    public val topLogprobs: Int? = null,
    public val deadline: Duration? = null,
    public val precision: WeightPrecision? = null,
    public val speculation: Speculation? = null,
    public val draftLength: Int? = null,
) {
    public companion object {
        /** Always the most likely token. */
        @JvmStatic
        public fun greedy(maxTokens: Int): GenerationOptions = GenerationOptions(maxTokens = maxTokens, temperature = 0f)
    }
}

/** Who speaks. */
public enum class Role {
    /** Instructions of the app. */
    System,

    /** The user. */
    User,

    /** The model. */
    Assistant,

    /** The result of a tool. */
    Tool,
}

/**
 * One message of a conversation.
 *
 * @property fieldsJson further fields for the chat template, as a JSON object.
 */
public data class ChatMessage @JvmOverloads constructor(
    public val role: Role,
    public val content: String,
    public val fieldsJson: String? = null,
)
