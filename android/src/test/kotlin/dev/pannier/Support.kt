package dev.pannier

import java.io.File
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.runBlocking
import kotlinx.coroutines.withTimeout
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue

/** The folder of real models: PANNIER_MODELS, or the user's cache. */
internal val modelFolder: File =
    System.getenv("PANNIER_MODELS")?.takeIf { it.isNotEmpty() }?.let(::File)
        ?: File(System.getenv("XDG_CACHE_HOME") ?: (System.getProperty("user.home") + "/.cache"), "pannier/models")

internal fun modelFile(name: String): File = File(modelFolder, name).also {
    assertTrue(it.isFile, "$name is missing: `cargo xtask models` fetches it, or set PANNIER_MODELS to its folder")
}

internal val smol: File get() = modelFile("SmolLM2-135M-Instruct.Q4_1.gguf")

/** One loaded model for all tests that do not load and close themselves; they share it as sessions do. */
internal object Shared {
    val pannier = Pannier()
    val model: Model = pannier.model(smol, ModelOptions(context = 1024))
}

/** Nothing here may hang. */
internal fun test(work: suspend CoroutineScope.() -> Unit) = runBlocking(Dispatchers.Default) {
    withTimeout(240_000) { work() }
}

/** Checks the order of events, and that there is exactly one end, the last. */
internal fun checkEvents(events: List<GenerationEvent>): GenerationEvent.Terminal {
    assertEquals(1, events.count { it is GenerationEvent.Terminal }, "$events")
    val end = events.last()
    assertTrue(end is GenerationEvent.Terminal, "$events")
    assertTrue(events.count { it is GenerationEvent.Started } <= 1)
    if (end is GenerationEvent.Completed) assertEquals(end.answer.text, textOf(events))
    return end as GenerationEvent.Terminal
}

internal fun textOf(events: List<GenerationEvent>): String =
    events.filterIsInstance<GenerationEvent.Text>().joinToString("") { it.text }

/** Lines of /proc/self/status, in KiB, or 0 elsewhere. */
internal fun status(key: String): Long =
    File("/proc/self/status").takeIf { it.exists() }?.readLines()?.firstOrNull { it.startsWith("$key:") }
        ?.filter { it.isDigit() }?.toLong() ?: 0

internal fun engineThreads(): List<String> =
    File("/proc/self/task").listFiles().orEmpty().mapNotNull { task ->
        runCatching { File(task, "comm").readText().trim() }.getOrNull()?.takeIf { it.startsWith("pannier") }
    }
