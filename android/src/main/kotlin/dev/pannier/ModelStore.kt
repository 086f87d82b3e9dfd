package dev.pannier

import dev.pannier.ffi.CancelHandle
import dev.pannier.ffi.DownloadSink
import dev.pannier.ffi.DownloadUpdate
import dev.pannier.ffi.Store
import java.io.File
import kotlinx.coroutines.channels.Channel
import kotlinx.coroutines.channels.SendChannel
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.buffer
import kotlinx.coroutines.flow.channelFlow

/**
 * A folder of model files. A file has its final name only when it is whole and verified.
 *
 * @property folder the folder; it is created when something is downloaded. Apps pass a private one.
 */
public class ModelStore(public val folder: File) {
    init {
        prepareEngineThreads()
    }

    private val ffi = Store(folder.path)

    /** The models that are known by name, smallest first. */
    public val known: List<KnownModel> get() = ffi.known().map { it.toPublic() }

    /** The model files in the folder. */
    public fun list(): List<StoredModel> = rethrowingNow { ffi.list().map { it.toPublic() } }

    /** The file of a known model, or `null` if it is not here, or not whole. */
    public fun find(name: String): File? = try {
        File(ffi.locate(name))
    } catch (e: dev.pannier.ffi.PannierException.NotFound) {
        null
    } catch (e: dev.pannier.ffi.PannierException.InvalidModel) {
        null
    } catch (e: dev.pannier.ffi.PannierException) {
        throw e.toPublic()
    }

    /** Bytes that the folder takes, unfinished downloads included. */
    public fun diskUse(): Long = rethrowingNow { ffi.diskUse().toLong() }

    /** Deletes a model's file, finished or not; answers whether something was there. A model that is loaded from it goes on. */
    public fun delete(name: String): Boolean = rethrowingNow { ffi.delete(name) }

    /** Reads the file of a known model again; answers whether it is what it should be. */
    public suspend fun verify(name: String): Boolean = rethrowing { ffi.verify(name) }

    /**
     * Downloads a known model, resuming what was begun before. Ends with [DownloadEvent.Completed], or throws. Cancelling the
     * collector stops it; the bytes are kept.
     *
     * @param follower a model whose [Model.state] is to follow.
     */
    public fun download(name: String, follower: Model? = null): Flow<DownloadEvent> =
        download(name, emptyList(), null, null, follower)

    /**
     * Downloads from addresses that hold the same bytes, best first.
     *
     * @param file name of the file in the folder, ending in `.gguf`; `null`: as in the first address.
     * @param bytes exact size, where known.
     * @param sha256 digest, where known. Without it, plain HTTP is refused.
     */
    public fun download(
        urls: List<String>,
        file: String? = null,
        bytes: Long? = null,
        sha256: String? = null,
        follower: Model? = null,
    ): Flow<DownloadEvent> {
        require(urls.isNotEmpty()) { "no address was given" }
        return download(file.orEmpty(), urls, bytes, sha256, follower)
    }

    private fun download(
        name: String,
        urls: List<String>,
        bytes: Long?,
        sha256: String?,
        follower: Model?,
    ): Flow<DownloadEvent> = channelFlow {
        val cancel = CancelHandle()
        try {
            val done = rethrowing {
                ffi.download(name, urls, bytes?.toULong(), sha256, follower?.ffi, Relay(channel), cancel)
            }
            send(DownloadEvent.Completed(File(done.path), done.bytes.toLong()))
        } finally {
            cancel.cancel()
            cancel.close()
        }
    }.buffer(Channel.UNLIMITED)

    private class Relay(private val events: SendChannel<DownloadEvent>) : DownloadSink {
        override fun onUpdate(update: DownloadUpdate) {
            events.trySend(update.toPublic())
        }
    }
}

/**
 * A model that is known by name.
 *
 * @property about what it is, in one line.
 * @property instruct whether it was tuned to chat.
 */
public data class KnownModel(
    public val name: String,
    public val about: String,
    public val licence: String,
    public val file: String,
    public val bytes: Long,
    public val sha256: String,
    public val instruct: Boolean,
)

/**
 * A model file.
 *
 * @property name the name, if it is a known model.
 */
public data class StoredModel(public val file: File, public val bytes: Long, public val name: String?)
