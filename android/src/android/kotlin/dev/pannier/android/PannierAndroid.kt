package dev.pannier.android

import android.app.ActivityManager
import android.content.ComponentCallbacks2
import android.content.Context
import android.content.res.Configuration
import android.os.Build
import android.os.PowerManager
import dev.pannier.DeviceHeat
import dev.pannier.MemoryBudget
import dev.pannier.MemoryPressure
import dev.pannier.ModelStore
import dev.pannier.Pannier
import java.io.File
import kotlin.time.Duration
import kotlin.time.Duration.Companion.minutes
import kotlinx.coroutines.flow.MutableStateFlow
import kotlinx.coroutines.flow.StateFlow
import kotlinx.coroutines.flow.asStateFlow

/**
 * Connects a [Pannier] to Android: memory pressure, heat, and where files belong. Make one in `Application.onCreate` and keep it.
 *
 * Nothing here needs a permission, and no thread is started.
 *
 * @param context any context; the application's is kept.
 * @param budget what all models together may take; by default a quarter of the device's memory, at least 256 MiB.
 * @param idleUnload models that were not used for so long are unloaded.
 */
public class PannierAndroid @JvmOverloads constructor(
    context: Context,
    budget: MemoryBudget = defaultBudget(context),
    idleUnload: Duration? = 5.minutes,
) : AutoCloseable {
    private val app: Context = context.applicationContext
    private val activities = app.getSystemService(Context.ACTIVITY_SERVICE) as ActivityManager
    private val power = app.getSystemService(Context.POWER_SERVICE) as PowerManager
    private val heat = MutableStateFlow(Heat.None)

    /** The engine. */
    public val pannier: Pannier = Pannier(budget, idleUnload, File(app.noBackupFilesDir, "pannier/state"))

    /** The app's private models. They are large and can be fetched again, so they are not backed up. */
    public val store: ModelStore = ModelStore(File(app.noBackupFilesDir, "pannier/models"))

    /** How hot the device is; [Heat.None] before Android 10. */
    public val thermal: StateFlow<Heat> = heat.asStateFlow()

    private val callbacks = Callbacks(pannier)
    private val listener: Any? = listenForHeat()

    init {
        app.registerComponentCallbacks(callbacks)
    }

    /** What the system has and wants, for a memory display. */
    public fun systemMemory(): SystemMemory {
        val info = ActivityManager.MemoryInfo().also { activities.getMemoryInfo(it) }
        return SystemMemory(info.totalMem, info.availMem, info.threshold, info.lowMemory)
    }

    /** Where a conversation can be written when the app goes to the background. */
    public fun checkpoint(name: String): File {
        require(name.isNotEmpty() && name.all { it.isLetterOrDigit() || it == '-' || it == '_' }) { "not a plain name" }
        return File(app.noBackupFilesDir, "pannier/chats/$name.json").also { it.parentFile?.mkdirs() }
    }

    /** Ends the connection and closes the engine. Idempotent, never waits. */
    override fun close() {
        app.unregisterComponentCallbacks(callbacks)
        if (Build.VERSION.SDK_INT >= 29 && listener is PowerManager.OnThermalStatusChangedListener) {
            power.removeThermalStatusListener(listener)
        }
        pannier.close()
    }

    private fun listenForHeat(): Any? {
        if (Build.VERSION.SDK_INT < 29) return null
        val listener = PowerManager.OnThermalStatusChangedListener { feel(it) }
        feel(power.currentThermalStatus)
        power.addThermalStatusListener(listener)
        return listener
    }

    private fun feel(status: Int) {
        val felt = Heat.of(status)
        heat.value = felt
        pannier.onHeat(felt.toDevice())
    }

    private class Callbacks(private val pannier: Pannier) : ComponentCallbacks2 {
        override fun onTrimMemory(level: Int) {
            pressureOf(level)?.let(pannier::onMemoryPressure)
        }

        override fun onConfigurationChanged(newConfig: Configuration) = Unit

        @Deprecated("Since API 34 only onTrimMemory is called; before, both are.")
        override fun onLowMemory() {
            pannier.onMemoryPressure(MemoryPressure.Critical)
        }
    }

    public companion object {
        /** A quarter of the device's memory, at least 256 MiB: what Android leaves an app alone with while it is used. */
        @JvmStatic
        public fun defaultBudget(context: Context): MemoryBudget {
            val activities = context.getSystemService(Context.ACTIVITY_SERVICE) as ActivityManager
            val info = ActivityManager.MemoryInfo().also { activities.getMemoryInfo(it) }
            return MemoryBudget.ofBytes((info.totalMem / 4).coerceAtLeast(256L shl 20))
        }

        /**
         * What a level of `onTrimMemory` means; `null`: nothing. `TRIM_MEMORY_UI_HIDDEN` only says that the user looks elsewhere, and a
         * model that is unloaded then has to be loaded again when the user looks back.
         */
        @JvmStatic
        @Suppress("DEPRECATION") // Before API 34 the other levels are sent too.
        public fun pressureOf(level: Int): MemoryPressure? = when {
            level == ComponentCallbacks2.TRIM_MEMORY_UI_HIDDEN -> null
            level >= ComponentCallbacks2.TRIM_MEMORY_COMPLETE -> MemoryPressure.Critical
            level >= ComponentCallbacks2.TRIM_MEMORY_BACKGROUND -> MemoryPressure.Moderate
            level >= ComponentCallbacks2.TRIM_MEMORY_RUNNING_CRITICAL -> MemoryPressure.Critical
            level >= ComponentCallbacks2.TRIM_MEMORY_RUNNING_LOW -> MemoryPressure.Moderate
            else -> null
        }
    }
}

/**
 * Memory of the device, in bytes.
 *
 * @property threshold below this much available memory the system kills apps.
 * @property low whether that is so.
 */
public data class SystemMemory(
    public val total: Long,
    public val available: Long,
    public val threshold: Long,
    public val low: Boolean,
)

/** How hot the device is, in the words of `PowerManager`. From [Severe] on the engine computes with fewer threads, and an app should generate less. */
public enum class Heat {
    /** Not at all. */
    None,

    /** A little. */
    Light,

    /** Noticeably. */
    Moderate,

    /** The processor is slowed down. */
    Severe,

    /** Everything is slowed down. */
    Critical,

    /** Parts are being switched off. */
    Emergency,

    /** About to switch off. */
    Shutdown,
    ;

    internal fun toDevice(): DeviceHeat = when (this) {
        None -> DeviceHeat.Nominal
        Light, Moderate -> DeviceHeat.Fair
        Severe -> DeviceHeat.Serious
        Critical, Emergency, Shutdown -> DeviceHeat.Critical
    }

    internal companion object {
        fun of(status: Int): Heat = values().getOrElse(status) { None }
    }
}
