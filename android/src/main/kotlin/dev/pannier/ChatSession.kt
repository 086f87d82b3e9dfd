package dev.pannier

import dev.pannier.ffi.CancelHandle
import dev.pannier.ffi.TokenSink
import java.io.File
import java.util.concurrent.atomic.AtomicBoolean
import kotlinx.coroutines.channels.Channel
import kotlinx.coroutines.channels.SendChannel
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.buffer
import kotlinx.coroutines.flow.channelFlow

/**
 * A conversation. It outlives the loaded model: a turn loads the model if need be.
 *
 * A turn becomes part of the history when it is completed, or cancelled after some text was given out. A turn that fails leaves no
 * trace, so it can be repeated.
 *
 * @property model the model.
 */
public class ChatSession internal constructor(
    public val model: Model,
    internal val ffi: dev.pannier.ffi.Chat,
) : AutoCloseable {
    /** The conversation so far, the system message first. */
    public val history: List<ChatMessage> get() = ffi.history().map { it.toPublic() }

    /** Says [text] as the user. See [send]. */
    public fun send(text: String, options: GenerationOptions = GenerationOptions()): Flow<GenerationEvent> =
        send(listOf(ChatMessage(Role.User, text)), options)

    /**
     * Adds messages and streams the answer. Nothing happens until the flow is collected; each collection is a turn.
     *
     * The last event is a [GenerationEvent.Terminal], exactly one. A call that is refused throws [PannierException.Busy],
     * [PannierException.Closed] or [PannierException.InvalidArgument] instead of giving events. Cancelling the collector cancels the
     * generation. A slow collector does not slow the generation down: events wait for it.
     */
    public fun send(messages: List<ChatMessage>, options: GenerationOptions = GenerationOptions()): Flow<GenerationEvent> =
        channelFlow {
            val cancel = CancelHandle()
            val sink = Relay(channel)
            try {
                ffi.send(messages.map { it.toFfi() }, options.toFfi(), sink, cancel)
            } catch (e: dev.pannier.ffi.PannierException) {
                if (!sink.ended.get()) throw e.toPublic()
            } finally {
                // The collector is gone, or the generation has ended: then this does nothing.
                cancel.cancel()
                cancel.close()
            }
        }.buffer(Channel.UNLIMITED)

    /**
     * Says [text] and waits for the whole answer.
     *
     * @throws PannierException what ended the turn, if not the answer's end.
     */
    public suspend fun ask(text: String, options: GenerationOptions = GenerationOptions()): Answer {
        val cancel = CancelHandle()
        try {
            val message = ChatMessage(Role.User, text).toFfi()
            return rethrowing { ffi.send(listOf(message), options.toFfi(), Deaf, cancel).toPublic() }
        } finally {
            cancel.cancel()
            cancel.close()
        }
    }

    /** How many tokens the prompt would have if [next] were said now. Loads the model if need be. */
    public suspend fun tokenCount(next: String = ""): Long {
        val messages = if (next.isEmpty()) emptyList() else listOf(ChatMessage(Role.User, next).toFfi())
        return rethrowing { ffi.tokenCount(messages).toLong() }
    }

    /** How many tokens need not be read again for the next turn; 0 while a generation runs. */
    public val cachedTokens: Long get() = ffi.cachedTokens().toLong()

    /** Replaces the conversation. */
    public fun setHistory(messages: List<ChatMessage>) {
        rethrowingNow { ffi.setHistory(messages.map { it.toFfi() }) }
    }

    /** The conversation as text, for [restore]. */
    public fun save(): String = ffi.save()

    /** Replaces the conversation by a saved one. */
    public fun restore(saved: String) {
        rethrowingNow { ffi.restore(saved) }
    }

    /**
     * Writes what was read to [file], which is there whole or not at all: after a restart, [restoreCache] makes reading it again
     * unnecessary. It holds the conversation in a form that the model can read, so it is as private as the text itself.
     *
     * @throws PannierException.InvalidArgument if nothing was read, or the model was unloaded since.
     * @throws PannierException.Io if it cannot be written.
     */
    public suspend fun saveCache(file: File) {
        rethrowing { ffi.saveCache(file.path) }
    }

    /**
     * Takes what was read from [file], also one of an earlier process. The conversation stays as it is: restore that as well, with
     * [restore]. Loads the model if need be.
     *
     * @return how many tokens need not be read again.
     * @throws PannierException.InvalidArgument if the file is damaged, or was saved with another model or other [ModelOptions]; what was
     * read before is still there.
     * @throws PannierException.Io if it cannot be read.
     */
    public suspend fun restoreCache(file: File): Long = rethrowing { ffi.restoreCache(file.path).toLong() }

    /** Forgets what [KvOptions.policy] does not keep, and gives its memory back. */
    public suspend fun evict(): Eviction = rethrowing { ffi.evict().toPublic() }

    /** Gives back the memory of what was read; the history stays. */
    public fun forget() {
        ffi.forget()
    }

    /** Cancels the running turn, if any; its flow ends in [GenerationEvent.Cancelled]. Never waits. */
    public fun cancel() {
        ffi.cancel()
    }

    /** Cancels the running turn and frees the conversation's memory. Idempotent, never waits. */
    override fun close() {
        ffi.shutdown()
    }

    private class Relay(private val events: SendChannel<GenerationEvent>) : TokenSink {
        val ended = AtomicBoolean()

        override fun onEvent(event: dev.pannier.ffi.GenerationEvent) {
            val told = event.toPublic()
            if (told is GenerationEvent.Terminal) ended.set(true)
            // Never blocks: the channel has no limit. It is closed when the collector is gone.
            events.trySend(told)
        }
    }

    private object Deaf : TokenSink {
        override fun onEvent(event: dev.pannier.ffi.GenerationEvent) = Unit
    }
}
