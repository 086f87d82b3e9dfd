/// The KV cache: what a model remembers of a conversation, the memory that grows with its length. Holds for all conversations of a
/// ``Model``. ``MemoryPlan/kvBytes`` tells what a choice takes, before anything is loaded.
///
/// What does not go together is ``PannierError/invalidArgument(_:)`` when the model is planned or loaded: counts that are not positive,
/// and ``EvictWhen/above(slack:)`` with ``KVPolicy/keepAll`` or ``KVPolicy/pages(tokens:)``.
public struct KVOptions: Sendable, Hashable {
    /// Element types of keys and values. All but ``KVType/f16`` save memory and change answers a little.
    public var type: KVType
    /// What may be forgotten. Answers change when something is.
    public var policy: KVPolicy
    /// When that happens.
    public var evict: EvictWhen
    /// The most bytes for beginnings of prompts that no conversation uses just now; 0 keeps none; `nil`: 64 MiB.
    public var prefixBytes: Int64?

    /// Everything is kept, in halves, where nothing else is given.
    public init(
        type: KVType = .f16, policy: KVPolicy = .keepAll, evict: EvictWhen = .asked, prefixBytes: Int64? = nil
    ) {
        self.type = type
        self.policy = policy
        self.evict = evict
        self.prefixBytes = prefixBytes
    }
}

/// Element types of the KV cache.
public enum KVType: Sendable, Hashable, CaseIterable {
    /// Halves: nothing is lost.
    case f16
    /// Keys and values in 8 bits: about half of the memory.
    case q8
    /// As ``q8``, but keys are rounded per channel of 32 tokens: answers are nearer to those of halves. Only with ``KVPolicy/keepAll`` and ``KVPolicy/pages(tokens:)``.
    case q8Channel
    /// Keys in 8 bits, values in 4.
    case k8v4
    /// Both in 4 bits, those of the first and the last layer in 8: about a quarter of the memory.
    case q4
    /// As ``q4``, but keys are rounded per channel of 32 tokens: answers are nearer to those of halves. Only with ``KVPolicy/keepAll`` and ``KVPolicy/pages(tokens:)``.
    case q4Channel
}

/// What the KV cache may forget. Counts are tokens. What stays keeps its place; layers with a sliding window take no part.
public enum KVPolicy: Sendable, Hashable {
    /// Nothing.
    case keepAll
    /// All but the last so many.
    case window(recent: Int = 1024)
    /// All but the first few, which attention leans on whatever they say, and the last so many.
    case sinks(sinks: Int = 4, recent: Int = 1024)
    /// All but the first few, the last so many, and of those between the ones that got most attention, with what stands around them.
    case heavyHitters(sinks: Int = 4, recent: Int = 1024, top: Int = 512)
    /// Nothing is forgotten, but each new token reads only so many others: the first and the newest, and of those between the pages of 32 that could
    /// match best. At least 128.
    case pages(tokens: Int = 1536)
}

/// When a ``KVPolicy`` acts by itself. Every time it does is a ``Notice/evicted(_:)``.
public enum EvictWhen: Sendable, Hashable {
    /// Only on ``ChatSession/evict()``, or when memory is critically scarce.
    case asked
    /// Also whenever a conversation holds so many tokens more than the policy keeps, so that its memory stays bounded.
    case above(slack: Int = 256)
}

/// What an eviction did, in each layer.
public struct Eviction: Sendable, Hashable {
    /// Tokens that are forgotten.
    public let gone: Int
    /// Tokens that stay.
    public let kept: Int
}
