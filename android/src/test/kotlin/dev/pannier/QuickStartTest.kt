package dev.pannier

import java.io.File
import kotlinx.coroutines.flow.collect
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test

// The READMEs show what is between the two marks.
// quick start
suspend fun quickStart(folder: File, show: (String) -> Unit) {
    val store = ModelStore(folder)
    store.download("smollm2-135m-instruct").collect { if (it is DownloadEvent.Progress) println(it) }
    val pannier = Pannier(MemoryBudget.ofMebibytes(512))
    val model = pannier.model(store.find("smollm2-135m-instruct")!!, ModelOptions(context = 2048))
    check(model.plan().fits)
    val chat = model.chat(system = "Answer briefly.")
    chat.send("Name three rivers in Europe.", GenerationOptions(maxTokens = 64)).collect { event ->
        if (event is GenerationEvent.Text) show(event.text)
    }
    model.close()
}
// end

/** The READMEs' example is this file's, and it works. That they show it is checked by `cargo xtask tidy`. */
class QuickStartTest {
    @Test
    fun `the quick start answers`() = test {
        smol
        val text = StringBuilder()
        quickStart(modelFolder) { text.append(it) }
        assertTrue(text.isNotEmpty())
    }
}
