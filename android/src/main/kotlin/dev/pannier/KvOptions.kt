package dev.pannier

import dev.pannier.ffi.KvType as FfiKvType

/**
 * The KV cache: what a model remembers of a conversation, the memory that grows with its length. Holds for all conversations of a
 * [Model]. [MemoryPlan.kvBytes] tells what a choice takes, before anything is loaded.
 *
 * What does not go together is [PannierException.InvalidArgument] when the model is planned or loaded: counts that are not positive, and
 * [EvictWhen.Above] with [KvPolicy.KeepAll] or [KvPolicy.Pages].
 *
 * @property type element types of keys and values. All but [KvType.F16] save memory and change answers a little.
 * @property policy what may be forgotten. Answers change when something is.
 * @property evict when that happens.
 * @property prefixBytes the most bytes for beginnings of prompts that no conversation uses just now; 0 keeps none; `null`: 64 MiB.
 */
public data class KvOptions @JvmOverloads constructor(
    public val type: KvType = KvType.F16,
    public val policy: KvPolicy = KvPolicy.KeepAll,
    public val evict: EvictWhen = EvictWhen.Asked,
    public val prefixBytes: Long? = null,
)

/** Element types of the KV cache. */
public enum class KvType(internal val ffi: FfiKvType) {
    /** Halves: nothing is lost. */
    F16(FfiKvType.F16),

    /** Keys and values in 8 bits: about half of the memory. */
    Q8(FfiKvType.Q8),

    /** As [Q8], but keys are rounded per channel of 32 tokens: answers are nearer to those of halves. Only with [KvPolicy.KeepAll] and [KvPolicy.Pages]. */
    Q8_CHANNEL(FfiKvType.Q8_CHANNEL),

    /** Keys in 8 bits, values in 4. */
    K8V4(FfiKvType.K8V4),

    /** Both in 4 bits, those of the first and the last layer in 8: about a quarter of the memory. */
    Q4(FfiKvType.Q4),

    /** As [Q4], but keys are rounded per channel of 32 tokens: answers are nearer to those of halves. Only with [KvPolicy.KeepAll] and [KvPolicy.Pages]. */
    Q4_CHANNEL(FfiKvType.Q4_CHANNEL),
}

/** What the KV cache may forget. Counts are tokens. What stays keeps its place; layers with a sliding window take no part. */
public sealed interface KvPolicy {
    /** Nothing. */
    public data object KeepAll : KvPolicy

    /** All but the last [recent]. */
    public data class Window(public val recent: Int = 1024) : KvPolicy

    /** All but the first [sinks], which attention leans on whatever they say, and the last [recent]. */
    public data class Sinks @JvmOverloads constructor(
        public val sinks: Int = 4,
        public val recent: Int = 1024,
    ) : KvPolicy

    /** All but the first [sinks], the last [recent], and those [top] between that got most attention, with what stands around them. */
    public data class HeavyHitters @JvmOverloads constructor(
        public val sinks: Int = 4,
        public val recent: Int = 1024,
        public val top: Int = 512,
    ) : KvPolicy

    /**
     * Nothing is forgotten, but each new token reads only [tokens] others: the first and the newest, and of those between the pages of 32 that
     * could match best. At least 128.
     */
    public data class Pages(public val tokens: Int = 1536) : KvPolicy
}

/** When a [KvPolicy] acts by itself. Every time it does is a [NoticeKind.Evicted]. */
public sealed interface EvictWhen {
    /** Only on [ChatSession.evict], or when memory is critically scarce. */
    public data object Asked : EvictWhen

    /** Also whenever a conversation holds [slack] tokens more than the policy keeps, so that its memory stays bounded. */
    public data class Above(public val slack: Int = 256) : EvictWhen
}

/**
 * What an eviction did, in each layer.
 *
 * @property gone tokens that are forgotten.
 * @property kept tokens that stay.
 */
public data class Eviction(public val gone: Long, public val kept: Long)
