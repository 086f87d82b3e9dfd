package dev.pannier

import java.util.concurrent.atomic.AtomicInteger
import kotlinx.coroutines.awaitCancellation
import kotlinx.coroutines.flow.Flow
import kotlinx.coroutines.flow.filterIsInstance
import kotlinx.coroutines.flow.first
import kotlinx.coroutines.flow.flow
import kotlinx.coroutines.flow.flowOf
import kotlinx.coroutines.flow.toList
import org.junit.jupiter.api.Assertions.assertEquals
import org.junit.jupiter.api.Assertions.assertFalse
import org.junit.jupiter.api.Assertions.assertTrue
import org.junit.jupiter.api.Test

/** The device and a cloud that a test plays. */
class HybridTest {
    private val greedy = GenerationOptions.greedy(24)

    /** Answers with these pieces, or fails. */
    private class Play(private val answer: (CloudPayload) -> Flow<String>) : CloudTransport {
        val sent = AtomicInteger()
        override val name = "play"

        override fun prepare(prompt: CloudPrompt) = CloudPayload("test", prompt.messages.joinToString("|") { it.content })

        override fun send(payload: CloudPayload): Flow<String> {
            sent.incrementAndGet()
            return answer(payload)
        }
    }

    private fun end(events: List<HybridEvent>): HybridEvent.Terminal {
        assertEquals(1, events.count { it is HybridEvent.Terminal }, "$events")
        return events.last() as HybridEvent.Terminal
    }

    /** What is shown at the end: text is added, and taken back. */
    private fun shown(events: List<HybridEvent>): String = events.fold("") { text, event ->
        when (event) {
            is HybridEvent.Text -> text + event.text
            is HybridEvent.Discard -> event.remaining
            else -> text
        }
    }

    @Test
    fun `without a cloud nothing leaves the device`() = test {
        val session = HybridSession(Shared.model.chat())
        val events = session.send("Name the capital of France.", greedy).toList()
        val answer = (end(events) as HybridEvent.Completed).answer
        assertTrue("Paris" in answer.text, answer.text)
        assertEquals(AnswerSource.OnDevice, answer.source)
        assertTrue(answer.confidence!!.value in 0.0..1.0)
        assertTrue(events.none { it is HybridEvent.Outgoing })
        assertEquals(answer.text, shown(events))
        assertEquals(2, session.history.size)
    }

    @Test
    fun `an unsure device hands over, with a reason, consent and a replaced draft`() = test {
        val play = Play { flowOf("From ", "the cloud 😀.") }
        val seen = mutableListOf<CloudPayload>()
        val cloud = Cloud.custom(play, consent = { seen.add(it) })
        // More than any confidence: always unsure.
        val policy = HybridPolicy.EdgeFirst(minConfidence = 1.01, checkAfterTokens = 4, holdUntilChecked = false)
        val session = HybridSession(Shared.model.chat(), policy, cloud = cloud)
        val events = session.send("Name a colour.", greedy).toList()
        val answer = (end(events) as HybridEvent.Completed).answer
        assertEquals("From the cloud 😀.", answer.text)
        assertEquals(AnswerSource.Cloud, answer.source)
        assertEquals(answer.text, shown(events), "the draft was taken back")
        val decision = events.filterIsInstance<HybridEvent.Decision>().last { it.decision.route == AnswerRoute.Cloud }.decision
        assertEquals(HandOffReason.Unsure, decision.reason)
        assertTrue(decision.explanation.isNotEmpty())
        assertEquals(listOf(CloudPayload("test", "Name a colour.")), seen)
        assertEquals(listOf("Name a colour.", answer.text), session.history.map { it.content })
    }

    @Test
    fun `no consent, a lock and a redactor keep it on the device`() = test {
        val play = Play { flowOf("cloud") }
        val policy = HybridPolicy.EdgeFirst(minConfidence = 1.01, checkAfterTokens = 4)
        for ((cloud, why) in listOf(
            Cloud.custom(play, consent = { false }) to HandOffReason.NoConsent,
            Cloud.custom(play, consent = { error("an app's bug") }) to HandOffReason.NoConsent,
            Cloud.custom(play, consent = { true }, redactor = { null }) to HandOffReason.RedactionRefused,
        )) {
            val events = HybridSession(Shared.model.chat(), policy, cloud = cloud).send("Hi", greedy).toList()
            val answer = (end(events) as HybridEvent.Completed).answer
            assertEquals(AnswerSource.OnDevice, answer.source)
            assertTrue(answer.decisions.any { it.route == AnswerRoute.Edge && it.reason == why }, "$events")
        }
        val locked = HybridSession(Shared.model.chat(), policy, cloud = Cloud.custom(play, consent = { true }))
        locked.lockToDevice()
        assertTrue(locked.isLockedToDevice)
        assertEquals(AnswerSource.OnDevice, (end(locked.send("Hi", greedy).toList()) as HybridEvent.Completed).answer.source)
        assertEquals(0, play.sent.get())
        val only = HybridSession(Shared.model.chat(), HybridPolicy.CloudOnly, cloud = Cloud.custom(play, consent = { false }))
        val events = only.send("a secret", greedy).toList()
        val failed = end(events) as HybridEvent.Failed
        assertTrue(failed.error is PannierException.Network, "${failed.error}")
        // Nobody goes on, so there is no decision; the error says why.
        assertTrue("no consent" in failed.error.message.orEmpty(), "${failed.error}")
        assertFalse("secret" in failed.error.message.orEmpty())
    }

    @Test
    fun `a cloud that fails leaves the device's answer`() = test {
        val play = Play { flow { throw CloudFailure("down", status = 503) } }
        val session = HybridSession(Shared.model.chat(), HybridPolicy.CloudFirst, cloud = Cloud.custom(play, consent = { true }))
        val events = session.send("Name the capital of France.", greedy).toList()
        val answer = (end(events) as HybridEvent.Completed).answer
        assertEquals(AnswerSource.OnDevice, answer.source)
        assertTrue(events.any { it is HybridEvent.Decision && it.decision.reason == HandOffReason.CloudFailed })
    }

    @Test
    fun `cancelling the collector closes the connection`() = test {
        val closed = kotlinx.coroutines.CompletableDeferred<Unit>()
        val play = Play {
            flow {
                emit("begun")
                try {
                    awaitCancellation()
                } finally {
                    closed.complete(Unit)
                }
            }
        }
        val session = HybridSession(Shared.model.chat(), HybridPolicy.CloudOnly, cloud = Cloud.custom(play, consent = { true }))
        session.send("Hi", greedy).filterIsInstance<HybridEvent.Text>().first()
        closed.await()
    }

    @Test
    fun `the app's own rule and the state of the device are asked`() = test {
        val play = Play { flowOf("cloud") }
        val session = HybridSession(
            Shared.model.chat(),
            HybridPolicy.EdgeFirst(),
            cloud = Cloud.custom(play, consent = { true }),
            device = { DeviceCondition(battery = 0.1f, charging = false, online = true) },
            rule = { if (it.task == "hard" && it.device.battery == 0.1f) AnswerRoute.Cloud else null },
        )
        val answer = (end(session.send("Hi", greedy, task = "hard").toList()) as HybridEvent.Completed).answer
        assertEquals("cloud", answer.text)
        assertEquals(HandOffReason.AppRule, answer.decisions.first().reason)
    }

    @Test
    fun `a wrong address is refused, and keys are not printed`() {
        val endpoint = CloudEndpoint("http://example.org/v1", "m", key = "sk-4711")
        val error = runCatching { Cloud.openAi(endpoint, { true }) }.exceptionOrNull()
        assertTrue(error is PannierException.InvalidArgument, "$error")
        assertFalse("4711" in endpoint.toString() + error?.message)
    }
}
