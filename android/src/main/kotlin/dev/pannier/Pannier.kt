package dev.pannier

import dev.pannier.ffi.Engine
import dev.pannier.ffi.EngineConfig
import java.io.File
import kotlin.time.Duration

/**
 * All models of an app, under one memory budget. One per app is enough; it is cheap until a model is loaded.
 *
 * Everything here may be called from any thread. What takes time is `suspend` and runs on threads of the engine.
 *
 * @param budget what all models together may take.
 * @param idleUnload models that were not used for so long are unloaded; the next use loads them again.
 * @param stateFolder a private folder of the app, where it is noted which model was being loaded when the app died. `null` turns
 * that guard off.
 */
public class Pannier @JvmOverloads constructor(
    budget: MemoryBudget = MemoryBudget.Unlimited,
    idleUnload: Duration? = null,
    stateFolder: File? = null,
) : AutoCloseable {
    init {
        prepareEngineThreads()
    }

    private val engine: Engine = Engine(
        EngineConfig(
            budgetBytes = budget.bytes?.toULong(),
            idleUnloadMs = idleUnload?.inWholeMilliseconds?.coerceAtLeast(1)?.toULong(),
            guardDir = stateFolder?.path,
        ),
    )

    /** A model of this engine. Nothing is read; it is loaded when it is first used. The file need not be there yet. */
    @JvmOverloads
    public fun model(file: File, options: ModelOptions = ModelOptions()): Model =
        Model(engine.open(options.toFfi(file)), file)

    /** [model], loaded: [onProgress] hears from 0 to 1, on a thread of the engine. */
    public suspend fun load(
        file: File,
        options: ModelOptions = ModelOptions(),
        onProgress: (Float) -> Unit = {},
    ): Model {
        val model = model(file, options)
        try {
            model.load(onProgress = onProgress)
        } catch (e: Throwable) {
            model.close()
            throw e
        }
        return model
    }

    /** What loading this model would take under [budget], or under that of this engine. */
    public suspend fun plan(file: File, options: ModelOptions = ModelOptions(), budget: MemoryBudget? = null): MemoryPlan =
        rethrowing { engine.plan(options.toFfi(file), budget?.bytes?.toULong()).toPublic() }

    /** Changes the budget, and unloads idle models until what is used fits. */
    public fun setBudget(budget: MemoryBudget) {
        engine.setBudget(budget.bytes?.toULong())
    }

    /** Memory now. */
    public fun memory(): MemoryUse = engine.memory().toPublic()

    /** Gives memory back to the system. Running generations go on, with smaller caches. On Android, `PannierAndroid` calls this. */
    public fun onMemoryPressure(pressure: MemoryPressure) {
        engine.onPressure(pressure.toFfi())
    }

    /**
     * The device is as hot as [heat] says, which holds until this is called again. From [DeviceHeat.Serious] on fewer threads compute, and
     * nothing is read ahead of need; running generations tell it in [NoticeKind.HeatChanged]. On Android, `PannierAndroid` calls this.
     */
    public fun onHeat(heat: DeviceHeat) {
        engine.onThermal(heat.toFfi())
    }

    /**
     * For the way to the background: writes the checkpoints of conversations, then unloads models until at most [keepBytes] are
     * used. Generations of models that have to go are cancelled.
     */
    public suspend fun enterBackground(keepBytes: Long = 0) {
        rethrowing { engine.suspend(keepBytes.coerceAtLeast(0).toULong()) }
    }

    /** For the way back: loads what [enterBackground] unloaded. A model that is used before loads by itself. */
    public suspend fun enterForeground() {
        rethrowing { engine.resume() }
    }

    /** Closes all models. Idempotent, never waits for a generation. */
    override fun close() {
        engine.shutdown()
    }

    public companion object {
        /** The version of the engine. */
        @JvmStatic
        public val version: String
            get() {
                prepareEngineThreads()
                return dev.pannier.ffi.engineVersion()
            }

        /** What loading this model would take under [budget]. Reads the directory of the file, no weights. */
        public suspend fun plan(
            file: File,
            budget: MemoryBudget = MemoryBudget.Unlimited,
            options: ModelOptions = ModelOptions(),
        ): MemoryPlan = Pannier(budget).use { it.plan(file, options) }
    }
}
