package dev.pannier

import java.util.Random
import kotlin.time.TimeSource
import kotlin.time.Duration.Companion.microseconds
import kotlinx.coroutines.cancelAndJoin
import kotlinx.coroutines.delay
import kotlinx.coroutines.flow.collect
import kotlinx.coroutines.flow.first
import kotlinx.coroutines.flow.take
import kotlinx.coroutines.flow.toList
import kotlinx.coroutines.launch
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Tag
import org.junit.jupiter.api.Test

/** Cancelling, from every side. */
class CancelTest {
    private val endless = GenerationOptions(temperature = 1f, topK = 0, seed = 3)

    @Test
    fun `cancelling the session ends the flow in one Cancelled event`() = test {
        val chat = Shared.model.chat()
        val events = mutableListOf<GenerationEvent>()
        chat.send("Tell me a very long story.", endless).collect {
            events += it
            if (events.count { e -> e is GenerationEvent.Text } == 3) chat.cancel()
        }
        assertTrue(checkEvents(events) is GenerationEvent.Cancelled)
        assertEquals(2, chat.history.size, "what the user has seen is part of the history")
    }

    @Test
    fun `cancelling the collector cancels the generation`() = test {
        val chat = Shared.model.chat()
        val some = chat.send("Tell me a very long story.", endless).take(5).toList()
        assertEquals(5, some.size)
        settled(chat)
        val job = launch { chat.send("Go on.", endless).collect() }
        delay(100)
        job.cancelAndJoin()
        settled(chat)
    }

    @Test
    fun `a collector that throws cancels the generation and gets its exception`() = test {
        val chat = Shared.model.chat()
        val thrown = runCatching {
            chat.send("Tell me a very long story.", endless).collect { if (it is GenerationEvent.Text) error("mine") }
        }.exceptionOrNull()
        assertEquals("mine", thrown?.message)
        settled(chat)
    }

    @Test
    fun `a hundred cancels at random moments`() = cancels(100)

    @Test
    @Tag("long")
    fun `a thousand cancels at random moments`() = cancels(1000)

    private fun cancels(times: Int) = test {
        val random = Random(42)
        val chat = Shared.model.chat()
        chat.ask("Hi", GenerationOptions.greedy(1))
        val (ends, starts) = mutableListOf<Long>() to mutableListOf<Long>()
        repeat(times) { round ->
            val events = mutableListOf<GenerationEvent>()
            val job = launch {
                chat.setHistory(emptyList())
                chat.send("Tell me a story.", endless.copy(seed = round.toLong(), maxTokens = 12)).collect { events += it }
            }
            // From before the first event to the middle of the answer.
            delay(random.nextInt(60_000).microseconds)
            chat.cancel()
            val mark = TimeSource.Monotonic.markNow()
            fun now() = mark.elapsedNow().inWholeMicroseconds
            job.join()
            val ended = now()
            var started = 0L
            // The session is free when the end is told: the next one starts at once.
            chat.setHistory(emptyList())
            chat.send("Hi", GenerationOptions.greedy(1)).first { (it is GenerationEvent.Started).also { _ -> started = now() } }
            // Not one that was cancelled before it began, and then ran to its end.
            if (checkEvents(events) is GenerationEvent.Cancelled) {
                ends += ended
                starts += started
            }
            settled(chat)
        }
        val cancelled = starts.size
        fun told(of: List<Long>) = of.sorted().let { s -> listOf(0.5, 0.99, 1.0).map { s[((s.size - 1) * it).toInt()] / 1000.0 } }
        val slow = starts.indices.sortedBy { -starts[it] }.take(3).joinToString { "${ends[it] / 1000.0} of ${starts[it] / 1000.0}" }
        println("cancels: $cancelled of $times were cancelled; ms from the cancel, median, 99% and worst: to the end ${told(ends)}, " +
            "to the next start ${told(starts)}; the end's part of the slowest: $slow")
        assertTrue(cancelled > times / 4, "$cancelled")
        // The bound is the promise of the API; one of a hundred may be late on a busy machine.
        assertTrue(told(starts)[1] < 50, "${told(starts)} ms")
    }
}

/** Waits until a cancelled turn has let go of the session. */
internal suspend fun settled(chat: ChatSession) {
    repeat(2000) {
        try {
            chat.setHistory(chat.history)
            return
        } catch (e: PannierException.Busy) {
            delay(1)
        }
    }
    error("the session stayed busy")
}
