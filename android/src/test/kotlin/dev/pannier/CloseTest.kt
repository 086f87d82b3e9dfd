package dev.pannier

import com.sun.jna.Function
import java.io.File
import java.nio.file.Files
import kotlin.system.measureNanoTime
import kotlinx.coroutines.async
import kotlinx.coroutines.delay
import kotlinx.coroutines.flow.collect
import kotlinx.coroutines.flow.toList
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Tag
import org.junit.jupiter.api.Test

/** Closing at every moment. */
class CloseTest {
    private val endless = GenerationOptions(temperature = 1f, topK = 0, seed = 3)

    @Test
    fun `closing and deleting do not wait for a generation`() = test {
        // The bound is the promise of the API; the best of five leaves out a busy machine.
        val times = (1..5).map {
            val folder = Files.createTempDirectory("pannier").toFile()
            val copy = File(folder, "SmolLM2-135M-Instruct.Q4_1.gguf")
            // The same bytes under another name; a copy where the file systems differ.
            runCatching { Files.createLink(copy.toPath(), smol.toPath()) }.onFailure { smol.copyTo(copy) }
            Pannier().use { pannier ->
                val model = pannier.load(copy, ModelOptions(context = 512))
                val chat = model.chat()
                val events = mutableListOf<GenerationEvent>()
                val running = async { chat.send("Tell me a very long story.", endless).collect { events += it } }
                while (events.none { it is GenerationEvent.Text }) delay(1)
                val delete = measureNanoTime { assertTrue(ModelStore(folder).delete(copy.name)) }
                val close = measureNanoTime { model.close() }
                running.await()
                assertTrue(checkEvents(events) is GenerationEvent.Cancelled)
                folder.deleteRecursively()
                maxOf(delete, close) / 1e6
            }
        }
        println("close and delete during a generation: ${times.map { "%.2f".format(it) }} ms")
        assertTrue(times.min() < 20, "$times")
    }

    @Test
    fun `closing twice and using afterwards`() = test {
        val pannier = Pannier()
        val model = pannier.load(smol, ModelOptions(context = 256))
        val chat = model.chat()
        chat.ask("Hi", GenerationOptions.greedy(2))
        chat.close()
        chat.close()
        for (call in listOf<suspend () -> Unit>(
            { chat.ask("Hi") },
            { chat.send("Hi").toList() },
            { chat.setHistory(emptyList()) },
            { chat.tokenCount("Hi") },
        )) {
            assertTrue(runCatching { call() }.exceptionOrNull() is PannierException.Closed)
        }
        chat.cancel()
        assertEquals(2, chat.history.size, "the history can still be saved")
        val other = model.chat()
        model.close()
        model.close()
        assertTrue(runCatching { other.ask("Hi") }.exceptionOrNull() is PannierException.Closed)
        assertTrue(runCatching { model.load() }.exceptionOrNull() is PannierException.Closed)
        assertEquals(ModelState.Unloaded, model.state.value)
        assertEquals(null, model.info)
        pannier.close()
        pannier.close()
    }

    @Test
    fun `closing the session during a generation ends it once`() = test {
        val chat = Shared.model.chat()
        val events = mutableListOf<GenerationEvent>()
        chat.send("Tell me a very long story.", endless).collect {
            events += it
            if (it is GenerationEvent.Text) chat.close()
        }
        assertTrue(checkEvents(events) is GenerationEvent.Cancelled)
    }

    @Test
    fun `ten cycles of load, generate, close leave nothing behind`() = cycles(warm = 10, measured = 10, slack = 0.06)

    @Test
    @Tag("long")
    fun `two hundred cycles of load, generate, close leave nothing behind`() =
        cycles(warm = 40, measured = 160, slack = 0.02)

    private fun cycles(warm: Int, measured: Int, slack: Double) = test {
        Shared.pannier.onMemoryPressure(MemoryPressure.Critical)
        suspend fun cycle() = Pannier().use { pannier ->
            val model = pannier.load(smol, ModelOptions(context = 256))
            model.chat().use { it.ask("Name a colour.", GenerationOptions.greedy(4)) }
            model.close()
        }
        repeat(warm) { cycle() }
        val readings = mutableListOf(resident())
        suspend fun ten() {
            repeat(10) { cycle() }
            readings += resident()
        }
        repeat(measured / 10) { ten() }
        // Single readings may be high; a leak is in all the late ones.
        val some = maxOf(1, readings.size / 3)
        fun middle(of: List<Long>) = of.sorted()[some / 2]
        val before = middle(readings.take(some))
        fun after() = middle(readings.takeLast(some))
        // More cycles tell noise and leak apart: noise goes away, a leak grows.
        for (i in 1..5) if (after() > before * (1 + slack)) ten()
        val threads = lingering()
        println("cycles: $measured after $warm, anonymous memory every ten in KiB: $readings, engine threads left: $threads")
        assertTrue(after() <= before * (1 + slack), "$before -> ${after()} KiB")
        assertTrue(threads.isEmpty(), "$threads")
    }

    /** Anonymous memory in KiB without the Java heap, once everything is released that is going to be. */
    private suspend fun resident(): Long {
        lingering()
        // The heap has one size, and all of it is resident: see pom.xml.
        val heap = System.getProperty("pannier.heap").toLong() shl 10
        // The compilers of the JVM come and go, so one reading may be high; what leaks is in every reading.
        return (1..5).minOf {
            System.gc()
            trim()
            delay(50)
            status("RssAnon") - heap
        }
    }

    /** Gives free memory that the allocator keeps for later to the system: it is no leak. Only glibc knows how. */
    private fun trim() {
        runCatching { Function.getFunction("c", "malloc_trim").invokeInt(arrayOf(0L)) }
    }

    /** The threads of the engine that do not end within two seconds. */
    private suspend fun lingering(): List<String> {
        repeat(100) {
            if (engineThreads().isEmpty()) return emptyList()
            delay(20)
        }
        return engineThreads()
    }
}
