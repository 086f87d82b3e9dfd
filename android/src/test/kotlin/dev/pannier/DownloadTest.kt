package dev.pannier

import com.sun.net.httpserver.HttpExchange
import com.sun.net.httpserver.HttpServer
import java.io.File
import java.net.InetSocketAddress
import java.nio.file.Path
import java.security.MessageDigest
import java.util.Random
import java.util.concurrent.Executors
import java.util.concurrent.atomic.AtomicInteger
import kotlinx.coroutines.flow.collect
import kotlinx.coroutines.flow.first
import kotlinx.coroutines.flow.toList
import org.junit.jupiter.api.AfterEach
import org.junit.jupiter.api.Assertions.assertArrayEquals
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertFalse
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir

/** Downloads from a server on this machine; what servers do wrong in detail is tested in the engine. */
class DownloadTest {
    @TempDir
    lateinit var folder: Path

    private val body = ByteArray(3 shl 20).also {
        Random(5).nextBytes(it)
        "GGUF".toByteArray().copyInto(it)
    }
    private val sha256 = MessageDigest.getInstance("SHA-256").digest(body).joinToString("") { "%02x".format(it) }
    private val requests = AtomicInteger()
    private val threads = Executors.newCachedThreadPool()
    private val server = HttpServer.create(InetSocketAddress("127.0.0.1", 0), 0).apply {
        executor = threads
        createContext("/whole.gguf") { serve(it, body, cutAt = null) }
        createContext("/cut.gguf") { serve(it, body, cutAt = if (requests.incrementAndGet() < 4) 700_000 else null) }
        createContext("/wrong.gguf") { serve(it, body.clone().also { b -> b[100] = (b[100] + 1).toByte() }, cutAt = null) }
        createContext("/slow.gguf") { serve(it, body, cutAt = null, pause = 20) }
        start()
    }

    private fun serve(exchange: HttpExchange, bytes: ByteArray, cutAt: Int?, pause: Long = 0) {
        val from = exchange.requestHeaders.getFirst("Range")?.removePrefix("bytes=")?.substringBefore('-')?.toInt() ?: 0
        exchange.responseHeaders.add("ETag", "\"v1\"")
        if (from > 0) exchange.responseHeaders.add("Content-Range", "bytes $from-${bytes.size - 1}/${bytes.size}")
        exchange.sendResponseHeaders(if (from > 0) 206 else 200, (bytes.size - from).toLong())
        val end = if (cutAt == null) bytes.size else minOf(bytes.size, from + cutAt)
        try {
            var at = from
            while (at < end) {
                val n = minOf(64 shl 10, end - at)
                exchange.responseBody.write(bytes, at, n)
                at += n
                if (pause > 0) Thread.sleep(pause)
            }
            if (end == bytes.size) exchange.responseBody.close() else exchange.close()
        } catch (e: java.io.IOException) {
            exchange.close()
        }
    }

    private fun url(path: String) = "http://127.0.0.1:${server.address.port}/$path"

    @AfterEach
    fun stop() {
        server.stop(0)
        threads.shutdownNow()
    }

    private val store get() = ModelStore(folder.toFile())

    @Test
    fun `a download arrives whole, with progress, and is not repeated`() = test {
        val events = store.download(listOf(url("whole.gguf")), bytes = body.size.toLong(), sha256 = sha256).toList()
        val done = events.last() as DownloadEvent.Completed
        assertArrayEquals(body, done.file.readBytes())
        assertTrue(events.first() is DownloadEvent.Started)
        assertTrue(events.any { it is DownloadEvent.Progress })
        assertEquals(listOf("whole.gguf"), store.list().map { it.file.name })
        assertEquals(body.size.toLong(), store.diskUse())
        val again = store.download(listOf(url("whole.gguf")), bytes = body.size.toLong(), sha256 = sha256).toList()
        assertTrue(again.none { it is DownloadEvent.Started })
        assertTrue(store.delete("whole.gguf"))
        assertFalse(store.delete("whole.gguf"))
        assertTrue(store.list().isEmpty())
    }

    @Test
    fun `cut connections are resumed`() = test {
        val events = store.download(listOf(url("cut.gguf")), sha256 = sha256).toList()
        assertArrayEquals(body, (events.last() as DownloadEvent.Completed).file.readBytes())
        assertTrue(events.filterIsInstance<DownloadEvent.Started>().any { it.resumedFrom > 0 }, "$events")
    }

    @Test
    fun `wrong bytes never get the final name, and the next mirror is tried`() = test {
        val error = runCatching { store.download(listOf(url("wrong.gguf")), file = "m.gguf", sha256 = sha256).collect() }
            .exceptionOrNull()
        assertTrue(error is PannierException.InvalidModel, "$error")
        assertFalse(folder.resolve("m.gguf").toFile().exists())
        val mirrors = listOf(url("absent.gguf"), url("wrong.gguf"), url("whole.gguf"))
        val events = store.download(mirrors, file = "m.gguf", sha256 = sha256).toList()
        assertTrue(events.any { it is DownloadEvent.SourceFailed })
        assertArrayEquals(body, folder.resolve("m.gguf").toFile().readBytes())
    }

    @Test
    fun `cancelling keeps the bytes, and a model's state follows`() = test {
        Pannier().use { pannier ->
            val model = pannier.model(File(folder.toFile(), "slow.gguf"))
            assertEquals(ModelState.NotDownloaded, model.state.value)
            store.download(listOf(url("slow.gguf")), sha256 = sha256, follower = model)
                .first { it is DownloadEvent.Progress && it.done > 200_000 }
            model.state.first { it == ModelState.NotDownloaded }
            assertFalse(model.file.exists())
            assertTrue(store.diskUse() > 200_000)
            val rest = store.download(listOf(url("slow.gguf")), sha256 = sha256, follower = model).toList()
            assertTrue((rest.first { it is DownloadEvent.Started } as DownloadEvent.Started).resumedFrom > 200_000)
            assertArrayEquals(body, model.file.readBytes())
            assertEquals(ModelState.Downloaded, model.state.value)
        }
    }

    @Test
    fun `what cannot be downloaded is a typed error without the address`() = test {
        for ((urls, file) in listOf(
            listOf("ftp://example.org/token-4711") to null,
            listOf("http://example.org/token-4711") to null,
            listOf("https://example.org/token-4711") to "../token-4711.gguf",
        )) {
            val error = runCatching { store.download(urls, file).collect() }.exceptionOrNull()
            assertTrue(error is PannierException.InvalidArgument, "$error")
            assertFalse("4711" in error?.message.orEmpty())
        }
        assertTrue(runCatching { store.download("no such model").collect() }.exceptionOrNull() is PannierException.NotFound)
        val gone = runCatching { store.download(listOf(url("absent.gguf")), sha256 = sha256).collect() }.exceptionOrNull()
        assertTrue(gone is PannierException.Network, "$gone")
    }

    @Test
    fun `known models are listed and verified`() = test {
        assertTrue(store.known.any { it.name == "smollm2-135m-instruct" && it.instruct })
        assertEquals(null, store.find("smollm2-135m-instruct"))
        val real = ModelStore(modelFolder)
        assertEquals(smol.name, real.find("smollm2-135m-instruct")?.name)
        assertTrue(real.verify("smollm2-135m-instruct"))
    }
}
