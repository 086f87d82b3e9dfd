package dev.pannier

import dev.pannier.ffi.CloudBudget
import dev.pannier.ffi.CloudContinuation
import dev.pannier.ffi.CloudFault
import dev.pannier.ffi.CloudReply
import dev.pannier.ffi.CloudWaits
import dev.pannier.ffi.HybridCloud
import java.util.concurrent.ConcurrentHashMap
import kotlin.time.Duration
import kotlin.time.Duration.Companion.seconds
import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.CoroutineStart
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.Job
import kotlinx.coroutines.SupervisorJob
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.launch

/**
 * A cloud with the consent to use it, and bounds. Making one opens no connection. One for all conversations of an app, so that the bounds
 * are kept together.
 */
public class Cloud private constructor(internal val ffi: HybridCloud, private val budget: CloudBudget) {
    /** What was spent today, to be kept over restarts. */
    public var ledger: CloudLedger
        get() = budget.ledger().let { CloudLedger(it.day.toLong(), it.spentMicros.toLong()) }
        set(kept) = budget.restore(dev.pannier.ffi.CloudLedger(kept.day.toULong(), kept.spentMicros.toULong()))

    public companion object {
        init {
            prepareEngineThreads()
        }

        /**
         * An OpenAI-compatible server, by the built-in client.
         *
         * @param consent asked for every request, with exactly what would be sent.
         * @param redactor takes out what must stay on the device.
         * @throws PannierException.InvalidArgument if the address is none, or not HTTPS.
         */
        @JvmStatic
        @JvmOverloads
        public fun openAi(
            endpoint: CloudEndpoint,
            consent: CloudConsent,
            redactor: CloudRedactor? = null,
            bounds: CloudBounds = CloudBounds(),
            patience: CloudPatience = CloudPatience(),
        ): Cloud {
            val budget = CloudBudget(bounds.toFfi())
            return rethrowingNow {
                val ffi = HybridCloud.openAi(endpoint.toFfi(), Asked(consent), redactor?.let(::Cleaner), budget, patience.toFfi())
                Cloud(ffi, budget)
            }
        }

        /** The app's own way to a cloud: its gateway, its tokens. The parameters are those of [openAi]. */
        @JvmStatic
        @JvmOverloads
        public fun custom(
            transport: CloudTransport,
            consent: CloudConsent,
            redactor: CloudRedactor? = null,
            bounds: CloudBounds = CloudBounds(),
            patience: CloudPatience = CloudPatience(),
        ): Cloud {
            val budget = CloudBudget(bounds.toFfi())
            val carrier = Carrier(transport)
            return Cloud(
                HybridCloud.custom(carrier, Asked(consent), redactor?.let(::Cleaner), budget, patience.toFfi()),
                budget,
            )
        }
    }
}

/** The app's, or its user's, consent to send something. */
public fun interface CloudConsent {
    /** Whether exactly this may be sent. Called on the turn's thread, which waits: an app may ask its user here. */
    public fun allows(payload: CloudPayload): Boolean
}

/** Takes out what must stay on the device. */
public fun interface CloudRedactor {
    /** The messages as they may leave; `null`: they may not. The conversation keeps the originals. */
    public fun redact(messages: List<ChatMessage>): List<ChatMessage>?
}

/** An app's own way to a cloud model. */
public interface CloudTransport {
    /** The model's name, for events. */
    public val name: String

    /** What would be sent for this prompt. Opens nothing. Throws [CloudFailure]. */
    public fun prepare(prompt: CloudPrompt): CloudPayload

    /**
     * Sends a prepared payload when it is collected, and gives the pieces of the answer. Cancelling the collection closes the connection.
     * Fails with [CloudFailure].
     */
    public fun send(payload: CloudPayload): Flow<String>
}

/**
 * Why an app's own transport failed. The message carries neither keys nor prompts: it is told in events.
 *
 * @property status the HTTP status, if the server refused; `null`: it was not reached.
 * @property retryAfter when to come back, if the server says so.
 */
public class CloudFailure @JvmOverloads constructor(
    message: String,
    public val status: Int? = null,
    public val retryAfter: Duration? = null,
) : Exception(message)

/**
 * What is asked of the cloud, after redaction.
 *
 * @property continueFinal the last message is the beginning of the answer: to be continued, not answered.
 */
public data class CloudPrompt(
    public val messages: List<ChatMessage>,
    public val continueFinal: Boolean,
    public val maxTokens: Int?,
    public val temperature: Float?,
    public val seed: Long?,
    public val stop: List<String>,
)

/**
 * Exactly what leaves the device. Keys are not part of it.
 *
 * @property destination where to.
 * @property body the body, to the byte.
 */
public data class CloudPayload(public val destination: String, public val body: String)

/**
 * An OpenAI-compatible server and how to talk to it.
 *
 * @property baseUrl the address up to and including `/v1`. HTTPS, except on loopback.
 * @property model the name of the model there.
 * @property key sent as a bearer token.
 * @property headers further headers; their values are treated as secrets.
 * @property extraJson further fields of the request, as a JSON object.
 * @property retries how often a failed request is sent again.
 */
public class CloudEndpoint @JvmOverloads constructor(
    public val baseUrl: String,
    public val model: String,
    internal val key: String? = null,
    internal val headers: Map<String, String> = emptyMap(),
    public val extraJson: String? = null,
    public val retries: Int = 2,
) {
    /** Without the key and the headers. */
    override fun toString(): String = "CloudEndpoint(baseUrl=$baseUrl, model=$model)"

    internal fun toFfi() = dev.pannier.ffi.CloudEndpoint(
        baseUrl,
        model,
        key,
        headers.map { dev.pannier.ffi.CloudHeader(it.key, it.value) },
        extraJson,
        CloudContinuation.FIELDS,
        retries.coerceAtLeast(0).toUInt(),
    )
}

/**
 * Bounds of cloud use, in millionths of the app's currency. `null` is unbounded.
 *
 * @property promptPriceMicros price of a million tokens of requests.
 * @property completionPriceMicros price of a million tokens of answers.
 * @property maxPerRequestMicros the most a request may cost.
 * @property maxPerDayMicros the most that all requests of a day (UTC) may cost.
 * @property maxPerMinute the most requests per minute.
 * @property failuresToOpen after so many failures in a row the cloud is left alone for a while.
 * @property openFor how long, at first.
 */
public data class CloudBounds @JvmOverloads constructor(
    public val promptPriceMicros: Long = 0,
    public val completionPriceMicros: Long = 0,
    public val maxPerRequestMicros: Long? = null,
    public val maxPerDayMicros: Long? = null,
    public val maxPerMinute: Int? = null,
    public val failuresToOpen: Int = 3,
    public val openFor: Duration = 30.seconds,
) {
    internal fun toFfi() = dev.pannier.ffi.CloudBounds(
        promptPriceMicros.toULong(),
        completionPriceMicros.toULong(),
        maxPerRequestMicros?.toULong(),
        maxPerDayMicros?.toULong(),
        maxPerMinute?.toUInt(),
        failuresToOpen.coerceAtLeast(1).toUInt(),
        openFor.inWholeMilliseconds.coerceAtLeast(0).toULong(),
    )
}

/**
 * How long the cloud may take.
 *
 * @property firstText until its first text.
 * @property between between texts.
 * @property whole for the whole answer.
 */
public data class CloudPatience @JvmOverloads constructor(
    public val firstText: Duration = 20.seconds,
    public val between: Duration = 15.seconds,
    public val whole: Duration = 180.seconds,
) {
    internal fun toFfi() = CloudWaits(
        firstText.inWholeMilliseconds.coerceAtLeast(0).toULong(),
        between.inWholeMilliseconds.coerceAtLeast(0).toULong(),
        whole.inWholeMilliseconds.coerceAtLeast(0).toULong(),
    )
}

/**
 * What was spent.
 *
 * @property day days since 1970, UTC.
 * @property spentMicros spent on that day, in millionths.
 */
public data class CloudLedger(public val day: Long, public val spentMicros: Long)

/** An app's code that throws has not consented. */
private class Asked(private val consent: CloudConsent) : dev.pannier.ffi.CloudConsent {
    override fun allows(payload: dev.pannier.ffi.CloudPayload): Boolean =
        runCatching { consent.allows(payload.toPublic()) }.getOrDefault(false)
}

private class Cleaner(private val redactor: CloudRedactor) : dev.pannier.ffi.CloudRedactor {
    override fun redact(messages: List<dev.pannier.ffi.Message>): List<dev.pannier.ffi.Message>? =
        runCatching { redactor.redact(messages.map { it.toPublic() }) }.getOrNull()?.map { it.toFfi() }
}

/** Runs the flows of an app's transport. */
private class Carrier(private val transport: CloudTransport) : dev.pannier.ffi.CloudTransport {
    private val scope = CoroutineScope(SupervisorJob() + Dispatchers.Default)
    private val calls = ConcurrentHashMap<ULong, Job>()

    override fun name(): String = runCatching { transport.name }.getOrDefault("cloud")

    override fun prepare(prompt: dev.pannier.ffi.CloudPrompt): dev.pannier.ffi.CloudPayload = try {
        transport.prepare(prompt.toPublic()).toFfi()
    } catch (e: Throwable) {
        throw fault(e)
    }

    override fun send(call: ULong, payload: dev.pannier.ffi.CloudPayload, reply: CloudReply) {
        // Known before it runs, so that an early cancel finds it.
        val job = scope.launch(start = CoroutineStart.LAZY) {
            try {
                transport.send(payload.toPublic()).collect { if (!reply.text(it)) throw CancellationException("nobody listens") }
                reply.done(dev.pannier.ffi.CloudFinish.STOP, null)
            } catch (e: CancellationException) {
                reply.failed(CloudFault.Other("cancelled"))
                throw e
            } catch (e: Throwable) {
                reply.failed(fault(e))
            } finally {
                calls.remove(call)
                reply.close()
            }
        }
        calls[call] = job
        job.start()
    }

    override fun cancel(call: ULong) {
        calls[call]?.cancel()
    }

    /** Words of what the app did not declare may hold anything, so they stay out. */
    private fun fault(e: Throwable): CloudFault = when {
        e !is CloudFailure -> CloudFault.Other("the app's transport failed")
        e.status == null -> CloudFault.Unreachable(e.message.orEmpty())
        else -> CloudFault.Refused(
            e.status.coerceIn(0, 999).toUShort(),
            e.message.orEmpty(),
            e.retryAfter?.inWholeMilliseconds?.coerceAtLeast(0)?.toULong(),
        )
    }
}
