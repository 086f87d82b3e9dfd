package dev.pannier.sample

import dev.pannier.Cloud
import dev.pannier.CloudPayload
import dev.pannier.CloudPrompt
import dev.pannier.CloudTransport
import dev.pannier.ModelStore
import dev.pannier.Pannier
import dev.pannier.smol
import dev.pannier.test
import java.io.File
import java.nio.file.Files
import java.nio.file.Path
import kotlinx.coroutines.delay
import kotlinx.coroutines.flow.first
import kotlinx.coroutines.flow.flowOf
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertFalse
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir

/** The sample without its views, on the real engine. */
class ChatModelTest {
    @TempDir
    lateinit var folder: Path

    private val name = "smollm2-135m-instruct"

    /** A store that has the model. */
    private fun filled(): ModelStore {
        val models = folder.resolve("models").toFile().apply { mkdirs() }
        Files.createSymbolicLink(File(models, smol.name).toPath(), smol.toPath())
        return ModelStore(models)
    }

    @Test
    fun `a chosen model is planned, answers, and shows speed, memory and source`() = test {
        Pannier().use { pannier ->
            val chat = ChatModel(pannier, filled(), this)
            assertEquals(setOf(name), chat.screen.value.here)
            chat.choose(name)
            chat.settle()
            val plan = chat.screen.value.plan!!
            assertTrue(plan.fits)
            assertEquals(0, pannier.memory().used, "nothing is loaded before the user speaks")
            chat.say("Name a colour.")
            chat.say("ignored while it answers")
            chat.settle()
            val screen = chat.screen.value
            assertNull(screen.notice)
            assertEquals(listOf(true, false), screen.lines.map { it.fromUser })
            assertTrue(screen.lines.last().text.isNotBlank())
            assertTrue(screen.lines.last().badge!!.startsWith("on device"))
            assertTrue("tokens/s" in screen.meter && "MB" in screen.meter, screen.meter)
            chat.clear()
            assertTrue(chat.screen.value.lines.isEmpty())
        }
    }

    @Test
    fun `stop keeps what was said`() = test {
        Pannier().use { pannier ->
            val chat = ChatModel(pannier, filled(), this)
            chat.choose(name)
            chat.settle()
            chat.say("Tell me a very long story about a river.")
            chat.screen.first { it.lines.lastOrNull()?.text?.isNotEmpty() == true }
            chat.stop()
            chat.settle()
            val last = chat.screen.value.lines.last()
            assertEquals("stopped", last.badge)
            assertTrue(last.text.isNotEmpty())
            assertFalse(chat.screen.value.answering)
        }
    }

    @Test
    fun `in airplane mode a model that is here works, and another one says why not`() = test {
        Pannier().use { pannier ->
            val empty = ChatModel(pannier, ModelStore(folder.resolve("none").toFile()), this, isOnline = { false })
            empty.choose(name)
            empty.settle()
            assertTrue("No network" in empty.screen.value.notice.orEmpty())
            assertFalse(empty.screen.value.online)
            val chat = ChatModel(pannier, filled(), this, isOnline = { false })
            chat.choose(name)
            chat.say("too early")
            chat.settle()
            chat.say("Hi")
            chat.settle()
            assertTrue(chat.screen.value.lines.last().text.isNotBlank())
        }
    }

    @Test
    fun `an unsure answer is replaced by the cloud's, only if the user allows it`() = test {
        val cloud = Cloud.custom(
            object : CloudTransport {
                override val name = "play"
                override fun prepare(prompt: CloudPrompt) = CloudPayload("test", prompt.messages.last().content)
                override fun send(payload: CloudPayload) = flowOf("The cloud ", "says blue.")
            },
            consent = { true },
        )
        Pannier().use { pannier ->
            val chat = ChatModel(pannier, filled(), this, cloud = cloud)
            for (allowed in listOf(false, true)) {
                chat.apply(ChatSettings(cloudAllowed = allowed, minConfidence = 1.01))
                chat.choose(name)
                chat.settle()
                chat.say("Name a colour.")
                chat.settle()
                val line = chat.screen.value.lines.last()
                assertEquals(allowed, line.badge == "cloud", "$line")
                assertEquals(allowed, line.text == "The cloud says blue.", "$line")
                assertEquals(allowed, line.reason != null, "$line")
            }
        }
    }

    @Test
    fun `a small budget is told before anything is loaded`() = test {
        Pannier().use { pannier ->
            val chat = ChatModel(pannier, filled(), this)
            chat.apply(ChatSettings(budgetMebibytes = 8))
            chat.choose(name)
            chat.settle()
            assertFalse(chat.screen.value.plan!!.fits)
            assertTrue("does not fit" in chat.screen.value.notice.orEmpty())
            chat.apply(ChatSettings(budgetMebibytes = 512))
            chat.settle()
            assertTrue(chat.screen.value.plan!!.fits)
        }
    }

    @Test
    fun `a conversation survives the background and a new start`() = test {
        val saved = folder.resolve("chat.json").toFile()
        val store = filled()
        var before = emptyList<ChatLine>()
        Pannier().use { pannier ->
            val chat = ChatModel(pannier, store, this, checkpoint = saved)
            chat.choose(name)
            chat.settle()
            chat.say("Name a colour. 🎨")
            chat.settle()
            before = chat.screen.value.lines
            chat.enterBackground()
            assertEquals(0, pannier.memory().used)
            chat.enterForeground()
        }
        Pannier().use { pannier ->
            val chat = ChatModel(pannier, store, this, checkpoint = saved)
            chat.choose(name)
            chat.settle()
            assertEquals(before.map { it.text }, chat.screen.value.lines.map { it.text })
        }
    }
}
