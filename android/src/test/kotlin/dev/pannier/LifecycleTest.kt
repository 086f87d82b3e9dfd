package dev.pannier

import java.nio.file.Path
import kotlin.time.Duration.Companion.milliseconds
import kotlinx.coroutines.delay
import kotlinx.coroutines.flow.first
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.launch
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir

/** Loading, unloading, background and foreground. */
class LifecycleTest {
    @TempDir
    lateinit var folder: Path

    private val small = ModelOptions(context = 512)
    private val greedy = GenerationOptions.greedy(12)

    @Test
    fun `an unload in between changes no answer`() = test {
        Pannier().use { pannier ->
            val (kept, moved) = pannier.model(smol, small) to pannier.model(smol, small)
            assertEquals(ModelState.Downloaded, kept.state.value)
            val (a, b) = kept.chat() to moved.chat()
            for (question in listOf("Name a colour.", "Another one?", "And a third?")) {
                assertEquals(a.ask(question, greedy).text, b.ask(question, greedy).text)
                moved.unload()
                moved.state.first { it == ModelState.Unloaded }
            }
            assertEquals(a.history, b.history)
            assertEquals(ModelState.Ready, kept.state.first { it == ModelState.Ready })
        }
    }

    @Test
    fun `states are told while a model loads and answers`() = test {
        Pannier().use { pannier ->
            val model = pannier.model(smol, small)
            val progress = mutableListOf<Float>()
            model.load { synchronized(progress) { progress += it } }
            assertEquals(progress.sorted(), progress)
            assertEquals(1f, progress.last())
            assertEquals(ModelState.Ready, model.state.value)
            val info = model.info!!
            assertEquals("llama", info.architecture)
            assertEquals(512, info.context)
            val seen = mutableListOf<ModelState>()
            val watcher = launch { model.state.collect { seen += it } }
            model.chat().send("Count to ten.", greedy).toList()
            model.state.first { it == ModelState.Ready }
            watcher.cancel()
            assertTrue(ModelState.Generating in seen, "$seen")
        }
    }

    @Test
    fun `threads of the engine are daemons, and the same from call to call`() = test {
        Pannier().use { pannier ->
            val threads = mutableListOf<Thread>()
            pannier.model(smol, small).load { synchronized(threads) { threads += Thread.currentThread() } }
            assertTrue(threads.size > 1, "$threads")
            assertEquals(1, threads.distinctBy { System.identityHashCode(it) }.size, "$threads")
            assertTrue(threads.first().isDaemon)
            // Gone with its work.
            threads.first().join(5000)
            assertTrue(!threads.first().isAlive)
        }
    }

    @Test
    fun `the background frees and the foreground restores`() = test {
        Pannier().use { pannier ->
            val model = pannier.load(smol, small)
            val saved = folder.resolve("chat.json").toFile()
            val chat = model.chat(system = "Be brief.", checkpoint = saved)
            chat.ask("Name a colour.", greedy)
            pannier.enterBackground()
            assertEquals(ModelState.Suspended, model.state.value)
            assertEquals(0, pannier.memory().used)
            val copy = model.chat()
            copy.restore(saved.readText())
            assertEquals(chat.history, copy.history)
            pannier.enterForeground()
            assertEquals(ModelState.Ready, model.state.value)
            chat.ask("Another one?", greedy)
            assertEquals(5, chat.history.size)
        }
    }

    @Test
    fun `pressure and idle time unload, the next use loads again`() = test {
        Pannier(idleUnload = 300.milliseconds).use { pannier ->
            val model = pannier.load(smol, small)
            model.state.first { it == ModelState.Unloaded }
            val chat = model.chat()
            chat.ask("Hi", GenerationOptions.greedy(1))
            pannier.onMemoryPressure(MemoryPressure.Critical)
            model.state.first { it == ModelState.Unloaded }
            chat.ask("Hi", GenerationOptions.greedy(1))
            assertEquals(4, chat.history.size)
        }
    }

    @Test
    fun `two models share a budget, the older one makes room`() = test {
        // Less than the file: each model pins what fits and streams the rest, so that two never fit together.
        val budget = MemoryBudget.ofMebibytes(80)
        val need = Pannier.plan(smol, budget, small)
        assertTrue(need.fits && 2 * need.peakBytes > budget.bytes!!, "$need")
        Pannier(budget).use { pannier ->
            val (a, b) = pannier.model(smol, small) to pannier.model(smol, small)
            val (chatA, chatB) = a.chat() to b.chat()
            repeat(2) {
                chatA.ask("Name a colour.", greedy)
                chatB.ask("Name a colour.", greedy)
            }
            assertEquals(chatA.history, chatB.history)
            assertTrue(pannier.memory().peak <= budget.bytes!!)
            assertEquals(ModelState.Unloaded, a.state.first { it != ModelState.Generating })
        }
    }
}
