package dev.pannier

import java.io.File
import java.nio.file.Path
import kotlinx.coroutines.flow.toList
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertFalse
import org.junit.jupiter.api.Assertions.assertNotEquals
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test
import org.junit.jupiter.api.io.TempDir

/** What an app may choose between memory, speed and quality: the KV cache, the precision of weights, and what a chat drops. */
class OptionsTest {
    @TempDir
    lateinit var folder: Path

    private val greedy = GenerationOptions.greedy(16)

    private val nested: File
        get() = File(System.getenv("PANNIER_NESTED").orEmpty()).also {
            assertTrue(it.isFile, "`cargo xtask test --kotlin` makes a model in nested precision, and sets PANNIER_NESTED to it")
        }

    private suspend fun <T> on(file: File, options: ModelOptions, work: suspend (Model) -> T): T =
        Pannier().use { pannier -> work(pannier.model(file, options)) }

    private suspend fun failure(work: suspend () -> Unit): Throwable? = runCatching { work() }.exceptionOrNull()

    @Test
    fun `types of the KV cache are planned, run and reported`() = test {
        suspend fun kvBytes(type: KvType) =
            Pannier.plan(smol, options = ModelOptions(context = 1024, kv = KvOptions(type))).kvBytes
        val bytes = listOf(KvType.F16, KvType.Q8, KvType.K8V4, KvType.Q4).map { kvBytes(it) }
        assertTrue(bytes[0] > 1.8 * bytes[1] && bytes[1] > bytes[2] && bytes[2] > bytes[3], "$bytes")
        // The newest keys are halves, so these take a little more.
        assertTrue(kvBytes(KvType.Q8_CHANNEL) in bytes[1]..bytes[0] && kvBytes(KvType.Q4_CHANNEL) in bytes[3]..bytes[0])
        for (type in listOf(KvType.F16, KvType.Q8, KvType.Q8_CHANNEL, KvType.Q4)) {
            on(smol, ModelOptions(context = 512, kv = KvOptions(type))) { model ->
                val answer = model.chat().ask("Name the capital of France.", greedy)
                assertEquals(type, answer.stats.kvType)
                assertEquals(0, answer.stats.evicted)
                assertEquals(WeightView.Full, answer.stats.view)
                assertTrue(answer.text.isNotEmpty())
                if (type == KvType.Q8) assertTrue("Paris" in answer.text, answer.text)
            }
        }
    }

    @Test
    fun `a window forgets, says so, and keeps the cache small`() = test {
        val kv = KvOptions(policy = KvPolicy.Sinks(sinks = 4, recent = 32), evict = EvictWhen.Above(slack = 16), prefixBytes = 0)
        // A prompt of several passes: the policy acts before a pass.
        on(smol, ModelOptions(context = 1024, prefillChunk = 64, kv = kv)) { model ->
            val chat = model.chat()
            val events = chat.send("word ".repeat(200), greedy).toList()
            val end = checkEvents(events) as GenerationEvent.Completed
            val told = events.filterIsInstance<GenerationEvent.Notice>().map { it.kind }.filterIsInstance<NoticeKind.Evicted>()
            assertTrue(told.isNotEmpty(), "$events")
            assertTrue(end.answer.stats.evicted > 100, "${end.answer.stats}")
            assertEquals(36, told.last().eviction.kept)
        }
        val asked = KvOptions(policy = KvPolicy.HeavyHitters(sinks = 4, recent = 32, top = 16))
        on(smol, ModelOptions(context = 1024, kv = asked)) { model ->
            val chat = model.chat()
            assertEquals(Eviction(0, 0), chat.evict())
            val answer = chat.ask("word ".repeat(200), greedy)
            assertEquals(0, answer.stats.evicted)
            val eviction = chat.evict()
            assertEquals(52, eviction.kept)
            assertTrue(eviction.gone > 100, "$eviction")
        }
    }

    @Test
    fun `what does not go together is an invalid argument`() = test {
        val wrong = listOf(
            KvOptions(policy = KvPolicy.Window(recent = 0)),
            KvOptions(policy = KvPolicy.Sinks(sinks = -1)),
            KvOptions(policy = KvPolicy.HeavyHitters(top = 0)),
            KvOptions(policy = KvPolicy.Pages(tokens = 96)),
            KvOptions(policy = KvPolicy.Pages(), evict = EvictWhen.Above()),
            KvOptions(policy = KvPolicy.Window(), evict = EvictWhen.Above(-1)),
            KvOptions(evict = EvictWhen.Above(64)),
            KvOptions(prefixBytes = -1),
        )
        for (kv in wrong) {
            val error = failure { Pannier.plan(smol, options = ModelOptions(kv = kv)) }
            assertTrue(error is PannierException.InvalidArgument, "$kv: $error")
            val loading = failure { Pannier().use { it.load(smol, ModelOptions(kv = kv)) } }
            assertTrue(loading is PannierException.InvalidArgument, "$kv: $loading")
        }
        val reserve = failure { Shared.model.chat(overflow = Overflow.DropOldest(-1)) }
        assertTrue(reserve is PannierException.InvalidArgument, "$reserve")
    }

    @Test
    fun `a file of two views answers in both`() = test {
        on(nested, ModelOptions(context = 512)) { model ->
            suspend fun answer(precision: WeightPrecision?) =
                model.chat().ask("Name three colours.", greedy.copy(maxTokens = 32, precision = precision))
            val (low, full) = answer(WeightPrecision.Low) to answer(WeightPrecision.Full)
            assertEquals(WeightView.Low, low.stats.view)
            assertEquals(WeightView.Full, full.stats.view)
            assertNotEquals(low.text, full.text)
            assertEquals(full.text, answer(null).text)
            val chat = model.chat()
            val events = chat.send("Name three colours.", greedy.copy(precision = WeightPrecision.Auto)).toList()
            val views = events.filterIsInstance<GenerationEvent.Notice>().map { it.kind }.filterIsInstance<NoticeKind.ViewChosen>()
            assertEquals(NoticeKind.ViewChosen(WeightView.Low, ViewReason.ShortPrompt), views.first())
            assertTrue(views.last().reason in listOf(ViewReason.Sure, ViewReason.Unsure), "$views")
            val end = checkEvents(events) as GenerationEvent.Completed
            assertEquals(views.last().view, end.answer.stats.view)
            // Loaded with the low view alone, it takes less, and there is no other.
            val lowOptions = ModelOptions(context = 512, precision = WeightPrecision.Low)
            assertTrue(Pannier.plan(nested, options = lowOptions).residentBytes < model.plan().residentBytes)
            on(nested, lowOptions) { only ->
                assertEquals(low.text, only.chat().ask("Name three colours.", greedy.copy(maxTokens = 32)).text)
                val refused = failure { only.chat().ask("Hi", greedy.copy(precision = WeightPrecision.Full)) }
                assertTrue(refused is PannierException.Unsupported, "$refused")
            }
        }
    }

    @Test
    fun `a file without planes has no low view`() = test {
        val events = Shared.model.chat().send("Hi", greedy.copy(precision = WeightPrecision.Low)).toList()
        val failed = checkEvents(events) as GenerationEvent.Failed
        assertTrue(failed.error is PannierException.Unsupported, "${failed.error}")
        assertEquals(WeightView.Full, Shared.model.chat().ask("Hi", greedy.copy(precision = WeightPrecision.Auto)).stats.view)
        val load = failure { Pannier().use { it.load(smol, ModelOptions(precision = WeightPrecision.Low)) } }
        assertTrue(load is PannierException.Unsupported, "$load")
    }

    @Test
    fun `what was read is saved and restored by another model`() = test {
        val file = folder.resolve("chat.kv").toFile()
        val options = ModelOptions(context = 512, kv = KvOptions(KvType.Q8))
        suspend fun next(chat: ChatSession) = chat.send("And of Italy?", greedy).toList()
        lateinit var saved: String
        lateinit var expected: String
        on(smol, options) { model ->
            val chat = model.chat()
            val nothing = failure { chat.saveCache(file) }
            assertTrue(nothing is PannierException.InvalidArgument, "$nothing")
            chat.ask("Name the capital of France.", greedy)
            chat.saveCache(file)
            saved = chat.save()
            expected = textOf(next(chat))
        }
        on(smol, options) { model ->
            val chat = model.chat()
            chat.restore(saved)
            val tokens = chat.restoreCache(file)
            assertTrue(tokens > 10)
            assertEquals(tokens, chat.cachedTokens)
            val events = next(chat)
            assertTrue((events.first() as GenerationEvent.Started).cachedTokens > tokens / 2)
            assertEquals(expected, textOf(events))
        }
        // Other element types are other bits: refused, and nothing is lost.
        on(smol, ModelOptions(context = 512)) { model ->
            val refused = failure { model.chat().restoreCache(file) }
            assertTrue(refused is PannierException.InvalidArgument, "$refused")
            assertFalse(folder.toString() in refused?.message.orEmpty())
            val absent = failure { model.chat().restoreCache(folder.resolve("absent").toFile()) }
            assertTrue(absent is PannierException.Io, "$absent")
        }
    }

    @Test
    fun `a chat may drop its oldest turns`() = test {
        on(smol, ModelOptions(context = 256)) { model ->
            val chat = model.chat(system = "Answer briefly.", overflow = Overflow.DropOldest(reserve = 32))
            val notices = mutableListOf<NoticeKind>()
            for (turn in 1..5) {
                val events = chat.send("Turn $turn: " + "word ".repeat(50), greedy).toList()
                assertTrue(checkEvents(events) is GenerationEvent.Completed, "$events")
                notices += events.filterIsInstance<GenerationEvent.Notice>().map { it.kind }
            }
            assertTrue(notices.any { it is NoticeKind.TurnsDropped && it.messages >= 2 }, "$notices")
            assertEquals("Answer briefly.", chat.history.first().content)
            assertTrue(chat.history.size < 11)
        }
    }
}
