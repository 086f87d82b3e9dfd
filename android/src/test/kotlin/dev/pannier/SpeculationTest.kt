package dev.pannier

import java.io.File
import java.nio.file.Path
import kotlinx.coroutines.flow.onEach
import kotlinx.coroutines.flow.toList
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertFalse
import org.junit.jupiter.api.Assertions.assertNull
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir

/** Guessed tokens: faster or not, never another answer. The model drafts for itself, so all its guesses are right. */
class SpeculationTest {
    @TempDir
    lateinit var folder: Path

    private val greedy = GenerationOptions.greedy(40)
    private val drafted = ModelOptions(context = 512, draft = smol)

    /** Its answer quotes it. */
    private val question = "Repeat: the quick brown fox jumps over the lazy dog. the quick brown fox jumps over the lazy dog."
    private val long = greedy.copy(maxTokens = 64)

    private suspend fun <T> on(options: ModelOptions, work: suspend (Pannier, Model) -> T): T =
        Pannier().use { pannier -> work(pannier, pannier.model(smol, options)) }

    private suspend fun failure(work: suspend () -> Unit): Throwable? = runCatching { work() }.exceptionOrNull()

    /** The kinds of all notices of a long answer, and its end; [act] is called once, when the third text has come. */
    private suspend fun run(model: Model, options: GenerationOptions, act: () -> Unit = {}): Pair<List<NoticeKind>, GenerationEvent> {
        var texts = 0
        val events = model.chat().send("Tell me a story about a dog.", options).onEach {
            if (it is GenerationEvent.Text && ++texts == 3) act()
        }.toList()
        return events.filterIsInstance<GenerationEvent.Notice>().map { it.kind } to checkEvents(events)
    }

    @Test
    fun `guesses change the speed and not the answer`() = test {
        on(drafted) { _, model ->
            suspend fun ask(options: GenerationOptions) = model.chat().ask(question, options)
            val plain = ask(greedy.copy(speculation = Speculation.Off))
            assertEquals(0, plain.stats.proposedTokens)
            assertNull(plain.stats.acceptanceRate)
            assertEquals(1.0, plain.stats.tokensPerPass)
            assertNull(plain.stats.flashBytesPerToken)
            assertTrue(plain.stats.generatedTokens > 15, "$plain")
            // A model that was loaded with a draft model uses it if nothing else is said.
            val own = ask(greedy.copy(draftLength = 3))
            assertEquals(plain.text, own.text)
            assertEquals(1.0, own.stats.acceptanceRate)
            assertEquals(own.stats.proposedTokens, own.stats.acceptedTokens)
            assertTrue(own.stats.tokensPerPass!! > 2.5, "${own.stats}")
            val quoted = ask(greedy.copy(speculation = Speculation.Ngram, draftLength = 5))
            assertEquals(plain.text, quoted.text)
            assertTrue(quoted.stats.acceptedTokens > 5 && quoted.stats.acceptanceRate!! in 0.1..1.0, "${quoted.stats}")
            assertTrue(quoted.stats.tokensPerPass!! > 1.2, "${quoted.stats}")
            for (speculation in Speculation.entries) {
                assertEquals(plain.text, ask(greedy.copy(speculation = speculation)).text, "$speculation")
            }
            val drawn = GenerationOptions(maxTokens = 24, temperature = 1f, seed = 7)
            val expected = ask(drawn.copy(speculation = Speculation.Off)).text
            assertEquals(expected, ask(drawn.copy(draftLength = 4)).text)
        }
        on(ModelOptions(context = 512, speculation = Speculation.Ngram)) { _, model ->
            assertTrue(model.chat().ask(question, greedy.copy(draftLength = 5)).stats.acceptedTokens > 5)
        }
        on(ModelOptions(context = 512)) { _, model ->
            assertEquals(0, model.chat().ask(question, greedy.copy(draftLength = 5)).stats.proposedTokens)
        }
    }

    @Test
    fun `a plan tells what a draft model takes, and what guesses bring`() = test {
        val alone = Pannier.plan(smol, options = ModelOptions(context = 512))
        assertEquals(0, alone.draftBytes)
        assertTrue(alone.speculation.draftLength in 1..8 && alone.speculation.gain > 1, "${alone.speculation}")
        assertTrue(alone.speculation.decodeTokensPerSecond > alone.predictedDecodeTokensPerSecond, "$alone")
        val both = Pannier.plan(smol, options = drafted)
        assertTrue(both.draftBytes > smol.length() * 9 / 10, "$both")
        assertTrue(both.peakBytes > alone.peakBytes && both.fileBackedBytes > 1.9 * alone.fileBackedBytes, "$both")
        // A draft model as large as the model brings less than guesses that cost nothing.
        assertTrue(both.speculation.gain in 1.0..alone.speculation.gain, "${both.speculation}")
        val budget = MemoryBudget.ofMebibytes(96)
        assertTrue(Pannier.plan(smol, budget, ModelOptions(context = 512)).fits)
        assertFalse(Pannier.plan(smol, budget, drafted).fits)
        val refused = failure { Pannier(budget).use { it.load(smol, drafted) } }
        assertTrue(refused is PannierException.OutOfBudget, "$refused")
        assertEquals(both.draftBytes, (refused as PannierException.OutOfBudget).plan?.draftBytes)
    }

    @Test
    fun `what cannot draft is a typed error`() = test {
        suspend fun loadError(options: ModelOptions): Throwable? = failure { Pannier().use { it.load(smol, options) } }
        suspend fun planError(options: ModelOptions): Throwable? = failure { Pannier.plan(smol, options = options) }
        val other = loadError(ModelOptions(draft = modelFile("gemma-3-270m-q4_k_m.gguf")))
        assertTrue(other is PannierException.InvalidArgument && "vocabulary" in other.message.orEmpty(), "$other")
        val absent = ModelOptions(draft = File(folder.toFile(), "absent.gguf"))
        for (error in listOf(loadError(absent), planError(absent))) {
            assertTrue(error is PannierException.NotFound, "$error")
            assertFalse(folder.toString() in error?.message.orEmpty(), "$error")
        }
        val text = ModelOptions(draft = File(folder.toFile(), "text.gguf").apply { writeText("This is no model.") })
        for (error in listOf(loadError(text), planError(text))) assertTrue(error is PannierException.InvalidModel, "$error")
        val none = ModelOptions(speculation = Speculation.Draft)
        for (error in listOf(loadError(none), planError(none))) assertTrue(error is PannierException.InvalidArgument, "$error")
        for (options in listOf(greedy.copy(speculation = Speculation.Draft), greedy.copy(speculation = Speculation.Ngram, draftLength = 9))) {
            val (_, end) = run(Shared.model, options)
            assertTrue(end is GenerationEvent.Failed && end.error is PannierException.InvalidArgument, "$end")
        }
        // With guesses off, nothing is asked for.
        assertTrue(run(Shared.model, greedy.copy(speculation = Speculation.Off)).second is GenerationEvent.Completed)
    }

    @Test
    fun `a draft model is given up when memory is scarce, and the answer goes on`() = test {
        on(drafted) { pannier, model ->
            val plain = (run(model, long.copy(speculation = Speculation.Off)).second as GenerationEvent.Completed).answer.text
            val (notices, end) = run(model, long.copy(draftLength = 3)) { pannier.onMemoryPressure(MemoryPressure.Moderate) }
            val released = notices.filterIsInstance<NoticeKind.DraftReleased>()
            assertEquals(listOf(model.plan().draftBytes), released.map { it.bytes }, "$notices")
            val answer = (end as GenerationEvent.Completed).answer
            assertEquals(plain, answer.text)
            assertTrue(answer.stats.proposedTokens > 0 && answer.stats.tokensPerPass!! < 3.5, "${answer.stats}")
            // It was there, so asking for it is no error; it comes back with the model.
            assertEquals(0, model.chat().ask(question, greedy.copy(speculation = Speculation.Draft)).stats.proposedTokens)
            model.unload()
            pannier.onMemoryPressure(MemoryPressure.Normal)
            assertTrue(model.chat().ask(question, greedy.copy(draftLength = 3)).stats.acceptedTokens > 5)
        }
    }

    @Test
    fun `heat takes threads, is told, and changes no answer`() = test {
        on(ModelOptions(context = 512, threads = 2)) { pannier, model ->
            val (quiet, cool) = run(model, long)
            assertEquals(emptyList<NoticeKind>(), quiet)
            val (notices, hot) = run(model, long) { pannier.onHeat(DeviceHeat.Serious) }
            assertEquals(listOf(NoticeKind.HeatChanged(DeviceHeat.Serious, 1)), notices)
            assertEquals((cool as GenerationEvent.Completed).answer.text, (hot as GenerationEvent.Completed).answer.text)
            // It holds for models that are loaded later, and until something else is said.
            model.unload()
            assertEquals(listOf(NoticeKind.HeatChanged(DeviceHeat.Serious, 1)), run(model, greedy).first)
            assertEquals(emptyList<NoticeKind>(), run(model, greedy).first)
            pannier.onHeat(DeviceHeat.Nominal)
            assertEquals(listOf(NoticeKind.HeatChanged(DeviceHeat.Nominal, 2)), run(model, greedy).first)
        }
    }
}
