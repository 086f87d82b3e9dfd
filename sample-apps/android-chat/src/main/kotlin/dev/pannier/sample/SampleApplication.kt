package dev.pannier.sample

import android.app.Application
import dev.pannier.android.PannierAndroid

/** Keeps the engine for all activities: it lives as long as the process. */
class SampleApplication : Application() {
    lateinit var engine: PannierAndroid
        private set

    override fun onCreate() {
        super.onCreate()
        engine = PannierAndroid(this)
    }
}
