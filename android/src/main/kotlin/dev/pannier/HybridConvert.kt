package dev.pannier

import dev.pannier.ffi.CalibrationReport
import dev.pannier.ffi.CloudFinish
import dev.pannier.ffi.ConfidenceScore
import dev.pannier.ffi.EdgeFirstSettings
import dev.pannier.ffi.HandOffDecision
import dev.pannier.ffi.HandOffPolicy
import dev.pannier.ffi.HandOffRules
import dev.pannier.ffi.HybridFinish
import dev.pannier.ffi.HybridSource
import dev.pannier.ffi.HybridUpdate
import dev.pannier.ffi.ThermalLevel
import kotlin.time.Duration.Companion.milliseconds

// Between the generated types of hybrid conversations and the public ones.

internal fun HybridPolicy.toFfi(): HandOffPolicy = when (this) {
    HybridPolicy.OnDeviceOnly -> HandOffPolicy.OnDeviceOnly
    HybridPolicy.CloudFirst -> HandOffPolicy.CloudFirst
    HybridPolicy.CloudOnly -> HandOffPolicy.CloudOnly
    is HybridPolicy.EdgeFirst -> HandOffPolicy.EdgeFirst(
        EdgeFirstSettings(
            minConfidence = minConfidence,
            minGain = minGain,
            checkAfterTokens = checkAfterTokens.coerceAtLeast(0).toUInt(),
            maxEdgeLatencyMs = maxEdgeLatency?.inWholeMilliseconds?.coerceAtLeast(0)?.toULong(),
            holdUntilChecked = holdUntilChecked,
            checkSentences = checkSentences,
            hysteresis = hysteresis,
            pTrue = askItself,
            style = when (style) {
                HandOffStyle.Replace -> dev.pannier.ffi.HandOffStyle.REPLACE
                HandOffStyle.Continue -> dev.pannier.ffi.HandOffStyle.CONTINUE
                HandOffStyle.Verify -> dev.pannier.ffi.HandOffStyle.VERIFY
            },
        ),
    )
}

internal fun HybridRules.toFfi(): HandOffRules = HandOffRules(
    cloudTasks = cloudTasks,
    edgeTasks = edgeTasks,
    maxEdgePrompt = maxEdgePrompt?.coerceAtLeast(0)?.toULong(),
    minBattery = minBattery,
    maxThermal = maxHeat?.toFfi(),
    spareMemory = spareMemory,
)

internal fun DeviceHeat.toFfi(): ThermalLevel = ThermalLevel.valueOf(name.uppercase())

internal fun ThermalLevel.toPublic(): DeviceHeat = DeviceHeat.values()[ordinal]

internal fun DeviceCondition.toFfi(): dev.pannier.ffi.DeviceCondition =
    dev.pannier.ffi.DeviceCondition(battery, charging, heat.toFfi(), memoryPressure, online)

internal fun dev.pannier.ffi.AdmissionFacts.toPublic(): AdmissionFacts = AdmissionFacts(
    promptTokens?.toLong(),
    task,
    DeviceCondition(device.battery, device.charging, device.thermal.toPublic(), device.memoryPressure, device.online),
)

internal fun AnswerRoute.toFfi(): dev.pannier.ffi.AnswerRoute = when (this) {
    AnswerRoute.Edge -> dev.pannier.ffi.AnswerRoute.EDGE
    AnswerRoute.Cloud -> dev.pannier.ffi.AnswerRoute.CLOUD
}

internal fun CalibrationReport.toPublic(): Calibration = Calibration(fitted, auroc, calibrationError, problem)

internal fun dev.pannier.ffi.CloudPayload.toPublic(): CloudPayload = CloudPayload(destination, body)

internal fun CloudPayload.toFfi(): dev.pannier.ffi.CloudPayload = dev.pannier.ffi.CloudPayload(destination, body)

internal fun dev.pannier.ffi.CloudPrompt.toPublic(): CloudPrompt = CloudPrompt(
    messages.map { it.toPublic() },
    continueFinal,
    maxTokens?.toInt(),
    temperature,
    seed?.toLong(),
    stop,
)

private fun HybridSource.toPublic(): AnswerSource = when (this) {
    HybridSource.DEVICE -> AnswerSource.OnDevice
    HybridSource.CLOUD -> AnswerSource.Cloud
    HybridSource.BOTH -> AnswerSource.Both
}

private fun ConfidenceScore.toPublic(): Confidence = Confidence(value, fitted)

/** The names are the same but for their case. */
private fun words(name: String): String = name.split('_').joinToString("") { it.lowercase().replaceFirstChar(Char::uppercase) }

private fun HandOffDecision.toPublic(): HandOff = HandOff(
    moment = HandOffMoment.valueOf(words(moment.name)),
    route = AnswerRoute.valueOf(words(route.name)),
    reason = HandOffReason.valueOf(words(reason.name)),
    explanation = explanation,
    confidence = confidence,
    threshold = threshold,
    tokens = tokens.toLong(),
    elapsed = elapsedMs.milliseconds,
)

private fun HybridFinish.toPublic(): FinishReason = when (this) {
    is HybridFinish.Device -> reason.toPublic()
    is HybridFinish.Cloud -> when (reason) {
        CloudFinish.STOP -> FinishReason.Stop
        CloudFinish.LENGTH -> FinishReason.Length
        CloudFinish.OTHER -> FinishReason.Other
    }
}

internal fun HybridUpdate.toPublic(): HybridEvent = when (this) {
    is HybridUpdate.Decision -> HybridEvent.Decision(decision.toPublic())
    is HybridUpdate.Prefill -> HybridEvent.Prefill(done.toLong(), total.toLong())
    is HybridUpdate.Text -> HybridEvent.Text(text, source.toPublic(), confidence?.toPublic())
    is HybridUpdate.Sentence -> HybridEvent.Sentence(text, confidence.toPublic())
    is HybridUpdate.Discard -> HybridEvent.Discard(remaining)
    is HybridUpdate.Outgoing -> HybridEvent.Outgoing(payload.toPublic())
    is HybridUpdate.Notice -> HybridEvent.Notice(notice.toPublic())
    is HybridUpdate.Completed -> HybridEvent.Completed(
        HybridAnswer(
            text = answer.text,
            source = answer.source.toPublic(),
            confidence = answer.confidence?.toPublic(),
            finishReason = answer.finish.toPublic(),
            decisions = answer.decisions.map { it.toPublic() },
            stats = answer.stats?.toPublic(),
            cloudPromptTokens = answer.usage.promptTokens.toLong(),
            cloudCompletionTokens = answer.usage.completionTokens.toLong(),
            costMicros = answer.usage.costMicros.toLong(),
            elapsed = answer.elapsedMs.milliseconds,
        ),
    )
    is HybridUpdate.Failed -> HybridEvent.Failed(error.toPublic())
    is HybridUpdate.Cancelled -> HybridEvent.Cancelled
}
