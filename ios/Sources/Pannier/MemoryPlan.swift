/// What loading a model takes, told before it is loaded. All sizes in bytes.
public struct MemoryPlan: Sendable, Hashable {
    /// Whether it fits the budget.
    public let fits: Bool
    /// The budget it was made for; more than any machine has: none.
    public let budgetBytes: Int64
    /// Tokens of the context.
    public let context: Int
    /// The longest context that fits, up to that of the training; 0 if none does.
    public let maxContext: Int
    /// Weights in memory: mapped, pinned, or in slots for experts.
    public let residentBytes: Int64
    /// Read from flash for each token of an answer.
    public let streamedBytesPerToken: Int64
    /// The KV cache with a full context.
    public let kvBytes: Int64
    /// Buffers of a pass.
    public let scratchBytes: Int64
    /// What the draft model takes of the budget: weights, KV cache and buffers; 0 without one.
    public let draftBytes: Int64
    /// The most anonymous memory under this budget. A smaller budget changes the plan, because weights are streamed then: plan again to
    /// see what it takes.
    public let peakBytes: Int64
    /// The most clean pages of files: the system takes them back when it needs them.
    public let fileBackedBytes: Int64
    /// Expected speed of an answer, on a middling phone.
    public let predictedDecodeTokensPerSecond: Double
    /// Expected speed of reading a prompt, on a middling phone.
    public let predictedPrefillTokensPerSecond: Double
    /// What guesses are expected to bring: those of the draft model, or those of n-grams, which cost nothing, without one.
    public let speculation: SpeculationForecast
    /// What bounds the speed: memory bandwidth, flash bandwidth, or compute.
    public let boundBy: String
    /// Advice in words.
    public let notes: [String]
}

/// Memory now, in bytes.
public struct MemoryUse: Sendable, Hashable {
    /// The budget; `nil`: none.
    public let budget: Int64?
    /// Taken from it now.
    public let used: Int64
    /// The most that was taken.
    public let peak: Int64
    /// Anonymous memory of the process: what gets an app killed.
    public let processAnonymous: Int64?
    /// Resident memory of the process, pages of files included.
    public let processResident: Int64?
    /// Memory that can still be had in the system.
    public let systemAvailable: Int64?
    /// All memory of the system.
    public let systemTotal: Int64?
}

/// How much the system wants memory back.
public enum MemoryPressure: Sendable, Hashable {
    /// Not at all.
    case normal
    /// It gets tight.
    case moderate
    /// The app is about to be killed.
    case critical
}
