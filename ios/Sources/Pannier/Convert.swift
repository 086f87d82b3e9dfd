import Foundation
internal import PannierBindings

// Between the generated types and the public ones. Nothing else knows both.

func publicError(_ error: any Error) -> any Error {
    (error as? PannierBindings.PannierError).map(PannierError.init) ?? error
}

func rethrowingNow<T>(_ work: () throws -> T) throws -> T {
    do { return try work() } catch { throw publicError(error) }
}

func rethrowing<T: Sendable>(
    isolation: isolated (any Actor)? = #isolation, _ work: () async throws -> T
) async throws -> T {
    do { return try await work() } catch { throw publicError(error) }
}

extension TimeInterval {
    /// Whole milliseconds; what is less than none, or no number, is none.
    var milliseconds: UInt64 { self > 0 ? UInt64(min(self * 1000, 1e15)) : 0 }
}

extension PannierError {
    init(_ error: PannierBindings.PannierError) {
        switch error {
        case .NotFound(let reason): self = .notFound(reason)
        case .InvalidModel(let reason): self = .invalidModel(reason)
        case .Unsupported(let reason): self = .unsupported(reason)
        case .InvalidArgument(let reason): self = .invalidArgument(reason)
        case .OutOfBudget(let reason, let plan): self = .outOfBudget(reason, plan: plan.map(MemoryPlan.init))
        case .ContextOverflow(let reason, let tokens, let limit):
            self = .contextOverflow(reason, tokens: Int(tokens), limit: Int(limit))
        case .Template(let reason): self = .template(reason)
        case .Cancelled(let reason): self = .cancelled(reason)
        case .Busy(let reason): self = .busy(reason)
        case .Closed(let reason): self = .closed(reason)
        case .CrashLoop(let reason, let deaths): self = .crashLoop(reason, deaths: Int(deaths))
        case .Io(let reason): self = .io(reason)
        case .Network(let reason): self = .network(reason)
        case .Internal(let reason): self = .internal(reason)
        }
    }
}

extension MemoryPlan {
    init(_ p: PlanReport) {
        self.init(
            fits: p.fits, budgetBytes: Int64(clamping: p.budgetBytes), context: Int(p.context), maxContext: Int(p.maxContext),
            residentBytes: Int64(p.residentBytes), streamedBytesPerToken: Int64(p.streamedBytesPerToken), kvBytes: Int64(p.kvBytes),
            scratchBytes: Int64(p.scratchBytes), draftBytes: Int64(p.draftBytes), peakBytes: Int64(p.peakBytes), fileBackedBytes: Int64(p.fileBackedBytes),
            predictedDecodeTokensPerSecond: p.predictedDecodeTokS, predictedPrefillTokensPerSecond: p.predictedPrefillTokS,
            speculation: SpeculationForecast(p.speculation), boundBy: p.boundBy, notes: p.notes)
    }
}

extension MemoryUse {
    init(_ m: MemoryReport) {
        self.init(
            budget: m.budget.map { Int64(clamping: $0) }, used: Int64(m.used), peak: Int64(m.peak),
            processAnonymous: m.processAnonymous.map { Int64($0) }, processResident: m.processResident.map { Int64($0) },
            systemAvailable: m.systemAvailable.map { Int64($0) }, systemTotal: m.systemTotal.map { Int64($0) })
    }
}

extension MemoryPressure {
    init(_ level: PressureLevel) {
        switch level {
        case .normal: self = .normal
        case .moderate: self = .moderate
        case .critical: self = .critical
        }
    }

    var toFFI: PressureLevel {
        switch self {
        case .normal: .normal
        case .moderate: .moderate
        case .critical: .critical
        }
    }
}

private func count(_ value: Int?, _ what: String, least: Int) throws(PannierError) -> UInt32? {
    guard let value else { return nil }
    guard value >= least else { throw .invalidArgument("\(what) is \(value), but must be at least \(least)") }
    return UInt32(clamping: value)
}

extension ModelOptions {
    func toFFI(file: URL) throws(PannierError) -> ModelConfig {
        ModelConfig(
            path: file.path, context: try count(context, "context", least: 1), threads: try count(threads, "threads", least: 1),
            prefillChunk: try count(prefillChunk, "prefillChunk", least: 1), kv: try kv.toFFI(), precision: precision.toFFI,
            draftPath: draft?.path, speculation: speculation?.toFFI)
    }
}

extension GenerationOptions {
    func toFFI() throws(PannierError) -> GenerationSettings {
        GenerationSettings(
            maxTokens: try count(maxTokens, "maxTokens", least: 0), stop: stop, temperature: temperature,
            topK: try count(topK, "topK", least: 0), topP: topP, minP: minP, repetitionPenalty: repetitionPenalty, seed: seed,
            topLogprobs: try count(topLogprobs, "topLogprobs", least: 0), deadlineMs: deadline?.milliseconds,
            precision: precision?.toFFI, speculation: speculation?.toFFI,
            draftLength: try count(draftLength, "draftLength", least: 0))
    }
}

extension ChatMessage {
    init(_ m: Message) {
        let role: Role =
            switch m.role {
            case .system: .system
            case .user: .user
            case .assistant: .assistant
            case .tool: .tool
            }
        self.init(role, m.content, fieldsJSON: m.fieldsJson)
    }

    var toFFI: Message {
        let role: MessageRole =
            switch role {
            case .system: .system
            case .user: .user
            case .assistant: .assistant
            case .tool: .tool
            }
        return Message(role: role, content: content, fieldsJson: fieldsJSON)
    }
}

extension GenerationStats {
    init(_ s: Stats) {
        self.init(
            promptTokens: Int(s.promptTokens), cachedTokens: Int(s.cachedTokens), generatedTokens: Int(s.generatedTokens),
            timeToFirstToken: s.timeToFirstTokenMs.map { $0 / 1000 }, totalTime: s.totalMs / 1000,
            prefillTokensPerSecond: s.prefillTokS, decodeTokensPerSecond: s.decodeTokS,
            peakAnonymousBytes: s.peakAnonBytes.map { Int64($0) }, kvType: KVType(s.kvType), evicted: Int(s.evicted),
            view: WeightView(s.view), proposedTokens: Int(s.proposedTokens), acceptedTokens: Int(s.acceptedTokens),
            acceptanceRate: s.acceptanceRate, tokensPerPass: s.tokensPerPass, flashBytesPerToken: s.flashBytesPerToken)
    }
}

extension FinishReason {
    init(_ reason: PannierBindings.FinishReason) {
        switch reason {
        case .stop: self = .stop
        case .stopString: self = .stopString
        case .length: self = .length
        case .contextFull: self = .contextFull
        case .deadline: self = .deadline
        }
    }
}

extension Answer {
    init(_ a: PannierBindings.Answer) {
        let source: AnswerSource =
            switch a.source {
            case .onDevice: .onDevice
            case .cloud: .cloud
            }
        self.init(
            text: a.text, finishReason: FinishReason(a.finishReason), seed: a.seed, source: source, confidence: a.confidence,
            stats: GenerationStats(a.stats))
    }
}

extension Token {
    init(_ t: TokenReport) {
        let top = t.top.map { TokenChoice(id: Int($0.id), logprob: $0.logprob) }
        self.init(id: Int(t.id), logprob: t.logprob, margin: t.margin, entropy: t.entropy, top: top)
    }
}

extension Notice {
    init(_ notice: GenerationNotice) {
        switch notice {
        case .prefixNotReused(let tokens): self = .prefixNotReused(tokens: Int(tokens))
        case .memoryPressure(let level, let cacheBytes):
            self = .pressureChanged(MemoryPressure(level), cacheBytes: Int64(clamping: cacheBytes))
        case .draftReleased(let bytes): self = .draftReleased(bytes: Int64(clamping: bytes))
        case .heat(let level, let threads): self = .heatChanged(Heat(level), threads: Int(threads))
        case .evicted(let report): self = .evicted(Eviction(report))
        case .turnsDropped(let messages): self = .turnsDropped(messages: Int(messages))
        case .viewChosen(let view, let reason): self = .viewChosen(WeightView(view), because: ViewReason(reason))
        case .incompleteCharacter: self = .incompleteCharacter
        case .other: self = .other
        }
    }
}

extension GenerationEvent {
    init(_ event: PannierBindings.GenerationEvent) {
        switch event {
        case .started(let prompt, let cached): self = .started(promptTokens: Int(prompt), cachedTokens: Int(cached))
        case .prefill(let done, let total): self = .prefill(done: Int(done), total: Int(total))
        case .text(let text, let tokens): self = .text(text, tokens: tokens.map(Token.init))
        case .notice(let notice): self = .notice(Notice(notice))
        case .completed(let answer): self = .completed(Answer(answer))
        case .failed(let error): self = .failed(PannierError(error))
        case .cancelled(let stats): self = .cancelled(GenerationStats(stats))
        }
    }
}

extension ModelState {
    init(_ state: ModelLifeState) {
        switch state {
        case .notDownloaded: self = .notDownloaded
        case .downloading(let done, let total): self = .downloading(done: Int64(done), total: total.map { Int64($0) })
        case .downloaded: self = .downloaded
        case .preparing(let fraction): self = .preparing(fraction)
        case .loading(let fraction): self = .loading(fraction)
        case .ready: self = .ready
        case .generating: self = .generating
        case .suspended: self = .suspended
        case .unloaded: self = .unloaded
        case .failed(let reason): self = .failed(reason: reason)
        }
    }
}

extension ModelInfo {
    init(_ d: ModelDetails) {
        self.init(
            name: d.name, architecture: d.architecture, context: Int(d.context), trainedContext: Int(d.trainedContext),
            fileBytes: Int64(d.fileBytes), threads: Int(d.threads), instructionSet: d.isa, notes: d.notes,
            loadTime: d.loadMs / 1000)
    }
}

extension KnownModel {
    init(_ k: PannierBindings.KnownModel) {
        self.init(
            name: k.name, about: k.about, licence: k.licence, file: k.file, bytes: Int64(k.bytes), sha256: k.sha256,
            instruct: k.instruct)
    }
}

extension StoredModel {
    init(_ m: ModelFile) {
        self.init(file: URL(fileURLWithPath: m.path), bytes: Int64(m.bytes), name: m.name)
    }
}

extension DownloadEvent {
    init(_ update: DownloadUpdate) {
        switch update {
        case .started(let from, let total): self = .started(resumedFrom: Int64(from), total: total.map { Int64($0) })
        case .progress(let done, let total, let speed, let remaining):
            self = .progress(
                done: Int64(done), total: total.map { Int64($0) }, bytesPerSecond: speed,
                remaining: remaining.map { Double($0) / 1000 })
        case .restarted(let reason): self = .restarted(reason: reason)
        case .retrying(let reason, let after): self = .retrying(reason: reason, after: Double(after) / 1000)
        case .sourceFailed(let reason): self = .sourceFailed(reason: reason)
        case .verifying(let done, let total): self = .verifying(done: Int64(done), total: Int64(total))
        }
    }
}
