import Foundation

/// One event of a turn of a ``HybridSession``. Exactly one of the last three ends each; see ``isTerminal``.
public enum HybridEvent: Sendable {
    /// A decision, with its reason. Nothing is handed over silently.
    case decision(HandOff)
    /// A part of the prompt was read on the device: `done` of `total` tokens.
    case prefill(done: Int, total: Int)
    /// More of the answer, whole characters only: whose it is, and how sure the device is of the sentence under way (`nil` for the
    /// cloud's text).
    case text(String, source: AnswerSource, confidence: Confidence?)
    /// A sentence of the device's draft is complete, and was shown.
    case sentence(String, confidence: Confidence)
    /// Shown text is taken back: show this instead.
    case discard(remaining: String)
    /// Exactly this will leave the device, if consent is given.
    case outgoing(CloudPayload)
    /// Something of the device's generation that nobody asked for.
    case notice(Notice)
    /// The answer is complete.
    case completed(HybridAnswer)
    /// There is no answer.
    case failed(PannierError)
    /// The turn was cancelled. What was shown is part of the history.
    case cancelled

    /// Whether this is the last event of its turn.
    public var isTerminal: Bool {
        switch self {
        case .completed, .failed, .cancelled: true
        case .decision, .prefill, .text, .sentence, .discard, .outgoing, .notice: false
        }
    }
}

/// A probability of being right.
public struct Confidence: Sendable, Hashable {
    /// From 0 to 1.
    public let value: Double
    /// Whether it was fitted on answers of this model. If not, its size is a guess.
    public let fitted: Bool
}

/// When a decision fell.
public enum HandOffMoment: Sendable, Hashable {
    /// Before any work.
    case admission
    /// Before the first visible token, or where that would have been.
    case firstCheck
    /// At the border of a sentence.
    case sentence
    /// The draft is complete.
    case end
    /// When one side failed.
    case failure
}

/// Why a side was taken.
public enum HandOffReason: Sendable, Hashable {
    /// The policy prefers it.
    case policy
    /// The app's own rule.
    case appRule
    /// The class of the task.
    case task
    /// The prompt is too long for the device.
    case promptTooLong
    /// Little charge left.
    case battery
    /// Too hot.
    case heat
    /// The system needs memory.
    case memoryPressure
    /// The draft is good enough.
    case confident
    /// The draft is not good enough.
    case unsure
    /// The draft is not good enough, but the cloud's answer is not expected to be better.
    case noGain
    /// The device was too slow.
    case slow
    /// The device failed.
    case edgeFailed
    /// The cloud failed.
    case cloudFailed
    /// The cloud judged the draft to be right.
    case verified
    /// The cloud corrected the draft.
    case corrected
    /// No cloud is configured.
    case noCloud
    /// The policy, the conversation, or this turn stays on the device.
    case onDeviceOnly
    /// The app, or its user, did not consent.
    case noConsent
    /// The redactor refused.
    case redactionRefused
    /// No network.
    case offline
    /// A cost cap is in the way.
    case costCap
    /// Too many requests in the last minute.
    case rateLimit
    /// The cloud failed repeatedly and is left alone for a while.
    case circuitOpen
    /// Something that this version has no word for.
    case other
}

/// A decision with its reason and numbers.
public struct HandOff: Sendable, Hashable {
    /// When.
    public let moment: HandOffMoment
    /// Who goes on.
    public let route: AnswerRoute
    /// Why.
    public let reason: HandOffReason
    /// Why, in words for a developer. Holds no text of the conversation.
    public let explanation: String
    /// The score it was based on.
    public let confidence: Double?
    /// What the score was compared with.
    public let threshold: Double?
    /// Tokens of the draft so far.
    public let tokens: Int
    /// Seconds since the turn began.
    public let elapsed: TimeInterval
}

/// A finished turn.
public struct HybridAnswer: Sendable, Hashable {
    /// The answer.
    public let text: String
    /// Where it comes from.
    public let source: AnswerSource
    /// How sure the device was of its draft, if it made one.
    public let confidence: Confidence?
    /// Why it ended.
    public let finishReason: FinishReason
    /// All decisions, in order.
    public let decisions: [HandOff]
    /// What the device's generation took, if it ran to its end.
    public let stats: GenerationStats?
    /// Tokens that the cloud was sent, as it counts.
    public let cloudPromptTokens: Int
    /// Tokens that the cloud answered with.
    public let cloudCompletionTokens: Int
    /// What that cost, in millionths of the app's currency.
    public let costMicros: Int64
    /// Seconds from the call to the end.
    public let elapsed: TimeInterval
}
