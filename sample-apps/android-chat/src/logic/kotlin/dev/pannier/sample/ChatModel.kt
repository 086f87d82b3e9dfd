package dev.pannier.sample

import dev.pannier.AnswerRoute
import dev.pannier.AnswerSource
import dev.pannier.ChatMessage
import dev.pannier.ChatSession
import dev.pannier.Cloud
import dev.pannier.Confidence
import dev.pannier.DeviceCondition
import dev.pannier.DownloadEvent
import dev.pannier.GenerationOptions
import dev.pannier.HybridEvent
import dev.pannier.HybridPolicy
import dev.pannier.HybridSession
import dev.pannier.KnownModel
import dev.pannier.MemoryBudget
import dev.pannier.MemoryPlan
import dev.pannier.Model
import dev.pannier.ModelOptions
import dev.pannier.ModelStore
import dev.pannier.Pannier
import dev.pannier.PannierException
import java.io.File
import kotlinx.coroutines.CancellationException
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.Job
import kotlinx.coroutines.currentCoroutineContext
import kotlinx.coroutines.delay
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.flow.asStateFlow
import kotlinx.coroutines.flow.update
import kotlinx.coroutines.launch

/** What the user may set. The cloud is off until the user turns it on. */
data class ChatSettings(
    val budgetMebibytes: Int = 512,
    val contextTokens: Int = 2048,
    val cloudAllowed: Boolean = false,
    /** Below this, an answer of the device is not good enough. */
    val minConfidence: Double = 0.7,
)

/** One line of the conversation, as it is shown. */
data class ChatLine(
    val fromUser: Boolean,
    val text: String,
    /** Under an answer: where it comes from and how sure it is. */
    val badge: String? = null,
    /** Why another side than usual answered. */
    val reason: String? = null,
)

/** Everything the screen shows. */
data class ChatScreen(
    val models: List<KnownModel> = emptyList(),
    val here: Set<String> = emptySet(),
    val chosen: String? = null,
    /** From 0 to 1, with a line about speed and time left; `null` while nothing is downloaded. */
    val download: Pair<Float, String>? = null,
    val plan: MemoryPlan? = null,
    val lines: List<ChatLine> = emptyList(),
    val answering: Boolean = false,
    /** Speed and memory. */
    val meter: String = "",
    val online: Boolean = true,
    /** The last thing that went wrong, or that the user should know. */
    val notice: String? = null,
)

/**
 * What the sample does, without a view: picks, downloads and plans a model, and talks to it. The activity draws [screen] and calls the
 * functions; a test does the same.
 */
class ChatModel(
    private val pannier: Pannier,
    private val store: ModelStore,
    private val scope: CoroutineScope,
    private val isOnline: () -> Boolean = { true },
    private val checkpoint: File? = null,
    /** Used only while the user allows it. */
    private val cloud: Cloud? = null,
) {
    private val state = MutableStateFlow(ChatScreen(models = store.known.filter { it.instruct }))
    private var settings = ChatSettings()
    private var model: Model? = null
    private var chat: ChatSession? = null
    private var session: HybridSession? = null
    private var work: Job? = null

    /** The turn under way. Cancelling it stops both sides. */
    private var answering: Job? = null

    val screen: StateFlow<ChatScreen> = state.asStateFlow()

    init {
        apply(settings)
        refresh()
    }

    /** Looks again which models are here and whether there is a network. */
    fun refresh() {
        val here = state.value.models.filter { store.find(it.name) != null }.map { it.name }.toSet()
        state.update { it.copy(here = here, online = isOnline()) }
    }

    /** Takes new settings; a chosen model is planned again. */
    fun apply(new: ChatSettings) {
        settings = new
        pannier.setBudget(MemoryBudget.ofMebibytes(new.budgetMebibytes))
        state.value.chosen?.let(::choose)
    }

    /** Chooses a model: fetches it if it is not here, and shows what it will take. Nothing is loaded yet. */
    fun choose(name: String) = launchWork {
        release()
        state.update { it.copy(chosen = name, plan = null, lines = emptyList(), notice = null) }
        val file = store.find(name) ?: fetch(name) ?: return@launchWork
        val opened = pannier.model(file, ModelOptions(context = settings.contextTokens))
        model = opened
        val plan = opened.plan()
        val advice = if (plan.fits) null else "This model does not fit: " + plan.notes.joinToString()
        state.update { it.copy(plan = plan, notice = advice) }
        if (plan.fits) {
            chat = opened.chat(system = "You are a helpful assistant. Answer briefly.", checkpoint = checkpoint)
            session = chat?.let(::hybrid)
            restore()
        }
    }

    /** The same conversation; only what the user allowed can leave the device. */
    private fun hybrid(chat: ChatSession): HybridSession {
        val allowed = settings.cloudAllowed && cloud != null
        val policy = if (allowed) HybridPolicy.EdgeFirst(settings.minConfidence, holdUntilChecked = false) else HybridPolicy.OnDeviceOnly
        return HybridSession(chat, policy, cloud = cloud.takeIf { allowed }, device = { DeviceCondition(online = isOnline()) })
    }

    private suspend fun fetch(name: String): File? {
        if (!isOnline()) {
            state.update { it.copy(online = false, notice = "No network: this model has to be downloaded first.") }
            return null
        }
        var file: File? = null
        try {
            store.download(name).collect { event ->
                if (event is DownloadEvent.Progress) state.update { it.copy(download = progress(event)) }
                if (event is DownloadEvent.Completed) file = event.file
            }
        } finally {
            state.update { it.copy(download = null) }
        }
        refresh()
        return file
    }

    private fun progress(event: DownloadEvent.Progress): Pair<Float, String> {
        val total = event.total
        val share = if (total == null || total == 0L) 0f else event.done.toFloat() / total
        val speed = "%.1f MB/s".format(event.bytesPerSecond / 1e6)
        return share to (event.remaining?.let { "$speed, ${it.inWholeSeconds} s left" } ?: speed)
    }

    /** Says something. Ignored while an answer is under way, and before a model is ready. */
    fun say(text: String) {
        val session = session ?: return
        if (text.isBlank() || state.value.answering) return
        state.update { it.copy(lines = it.lines + ChatLine(true, text) + ChatLine(false, ""), answering = true, notice = null) }
        launchWork {
            answering = currentCoroutineContext()[Job]
            val begun = System.nanoTime()
            var tokens = 0
            try {
                session.send(text, GenerationOptions(maxTokens = 512)).collect { event ->
                    when (event) {
                        is HybridEvent.Text -> {
                            if (event.source == AnswerSource.OnDevice) tokens++
                            answer { it.copy(text = it.text + event.text) }
                            meter(tokens * 1e9 / (System.nanoTime() - begun))
                        }
                        // The draft was not good enough: what remains of it, or nothing, and then the cloud's words.
                        is HybridEvent.Discard -> answer { it.copy(text = event.remaining) }
                        is HybridEvent.Decision -> if (event.decision.route == AnswerRoute.Cloud) {
                            answer { it.copy(reason = event.decision.explanation) }
                        }
                        is HybridEvent.Completed -> {
                            val a = event.answer
                            answer { it.copy(badge = badge(a.source, a.confidence)) }
                            a.stats?.let { meter(it.decodeTokensPerSecond) }
                        }
                        is HybridEvent.Failed -> state.update { it.copy(notice = event.error.message) }
                        is HybridEvent.Cancelled -> answer { it.copy(badge = "stopped") }
                        else -> Unit
                    }
                }
            } catch (e: CancellationException) {
                answer { it.copy(badge = "stopped") }
                throw e
            } finally {
                answering = null
                state.update { it.copy(answering = false) }
            }
        }
    }

    /** Stops the answer; what was said so far stays. */
    fun stop() {
        answering?.cancel()
    }

    /** Begins a new conversation. */
    fun clear() {
        if (state.value.answering) return
        chat?.setHistory(emptyList())
        state.update { it.copy(lines = emptyList()) }
    }

    /** For the way to the background and back. */
    suspend fun enterBackground() = pannier.enterBackground()

    suspend fun enterForeground() {
        refresh()
        try {
            pannier.enterForeground()
        } catch (e: PannierException) {
            state.update { it.copy(notice = e.message) }
        }
    }

    private fun restore() {
        val saved = checkpoint?.takeIf { it.isFile } ?: return
        val chat = chat ?: return
        try {
            chat.restore(saved.readText())
        } catch (e: PannierException) {
            // Written by another version: begin anew.
            saved.delete()
        }
        val lines = chat.history.filter { it.role != dev.pannier.Role.System }.map(::line)
        state.update { it.copy(lines = lines) }
    }

    private fun line(message: ChatMessage) = ChatLine(message.role == dev.pannier.Role.User, message.content)

    private fun answer(change: (ChatLine) -> ChatLine) {
        state.update { s -> if (s.lines.isEmpty()) s else s.copy(lines = s.lines.dropLast(1) + change(s.lines.last())) }
    }

    private fun meter(speed: Double) {
        val memory = pannier.memory()
        val held = memory.processAnonymous ?: memory.used
        state.update { it.copy(meter = "%.1f tokens/s, %d MB".format(speed, held shr 20)) }
    }

    /** An unfitted confidence orders answers, but its size is a guess: the user is not told a number then. */
    private fun badge(source: AnswerSource, confidence: Confidence?): String = when {
        source == AnswerSource.Cloud -> "cloud"
        source == AnswerSource.Both -> "on device, then cloud"
        confidence?.fitted == true -> "on device, %.0f%% sure".format(confidence.value * 100)
        else -> "on device"
    }

    private fun release() {
        chat?.close()
        model?.close()
        chat = null
        session = null
        model = null
    }

    /** One thing at a time; errors become a notice. */
    private fun launchWork(block: suspend () -> Unit) {
        val before = work
        work = scope.launch {
            before?.join()
            try {
                block()
            } catch (e: PannierException) {
                state.update { it.copy(notice = e.message, answering = false) }
            }
        }
    }

    /** Waits until nothing is going on: for tests. */
    suspend fun settle() {
        while (work?.isCompleted == false) delay(5)
    }
}
