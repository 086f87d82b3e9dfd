package dev.pannier.sample

import dev.pannier.DownloadEvent
import dev.pannier.GenerationEvent
import dev.pannier.GenerationOptions
import dev.pannier.MemoryBudget
import dev.pannier.ModelOptions
import dev.pannier.ModelStore
import dev.pannier.Pannier
import dev.pannier.PannierException
import java.io.File
import kotlin.system.exitProcess
import kotlinx.coroutines.runBlocking

/** `jvm-chat [FOLDER] [MODEL]`: fetches a model into the folder and talks in the terminal. An empty line ends it. */
fun main(args: Array<String>) = runBlocking {
    val store = ModelStore(File(args.getOrElse(0) { System.getProperty("user.home") + "/.cache/pannier/models" }))
    val name = args.getOrElse(1) { "smollm2-135m-instruct" }
    try {
        val file = store.find(name) ?: run {
            store.download(name).collect {
                if (it is DownloadEvent.Progress) System.err.print("\r${it.done / 1_000_000} of ${(it.total ?: 0) / 1_000_000} MB ")
            }
            store.find(name)!!
        }
        Pannier(MemoryBudget.ofMebibytes(1024)).use { pannier ->
            val model = pannier.model(file, ModelOptions(context = 2048))
            val plan = model.plan()
            System.err.println("needs ${plan.peakBytes shr 20} MB of memory for ${plan.context} tokens")
            val chat = model.chat(system = "Answer briefly.")
            while (true) {
                System.err.print("> ")
                val line = readLine()?.takeIf { it.isNotBlank() } ?: break
                chat.send(line, GenerationOptions(maxTokens = 256)).collect { event ->
                    when (event) {
                        is GenerationEvent.Text -> print(event.text).also { System.out.flush() }
                        is GenerationEvent.Failed -> System.err.println(event.error.message)
                        is GenerationEvent.Completed ->
                            System.err.println("\n[%.1f tokens/s]".format(event.answer.stats.decodeTokensPerSecond))
                        else -> Unit
                    }
                }
                println()
            }
        }
    } catch (e: PannierException) {
        System.err.println(e.message)
        exitProcess(1)
    }
}
