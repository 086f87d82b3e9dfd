package dev.pannier

import java.io.File
import java.nio.file.Path
import kotlinx.coroutines.flow.toList
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertFalse
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir

/** What is refused, and how. */
class ErrorTest {
    @TempDir
    lateinit var folder: Path

    private suspend fun loadError(file: File, budget: MemoryBudget = MemoryBudget.Unlimited): PannierException =
        Pannier(budget).use { pannier ->
            runCatching { pannier.load(file) }.exceptionOrNull() as PannierException
        }

    private fun file(name: String, bytes: ByteArray): File = folder.resolve(name).toFile().apply { writeBytes(bytes) }

    @Test
    fun `files that are no models are typed errors without a path`() = test {
        val whole = smol.readBytes().copyOf(4 shl 20)
        val cases = mapOf(
            "absent.gguf" to null,
            "empty.gguf" to ByteArray(0),
            "text.gguf" to "This is no model.".toByteArray(),
            "cut.gguf" to whole,
            "header.gguf" to whole.copyOf(20),
        )
        for ((name, bytes) in cases) {
            val file = bytes?.let { file(name, it) } ?: folder.resolve(name).toFile()
            val error = loadError(file)
            if (bytes == null) assertTrue(error is PannierException.NotFound, "$name: $error")
            else assertTrue(error is PannierException.InvalidModel, "$name: $error")
            assertFalse(folder.toString() in error.message.orEmpty(), error.message)
        }
        assertTrue(loadError(folder.toFile()) is PannierException.NotFound)
    }

    @Test
    fun `a budget that is too small is refused with the plan`() = test {
        val budget = MemoryBudget.ofMebibytes(8)
        val error = loadError(smol, budget) as PannierException.OutOfBudget
        val plan = error.plan!!
        assertFalse(plan.fits)
        assertEquals(budget.bytes, plan.budgetBytes)
        assertTrue(plan.peakBytes > budget.bytes!!)
        assertTrue(plan.notes.isNotEmpty())
    }

    @Test
    fun `a plan is made without loading, and what it allows can be loaded`() = test {
        val plan = Pannier.plan(smol, options = ModelOptions(context = 512))
        assertTrue(plan.fits)
        assertEquals(512, plan.context)
        assertTrue(plan.residentBytes > 90_000_000)
        // Mapped weights count as well: a budget without room for them means streaming.
        val budget = MemoryBudget.ofBytes(plan.peakBytes + plan.residentBytes + (16 shl 20))
        Pannier(budget).use { pannier ->
            assertTrue(pannier.plan(smol, ModelOptions(context = 512)).fits)
            val model = pannier.load(smol, ModelOptions(context = 512))
            model.chat().ask("Name a colour.", GenerationOptions.greedy(8))
            val memory = pannier.memory()
            assertTrue(memory.peak <= budget.bytes!!, "$memory")
            assertTrue(memory.used > 0)
        }
        assertTrue(runCatching { Pannier.plan(folder.resolve("absent").toFile()) }.exceptionOrNull() is PannierException.NotFound)
    }

    @Test
    fun `a model without a chat template says so, and no prompt is told`() = test {
        Pannier().use { pannier ->
            val base = pannier.model(modelFile("gemma-3-270m-q4_k_m.gguf"), ModelOptions(context = 256))
            val events = base.chat().send("a secret of mine", GenerationOptions.greedy(2)).toList()
            val failed = checkEvents(events) as GenerationEvent.Failed
            assertTrue(failed.error is PannierException.Template, "${failed.error}")
            assertFalse("secret" in failed.error.message.orEmpty())
        }
    }

    @Test
    fun `what is no saved conversation is refused without quoting it`() {
        val chat = Shared.model.chat()
        val error = runCatching { chat.restore("{\"secret\": 1}") }.exceptionOrNull()
        assertTrue(error is PannierException.InvalidArgument, "$error")
        assertFalse("secret" in error?.message.orEmpty())
        val tools = runCatching { Shared.model.chat(toolsJson = "not json") }.exceptionOrNull()
        assertTrue(tools is PannierException.InvalidArgument, "$tools")
        val fields = runCatching {
            chat.setHistory(listOf(ChatMessage(Role.User, "x", fieldsJson = "[1]")))
        }.exceptionOrNull()
        assertTrue(fields is PannierException.InvalidArgument, "$fields")
    }
}
