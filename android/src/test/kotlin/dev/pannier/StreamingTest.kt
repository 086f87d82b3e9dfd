package dev.pannier

import kotlin.time.Duration.Companion.milliseconds
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Dispatchers
import kotlinx.coroutines.async
import kotlinx.coroutines.delay
import kotlinx.coroutines.flow.collect
import kotlinx.coroutines.flow.onEach
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.withContext
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertFalse
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test

/** Answers of the real model, as they arrive. */
class StreamingTest {
    private val greedy = GenerationOptions.greedy(24)

    @Test
    fun `an answer streams and is the same every time`() = test {
        val chat = Shared.model.chat(system = "Answer briefly.")
        val events = chat.send("Name the capital of France.", greedy).toList()
        val end = checkEvents(events) as GenerationEvent.Completed
        assertTrue(events.first() is GenerationEvent.Started)
        assertTrue(events.filterIsInstance<GenerationEvent.Text>().size > 2)
        assertTrue("Paris" in end.answer.text, end.answer.text)
        assertEquals(AnswerSource.OnDevice, end.answer.source)
        assertTrue(end.answer.stats.decodeTokensPerSecond > 0)
        assertEquals(3, chat.history.size)
        assertEquals(end.answer.text, chat.history.last().content)
        val again = Shared.model.chat(system = "Answer briefly.").ask("Name the capital of France.", greedy)
        assertEquals(end.answer.text, again.text)
        // The next turn goes on from what was read.
        val next = chat.send("And of Italy?", greedy).toList()
        assertTrue((next.first() as GenerationEvent.Started).cachedTokens > 0)
    }

    @Test
    fun `two sessions at once answer as each would alone`() = test {
        val questions = listOf("Name a colour.", "Count to five.")
        val alone = questions.map { Shared.model.chat().ask(it, greedy).text }
        val together = questions.map { question ->
            async(Dispatchers.IO) { textOf(Shared.model.chat().send(question, greedy).toList()) }
        }
        assertEquals(alone, together.map { it.await() })
    }

    @Test
    fun `one session does one thing at a time`() = test {
        val chat = Shared.model.chat()
        var refused: Throwable? = null
        val events = chat.send("Tell me a story.", greedy).onEach {
            if (it is GenerationEvent.Started) {
                refused = runCatching { chat.send("And?", greedy).collect() }.exceptionOrNull()
            }
        }.toList()
        assertTrue(refused is PannierException.Busy, "$refused")
        assertTrue(checkEvents(events) is GenerationEvent.Completed)
    }

    @Test
    fun `emoji, CJK and joined sequences arrive whole`() = test {
        val said = "👩‍👩‍👧‍👦 🏳️‍🌈 漢字かな 한국어 é̂ 𝕏"
        val chat = Shared.model.chat()
        // Sampled wildly, answers are full of pieces of characters.
        val wild = GenerationOptions(maxTokens = 48, temperature = 4f, topK = 0, topP = 1f, minP = 0f, seed = 7)
        val events = chat.send(said, wild).toList()
        val end = checkEvents(events) as GenerationEvent.Completed
        for (event in events.filterIsInstance<GenerationEvent.Text>()) {
            assertEquals(event.text, String(event.text.toByteArray()), "a half character in ${event.text}")
        }
        assertEquals(end.answer.text, textOf(events))
        assertEquals(said, chat.history.first().content)
        val other = Shared.model.chat()
        other.restore(chat.save())
        assertEquals(chat.history, other.history)
        // Shown how, the small model repeats an emoji, which takes it several tokens.
        val parrot = Shared.model.chat()
        val turn = listOf(ChatMessage(Role.User, "Say 😀"), ChatMessage(Role.Assistant, "😀😀😀"))
        parrot.setHistory(turn + turn + turn)
        val echo = parrot.send("Say 😀", GenerationOptions.greedy(12)).toList()
        val text = textOf(echo)
        assertTrue("😀" in text, text)
        assertFalse('\uFFFD' in text, text)
        assertTrue(echo.filterIsInstance<GenerationEvent.Text>().any { it.tokens.size > 1 })
    }

    @Test
    fun `a slow collector gets everything and holds nobody up`() = test {
        val slow = Shared.model.chat()
        val collected = mutableListOf<GenerationEvent>()
        val collector = async {
            slow.send("Count to ten.", greedy).collect {
                collected += it
                delay(40.milliseconds)
            }
        }
        delay(20.milliseconds)
        val quick = Shared.model.chat().send("Count to three.", GenerationOptions.greedy(8)).toList()
        checkEvents(quick)
        assertFalse(collector.isCompleted, "the quick one did not wait for the slow collector")
        collector.await()
        checkEvents(collected)
    }

    @Test
    fun `collecting works on every dispatcher`() = test {
        for (dispatcher in listOf(Dispatchers.Default, Dispatchers.IO, Dispatchers.Unconfined)) {
            withContext(dispatcher) {
                checkEvents(Shared.model.chat().send("Hi", GenerationOptions.greedy(4)).toList())
            }
        }
    }

    @Test
    fun `options are checked and take effect`() = test {
        val chat = Shared.model.chat()
        val bad = chat.send("Hi", GenerationOptions(temperature = -1f)).toList()
        val failed = checkEvents(bad) as GenerationEvent.Failed
        assertTrue(failed.error is PannierException.InvalidArgument, "${failed.error}")
        val refused = runCatching { chat.ask("Hi", GenerationOptions(maxTokens = -1)) }.exceptionOrNull()
        assertTrue(refused is PannierException.InvalidArgument, "$refused")
        assertTrue(chat.history.isEmpty(), "a failed turn leaves no trace")
        val top = chat.send("Hi", GenerationOptions(maxTokens = 3, topLogprobs = 2, seed = 1)).toList()
        assertTrue(top.filterIsInstance<GenerationEvent.Text>().all { t -> t.tokens.all { it.top.size == 2 } })
        val stopped = Shared.model.chat().ask("Count: 1 2 3", GenerationOptions(maxTokens = 40, stop = listOf("e")))
        assertFalse("e" in stopped.text, stopped.text)
        val short = Shared.model.chat().ask("Tell a long story.", GenerationOptions(deadline = 150.milliseconds))
        assertEquals(FinishReason.Deadline, short.finishReason)
    }

    @Test
    fun `too long a conversation is refused, not cut`() = test {
        val chat = Shared.model.chat()
        val long = "word ".repeat(2000)
        assertTrue(chat.tokenCount(long) > 1024)
        val error = runCatching { chat.ask(long) }.exceptionOrNull() as PannierException.ContextOverflow
        assertEquals(1024, error.limit)
        assertTrue(error.tokens > 2000)
        assertFalse("word" in error.message.orEmpty())
    }
}
