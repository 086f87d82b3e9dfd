package dev.pannier.sample

import android.app.Activity
import android.app.AlertDialog
import android.content.Context
import android.graphics.Typeface
import android.net.ConnectivityManager
import android.os.Bundle
import android.os.Handler
import android.os.Looper
import android.view.Gravity
import android.view.View
import android.view.ViewGroup.LayoutParams.MATCH_PARENT
import android.view.ViewGroup.LayoutParams.WRAP_CONTENT
import android.widget.Button
import android.widget.EditText
import android.widget.LinearLayout
import android.widget.ProgressBar
import android.widget.ScrollView
import android.widget.TextView
import kotlin.coroutines.CoroutineContext
import kotlinx.coroutines.CoroutineDispatcher
import kotlinx.coroutines.CoroutineScope
import kotlinx.coroutines.SupervisorJob
import kotlinx.coroutines.cancel
import kotlinx.coroutines.launch

/** The main thread as a dispatcher; kotlinx-coroutines-android has one too, but a sample should need one dependency. */
private object MainThread : CoroutineDispatcher() {
    private val handler = Handler(Looper.getMainLooper())

    override fun dispatch(context: CoroutineContext, block: Runnable) {
        handler.post(block)
    }
}

/** Draws a [ChatModel]. Plain views, no layout files: everything is on this page. */
class ChatActivity : Activity() {
    private val scope = CoroutineScope(SupervisorJob() + MainThread)
    private lateinit var chat: ChatModel
    private lateinit var models: LinearLayout
    private lateinit var progress: ProgressBar
    private lateinit var status: TextView
    private lateinit var lines: LinearLayout
    private lateinit var scroll: ScrollView
    private lateinit var input: EditText
    private lateinit var send: Button
    private lateinit var meter: TextView

    override fun onCreate(savedInstanceState: Bundle?) {
        super.onCreate(savedInstanceState)
        setContentView(build())
        val engine = (application as SampleApplication).engine
        chat = ChatModel(engine.pannier, engine.store, scope, ::isOnline, engine.checkpoint("chat"))
        scope.launch { chat.screen.collect(::draw) }
        scope.launch { engine.thermal.collect { if (it >= dev.pannier.android.Heat.Severe) chat.stop() } }
    }

    override fun onStart() {
        super.onStart()
        scope.launch { chat.enterForeground() }
    }

    override fun onStop() {
        super.onStop()
        scope.launch { chat.enterBackground() }
    }

    override fun onDestroy() {
        super.onDestroy()
        scope.cancel()
    }

    @Suppress("DEPRECATION") // The replacement needs API 29.
    private fun isOnline(): Boolean {
        val connectivity = getSystemService(Context.CONNECTIVITY_SERVICE) as ConnectivityManager
        return connectivity.activeNetworkInfo?.isConnected == true
    }

    private fun build(): View {
        models = row()
        progress = ProgressBar(this, null, android.R.attr.progressBarStyleHorizontal).apply { max = 1000 }
        status = TextView(this)
        lines = LinearLayout(this).apply { orientation = LinearLayout.VERTICAL }
        scroll = ScrollView(this).apply { addView(lines) }
        input = EditText(this).apply { hint = "Ask something" }
        send = Button(this)
        meter = TextView(this).apply { gravity = Gravity.END }
        val settings = Button(this).apply {
            text = "Budget"
            setOnClickListener { pickBudget() }
        }
        val bottom = row().apply {
            addView(input, LinearLayout.LayoutParams(0, WRAP_CONTENT, 1f))
            addView(send)
        }
        return LinearLayout(this).apply {
            orientation = LinearLayout.VERTICAL
            setPadding(24, 24, 24, 24)
            addView(models)
            addView(settings)
            addView(progress, LinearLayout.LayoutParams(MATCH_PARENT, WRAP_CONTENT))
            addView(status)
            addView(scroll, LinearLayout.LayoutParams(MATCH_PARENT, 0, 1f))
            addView(meter, LinearLayout.LayoutParams(MATCH_PARENT, WRAP_CONTENT))
            addView(bottom, LinearLayout.LayoutParams(MATCH_PARENT, WRAP_CONTENT))
        }
    }

    private fun row() = LinearLayout(this).apply { orientation = LinearLayout.HORIZONTAL }

    private fun draw(screen: ChatScreen) {
        models.removeAllViews()
        for (model in screen.models) {
            models.addView(
                Button(this).apply {
                    val here = model.name in screen.here
                    text = if (here) model.name else "${model.name} (${model.bytes / 1_000_000} MB)"
                    isEnabled = !screen.answering && screen.download == null && (here || screen.online)
                    if (model.name == screen.chosen) setTypeface(typeface, Typeface.BOLD)
                    setOnClickListener { chat.choose(model.name) }
                },
            )
        }
        progress.visibility = if (screen.download == null) View.GONE else View.VISIBLE
        progress.progress = ((screen.download?.first ?: 0f) * 1000).toInt()
        status.text = listOfNotNull(
            screen.download?.second,
            screen.plan?.let { "Needs ${it.peakBytes shr 20} MB of memory for ${it.context} tokens" },
            if (screen.online) null else "Offline",
            screen.notice,
        ).joinToString("\n")
        drawLines(screen.lines)
        meter.text = screen.meter
        send.text = if (screen.answering) "Stop" else "Send"
        send.isEnabled = screen.answering || screen.plan?.fits == true
        send.setOnClickListener {
            if (screen.answering) {
                chat.stop()
            } else {
                chat.say(input.text.toString())
                input.setText("")
            }
        }
    }

    /** Only what changed: a long conversation is drawn once per token otherwise. */
    private fun drawLines(shown: List<ChatLine>) {
        while (lines.childCount > shown.size) lines.removeViewAt(lines.childCount - 1)
        shown.forEachIndexed { i, line ->
            val view = lines.getChildAt(i) as TextView? ?: TextView(this).also(lines::addView)
            val below = listOfNotNull(line.badge, line.reason)
            val text = if (below.isEmpty()) line.text else "${line.text}\n[${below.joinToString(": ")}]"
            if (view.text.toString() != text) {
                view.text = text
                view.gravity = if (line.fromUser) Gravity.END else Gravity.START
                scroll.post { scroll.fullScroll(View.FOCUS_DOWN) }
            }
        }
    }

    private fun pickBudget() {
        val choices = intArrayOf(256, 512, 1024, 2048)
        AlertDialog.Builder(this)
            .setTitle("Memory for models")
            .setItems(choices.map { "$it MB" }.toTypedArray()) { _, i -> chat.apply(ChatSettings(choices[i])) }
            .show()
    }
}
