package dev.pannier

/**
 * What loading a model takes, told before it is loaded. All sizes in bytes.
 *
 * @property fits whether it fits the budget.
 * @property budgetBytes the budget it was made for; more than any machine has: none.
 * @property context tokens of the context.
 * @property maxContext the longest context that fits, up to that of the training; 0 if none does.
 * @property residentBytes weights in memory. Mapped, pinned, or in slots for experts.
 * @property streamedBytesPerToken read from flash for each token of an answer.
 * @property kvBytes the KV cache with a full context.
 * @property scratchBytes buffers of a pass.
 * @property draftBytes what the draft model takes of the budget: weights, KV cache and buffers; 0 without one.
 * @property peakBytes the most anonymous memory under this budget. A smaller budget changes the plan, because weights are streamed then:
 * plan again to see what it takes.
 * @property fileBackedBytes the most clean pages of files: the system takes them back when it needs them.
 * @property predictedDecodeTokensPerSecond expected speed of an answer, on a middling phone.
 * @property predictedPrefillTokensPerSecond expected speed of reading a prompt, on a middling phone.
 * @property speculation what guesses are expected to bring: those of the draft model, or those of n-grams, which cost nothing, without one.
 * @property boundBy what bounds the speed: memory bandwidth, flash bandwidth, or compute.
 * @property notes advice in words.
 */
public data class MemoryPlan(
    public val fits: Boolean,
    public val budgetBytes: Long,
    public val context: Long,
    public val maxContext: Long,
    public val residentBytes: Long,
    public val streamedBytesPerToken: Long,
    public val kvBytes: Long,
    public val scratchBytes: Long,
    public val draftBytes: Long,
    public val peakBytes: Long,
    public val fileBackedBytes: Long,
    public val predictedDecodeTokensPerSecond: Double,
    public val predictedPrefillTokensPerSecond: Double,
    public val speculation: SpeculationForecast,
    public val boundBy: String,
    public val notes: List<String>,
)

/**
 * What guessing tokens is expected to bring on a middling phone, if 70% of the guesses are right: as in texts that quote, edit or follow a
 * pattern. In free prose n-grams are seldom found, and cost nothing then.
 *
 * @property draftLength tokens to guess for a pass; 0 if guessing does not pay.
 * @property tokensPerPass tokens that a pass gives.
 * @property decodeTokensPerSecond speed of an answer.
 * @property gain how many times as fast as one token per pass.
 */
public data class SpeculationForecast(
    public val draftLength: Int,
    public val tokensPerPass: Double,
    public val decodeTokensPerSecond: Double,
    public val gain: Double,
)

/**
 * Memory now, in bytes.
 *
 * @property budget the budget; `null`: none.
 * @property used taken from it now.
 * @property peak the most that was taken.
 * @property processAnonymous anonymous memory of the process: what gets an app killed.
 * @property processResident resident memory of the process, pages of files included.
 * @property systemAvailable memory that can still be had in the system.
 * @property systemTotal all memory of the system.
 */
public data class MemoryUse(
    public val budget: Long?,
    public val used: Long,
    public val peak: Long,
    public val processAnonymous: Long?,
    public val processResident: Long?,
    public val systemAvailable: Long?,
    public val systemTotal: Long?,
)

/** How much the system wants memory back. */
public enum class MemoryPressure {
    /** Not at all. */
    Normal,

    /** It gets tight. */
    Moderate,

    /** The app is about to be killed. */
    Critical,
}
