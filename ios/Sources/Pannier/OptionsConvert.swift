internal import PannierBindings

// Between the generated types and the public ones, for options of the KV cache, of precision and of speculation.

private func count(_ value: Int, _ what: String, least: Int = 1) throws(PannierError) -> UInt32 {
    guard value >= least else { throw .invalidArgument("\(what) is \(value), but must be at least \(least)") }
    return UInt32(clamping: value)
}

extension KVOptions {
    func toFFI() throws(PannierError) -> KvConfig {
        if let prefixBytes, prefixBytes < 0 {
            throw .invalidArgument("prefixBytes is \(prefixBytes), but must be at least 0")
        }
        return KvConfig(
            kvType: type.toFFI, policy: try policy.toFFI(), evict: try evict.toFFI(),
            prefixBytes: prefixBytes.map { UInt64($0) })
    }
}

extension KVType {
    var toFFI: KvType {
        switch self {
        case .f16: .f16
        case .q8: .q8
        case .q8Channel: .q8Channel
        case .k8v4: .k8v4
        case .q4: .q4
        case .q4Channel: .q4Channel
        }
    }

    /// `nil` for types that apps cannot choose.
    init?(_ type: KvType?) {
        guard let known = Self.allCases.first(where: { $0.toFFI == type }) else { return nil }
        self = known
    }
}

extension KVPolicy {
    func toFFI() throws(PannierError) -> KvPolicy {
        switch self {
        case .keepAll: .keepAll
        case .window(let recent): .window(recent: try count(recent, "recent"))
        case .sinks(let sinks, let recent):
            .sinks(sinks: try count(sinks, "sinks"), recent: try count(recent, "recent"))
        case .heavyHitters(let sinks, let recent, let top):
            .heavyHitters(sinks: try count(sinks, "sinks"), recent: try count(recent, "recent"), top: try count(top, "top"))
        case .pages(let tokens): .pages(tokens: try count(tokens, "tokens"))
        }
    }
}

extension EvictWhen {
    func toFFI() throws(PannierError) -> PannierBindings.EvictWhen {
        switch self {
        case .asked: .asked
        case .above(let slack): .above(slack: try count(slack, "slack", least: 0))
        }
    }
}

extension Eviction {
    init(_ report: EvictionReport) { self.init(gone: Int(report.gone), kept: Int(report.kept)) }
}

extension Overflow {
    func toFFI() throws(PannierError) -> ContextOverflow {
        switch self {
        case .fail: .fail
        case .dropOldest(let reserve): .dropOldest(reserve: try count(reserve, "reserve", least: 0))
        }
    }
}

extension WeightPrecision {
    var toFFI: PrecisionChoice {
        switch self {
        case .low: .low
        case .full: .full
        case .auto: .auto
        }
    }
}

extension Speculation {
    var toFFI: SpeculationChoice {
        switch self {
        case .off: .off
        case .auto: .auto
        case .ngram: .ngram
        case .draft: .draft
        }
    }
}

extension SpeculationForecast {
    init(_ f: PannierBindings.SpeculationForecast) {
        self.init(
            draftLength: Int(f.draftLength), tokensPerPass: f.tokensPerPass, decodeTokensPerSecond: f.decodeTokS, gain: f.gain)
    }
}

extension WeightView {
    init(_ view: PannierBindings.WeightView) {
        switch view {
        case .low: self = .low
        case .full: self = .full
        }
    }
}

extension ViewReason {
    init(_ reason: WeightViewReason) {
        switch reason {
        case .shortPrompt: self = .shortPrompt
        case .longPrompt: self = .longPrompt
        case .sure: self = .sure
        case .unsure: self = .unsure
        case .onlyOne: self = .onlyOne
        case .other: self = .other
        }
    }
}
