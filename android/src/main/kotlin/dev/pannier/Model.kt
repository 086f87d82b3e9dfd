package dev.pannier

import dev.pannier.ffi.LoadSink
import dev.pannier.ffi.ModelLifeState
import dev.pannier.ffi.StateObserver
import java.io.File
import kotlin.time.Duration
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.flow.asStateFlow

/**
 * A model. It is loaded when it is used, unloaded when the budget, the system or the app asks, and loaded again on the next use.
 *
 * @property file its GGUF file.
 */
public class Model internal constructor(internal val ffi: dev.pannier.ffi.Model, public val file: File) : AutoCloseable {
    private val states = MutableStateFlow(ffi.state().toPublic())
    private val watch = ffi.observe(Follower(states))

    init {
        // What changed between the two lines above.
        states.value = ffi.state().toPublic()
    }

    /** What it is doing. */
    public val state: StateFlow<ModelState> = states.asStateFlow()

    /** What there is to tell about it; `null` while it is not loaded. */
    public val info: ModelInfo? get() = ffi.details()?.toPublic()

    /**
     * Loads it now; does nothing to a loaded model.
     *
     * @param force also if the app died while it loaded this model before. Ask the user first.
     * @param onProgress hears from 0 to 1, on a thread of the engine.
     * @throws PannierException.OutOfBudget with the plan.
     */
    public suspend fun load(force: Boolean = false, onProgress: (Float) -> Unit = {}) {
        val sink = object : LoadSink {
            override fun onProgress(fraction: Float) = onProgress(fraction)
        }
        rethrowing { ffi.load(force, sink) }
    }

    /** What loading it takes under the budget of its [Pannier]. */
    public suspend fun plan(): MemoryPlan = rethrowing { ffi.plan().toPublic() }

    /**
     * A conversation. Nothing is loaded until it is used.
     *
     * @param system the app's instructions, as the first message.
     * @param toolsJson tools, as a JSON array in the OpenAI format, for chat templates that know them.
     * @param thinking thinking on or off, for chat templates that know it.
     * @param checkpoint where the conversation is written when the app goes to the background.
     * @param overflow what happens when the next turn does not fit into the context.
     */
    @JvmOverloads
    public fun chat(
        system: String? = null,
        toolsJson: String? = null,
        thinking: Boolean? = null,
        checkpoint: File? = null,
        overflow: Overflow = Overflow.Fail,
    ): ChatSession = ChatSession(
        this,
        rethrowingNow { ffi.chat(dev.pannier.ffi.ChatConfig(system, toolsJson, thinking, checkpoint?.path, overflow.toFfi())) },
    )

    /** Frees its memory; generations are cancelled. The next use loads it again. Never waits. */
    public fun unload() {
        ffi.unload()
    }

    /** Like [unload], and for good. Idempotent, never waits for a generation. */
    override fun close() {
        ffi.shutdown()
        watch.stop()
        states.value = ModelState.Unloaded
    }

    /** Holds the flow only, so that a forgotten model can be collected. */
    private class Follower(private val states: MutableStateFlow<ModelState>) : StateObserver {
        override fun onState(state: ModelLifeState) {
            states.value = state.toPublic()
        }
    }
}

/**
 * What there is to tell about a loaded model.
 *
 * @property name the name in the file.
 * @property context the context it runs with, in tokens.
 * @property trainedContext the context it was trained for, in tokens.
 * @property instructionSet which kernels run.
 * @property notes what was wrong in the file and how it was mended.
 */
public data class ModelInfo(
    public val name: String,
    public val architecture: String,
    public val context: Long,
    public val trainedContext: Long,
    public val fileBytes: Long,
    public val threads: Int,
    public val instructionSet: String,
    public val notes: List<String>,
    public val loadTime: Duration,
)
