package dev.pannier

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
 */
public data class ModelOptions @JvmOverloads constructor(
    public val context: Int? = null,
    public val threads: Int? = null,
    public val prefillChunk: Int? = null,
)

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
