import Foundation
internal import PannierBindings

// Between the generated types of hybrid conversations and the public ones.

extension HybridPolicy {
    var toFFI: HandOffPolicy {
        switch self {
        case .onDeviceOnly: .onDeviceOnly
        case .cloudFirst: .cloudFirst
        case .cloudOnly: .cloudOnly
        case .edgeFirst(let s): .edgeFirst(settings: s.toFFI)
        }
    }
}

extension EdgeFirst {
    var toFFI: EdgeFirstSettings {
        let style: PannierBindings.HandOffStyle =
            switch style {
            case .replace: .replace
            case .continue: .continue
            case .verify: .verify
            }
        return EdgeFirstSettings(
            minConfidence: minConfidence, minGain: minGain, checkAfterTokens: UInt32(clamping: checkAfterTokens),
            maxEdgeLatencyMs: maxEdgeLatency?.milliseconds, holdUntilChecked: holdUntilChecked, checkSentences: checkSentences,
            hysteresis: hysteresis, pTrue: askItself, style: style)
    }
}

extension HybridRules {
    var toFFI: HandOffRules {
        HandOffRules(
            cloudTasks: cloudTasks, edgeTasks: edgeTasks, maxEdgePrompt: maxEdgePrompt.map { UInt64(max($0, 0)) },
            minBattery: minBattery, maxThermal: maxHeat?.toFFI, spareMemory: spareMemory)
    }
}

extension Heat {
    init(_ level: ThermalLevel) {
        switch level {
        case .nominal: self = .nominal
        case .fair: self = .fair
        case .serious: self = .serious
        case .critical: self = .critical
        }
    }

    var toFFI: ThermalLevel {
        switch self {
        case .nominal: .nominal
        case .fair: .fair
        case .serious: .serious
        case .critical: .critical
        }
    }
}

extension DeviceCondition {
    init(_ d: PannierBindings.DeviceCondition) {
        self.init(
            battery: d.battery, charging: d.charging, heat: Heat(d.thermal), memoryPressure: d.memoryPressure, online: d.online)
    }

    var toFFI: PannierBindings.DeviceCondition {
        PannierBindings.DeviceCondition(
            battery: battery, charging: charging, thermal: heat.toFFI, memoryPressure: memoryPressure, online: online)
    }
}

extension AdmissionFacts {
    init(_ f: PannierBindings.AdmissionFacts) {
        self.init(promptTokens: f.promptTokens.map { Int($0) }, task: f.task, device: DeviceCondition(f.device))
    }
}

extension AnswerRoute {
    init(_ route: PannierBindings.AnswerRoute) {
        switch route {
        case .edge: self = .edge
        case .cloud: self = .cloud
        }
    }

    var toFFI: PannierBindings.AnswerRoute { self == .edge ? .edge : .cloud }
}

extension Calibration {
    init(_ c: CalibrationReport) { self.init(fitted: c.fitted, auroc: c.auroc, error: c.calibrationError, problem: c.problem) }
}

extension CloudPayload {
    init(_ p: PannierBindings.CloudPayload) { self.init(destination: p.destination, body: p.body) }

    var toFFI: PannierBindings.CloudPayload { PannierBindings.CloudPayload(destination: destination, body: body) }
}

extension CloudPrompt {
    init(_ p: PannierBindings.CloudPrompt) {
        self.init(
            messages: p.messages.map(ChatMessage.init), continueFinal: p.continueFinal, maxTokens: p.maxTokens.map { Int($0) },
            temperature: p.temperature, seed: p.seed, stop: p.stop)
    }
}

extension CloudEndpoint {
    var toFFI: PannierBindings.CloudEndpoint {
        PannierBindings.CloudEndpoint(
            baseUrl: baseURL, model: model, key: key,
            headers: headers.sorted { $0.key < $1.key }.map { CloudHeader(name: $0.key, value: $0.value) }, extraJson: extraJSON,
            continuation: .fields, retries: UInt32(clamping: retries))
    }
}

extension CloudBounds {
    var toFFI: PannierBindings.CloudBounds {
        PannierBindings.CloudBounds(
            promptPriceMicros: UInt64(clamping: promptPriceMicros), completionPriceMicros: UInt64(clamping: completionPriceMicros),
            maxPerRequestMicros: maxPerRequestMicros.map { UInt64(clamping: $0) },
            maxPerDayMicros: maxPerDayMicros.map { UInt64(clamping: $0) }, maxPerMinute: maxPerMinute.map { UInt32(clamping: $0) },
            failuresToOpen: UInt32(clamping: max(failuresToOpen, 1)), openForMs: openFor.milliseconds)
    }
}

extension CloudPatience {
    var toFFI: CloudWaits {
        CloudWaits(firstTextMs: firstText.milliseconds, betweenMs: between.milliseconds, wholeMs: whole.milliseconds)
    }
}

extension AnswerSource {
    init(_ source: HybridSource) {
        switch source {
        case .device: self = .onDevice
        case .cloud: self = .cloud
        case .both: self = .both
        }
    }
}

extension Confidence {
    init(_ c: ConfidenceScore) { self.init(value: c.value, fitted: c.fitted) }
}

extension HandOffMoment {
    init(_ moment: DecisionMoment) {
        switch moment {
        case .admission: self = .admission
        case .firstCheck: self = .firstCheck
        case .sentence: self = .sentence
        case .end: self = .end
        case .failure: self = .failure
        }
    }
}

extension HandOffReason {
    init(_ reason: DecisionReason) {
        switch reason {
        case .policy: self = .policy
        case .appRule: self = .appRule
        case .task: self = .task
        case .promptTooLong: self = .promptTooLong
        case .battery: self = .battery
        case .heat: self = .heat
        case .memoryPressure: self = .memoryPressure
        case .confident: self = .confident
        case .unsure: self = .unsure
        case .noGain: self = .noGain
        case .slow: self = .slow
        case .edgeFailed: self = .edgeFailed
        case .cloudFailed: self = .cloudFailed
        case .verified: self = .verified
        case .corrected: self = .corrected
        case .noCloud: self = .noCloud
        case .onDeviceOnly: self = .onDeviceOnly
        case .noConsent: self = .noConsent
        case .redactionRefused: self = .redactionRefused
        case .offline: self = .offline
        case .costCap: self = .costCap
        case .rateLimit: self = .rateLimit
        case .circuitOpen: self = .circuitOpen
        case .other: self = .other
        }
    }
}

extension HandOff {
    init(_ d: HandOffDecision) {
        self.init(
            moment: HandOffMoment(d.moment), route: AnswerRoute(d.route), reason: HandOffReason(d.reason),
            explanation: d.explanation, confidence: d.confidence, threshold: d.threshold, tokens: Int(d.tokens),
            elapsed: d.elapsedMs / 1000)
    }
}

extension FinishReason {
    init(_ finish: HybridFinish) {
        switch finish {
        case .device(let reason): self = FinishReason(reason)
        case .cloud(.stop): self = .stop
        case .cloud(.length): self = .length
        case .cloud(.other): self = .other
        }
    }
}

extension HybridAnswer {
    init(_ a: PannierBindings.HybridAnswer) {
        self.init(
            text: a.text, source: AnswerSource(a.source), confidence: a.confidence.map(Confidence.init),
            finishReason: FinishReason(a.finish), decisions: a.decisions.map(HandOff.init), stats: a.stats.map(GenerationStats.init),
            cloudPromptTokens: Int(a.usage.promptTokens), cloudCompletionTokens: Int(a.usage.completionTokens),
            costMicros: Int64(clamping: a.usage.costMicros), elapsed: a.elapsedMs / 1000)
    }
}

extension HybridEvent {
    init(_ update: HybridUpdate) {
        switch update {
        case .decision(let decision): self = .decision(HandOff(decision))
        case .prefill(let done, let total): self = .prefill(done: Int(done), total: Int(total))
        case .text(let text, let source, let confidence):
            self = .text(text, source: AnswerSource(source), confidence: confidence.map(Confidence.init))
        case .sentence(let text, let confidence): self = .sentence(text, confidence: Confidence(confidence))
        case .discard(let remaining): self = .discard(remaining: remaining)
        case .outgoing(let payload): self = .outgoing(CloudPayload(payload))
        case .notice(let notice): self = .notice(Notice(notice))
        case .completed(let answer): self = .completed(HybridAnswer(answer))
        case .failed(let error): self = .failed(PannierError(error))
        case .cancelled: self = .cancelled
        }
    }
}
