import Foundation

/// One event of a generation. Exactly one of the last three ends each; see ``isTerminal``.
public enum GenerationEvent: Sendable {
    /// The prompt was accepted: its tokens with the history, and how many of them need not be read again.
    case started(promptTokens: Int, cachedTokens: Int)
    /// A part of the prompt was read: `done` of `total` tokens, without the cached ones.
    case prefill(done: Int, total: Int)
    /// More of the answer, whole characters only, with the tokens since the last such event.
    case text(String, tokens: [Token])
    /// Something happened that changes the answer or its cost and that nobody asked for.
    case notice(Notice)
    /// The answer is complete.
    case completed(Answer)
    /// The generation failed.
    case failed(PannierError)
    /// The generation was cancelled: by ``ChatSession/cancel()``, or because the session or its model was closed or unloaded.
    case cancelled(GenerationStats)

    /// Whether this is the last event of its generation.
    public var isTerminal: Bool {
        switch self {
        case .completed, .failed, .cancelled: true
        case .started, .prefill, .text, .notice: false
        }
    }
}

/// What is never silent.
public enum Notice: Sendable, Hashable {
    /// The start of the prompt had been read before, but so many tokens of it are read again.
    case prefixNotReused(tokens: Int)
    /// Memory is scarce, or no longer: the cache of weights will have this size. Only speed depends on it.
    case pressureChanged(MemoryPressure, cacheBytes: Int64)
    /// Memory is scarce: the draft model, which took so many bytes of the budget, was given up until the model is loaded again. Only speed
    /// depends on it.
    case draftReleased(bytes: Int64)
    /// The device is so hot, or no longer: so many threads compute from the next token on. Only speed depends on it.
    case heatChanged(Heat, threads: Int)
    /// The policy of the KV cache has forgotten tokens: the answer may be another than with all of them.
    case evicted(Eviction)
    /// The conversation did not fit into the context: its oldest messages left the history.
    case turnsDropped(messages: Int)
    /// Which view of a model in nested precision goes on from here, and why; told with ``WeightPrecision/auto``.
    case viewChosen(WeightView, because: ViewReason)
    /// The answer was cut inside of a character; its first bytes are not part of the text.
    case incompleteCharacter
    /// Something that this version has no word for.
    case other
}

/// A token of the answer with the model's own opinion of it.
public struct Token: Sendable, Hashable {
    /// Its number in the vocabulary.
    public let id: Int
    /// Natural logarithm of its probability.
    public let logprob: Float
    /// Probability of the most likely token minus that of the second: 0 is a coin toss, 1 is certain.
    public let margin: Float
    /// Entropy of the distribution, in nats.
    public let entropy: Float
    /// The most likely tokens, as many as were asked for.
    public let top: [TokenChoice]
}

/// A token with the natural logarithm of its probability.
public struct TokenChoice: Sendable, Hashable {
    /// Its number in the vocabulary.
    public let id: Int
    /// Natural logarithm of its probability.
    public let logprob: Float
}

/// Why an answer ended.
public enum FinishReason: Sendable, Hashable {
    /// The model ended it.
    case stop
    /// A stop string appeared.
    case stopString
    /// As many tokens as were asked for.
    case length
    /// The context is full.
    case contextFull
    /// The deadline passed.
    case deadline
    /// A cloud's own reason, such as a content filter.
    case other
}

/// Who answered.
public enum AnswerSource: Sendable, Hashable {
    /// The model on this device.
    case onDevice
    /// A model in the cloud, which the app configured and allowed.
    case cloud
    /// The beginning from this device, the rest from the cloud.
    case both
}

/// A finished answer.
public struct Answer: Sendable, Hashable {
    /// All of the text, equal to the texts of the events put together.
    public let text: String
    /// Why it ended.
    public let finishReason: FinishReason
    /// The seed that repeats the answer.
    public let seed: UInt64
    /// Who answered.
    public let source: AnswerSource
    /// Estimated probability that the answer is right, from 0 to 1; `nil` where nobody can tell.
    public let confidence: Double?
    /// What it took.
    public let stats: GenerationStats
}

/// What a generation took. Times in seconds.
public struct GenerationStats: Sendable, Hashable {
    /// Tokens of the prompt, with the history.
    public let promptTokens: Int
    /// Tokens of the prompt that were not read again.
    public let cachedTokens: Int
    /// Tokens of the answer.
    public let generatedTokens: Int
    /// From the call to the first token; `nil` if there was none.
    public let timeToFirstToken: TimeInterval?
    /// From the call to the end.
    public let totalTime: TimeInterval
    /// Prompt tokens read per second; 0 if none were.
    public let prefillTokensPerSecond: Double
    /// Tokens per second after the first; 0 if there are none.
    public let decodeTokensPerSecond: Double
    /// The most anonymous memory the process was seen to have, in bytes; `nil` where the system does not tell.
    public let peakAnonymousBytes: Int64?
    /// Element types of the KV cache that the answer was computed with.
    public let kvType: KVType?
    /// Tokens that the policy of the KV cache has forgotten meanwhile.
    public let evicted: Int
    /// The view of the weights that the last token was computed with; full, unless the file is in nested precision.
    public let view: WeightView
    /// Tokens that were guessed and checked in a pass.
    public let proposedTokens: Int
    /// Those of them that became part of the answer.
    public let acceptedTokens: Int
    /// The share of guessed tokens that were right, from 0 to 1; `nil` if none were guessed. Those behind a wrong one count as wrong.
    public let acceptanceRate: Double?
    /// Tokens that a pass gave on average, after the first one; 1 without guesses; `nil` if there was no such pass.
    public let tokensPerPass: Double?
    /// Bytes of weights read from flash for each token of the answer after the first; `nil` if nothing is streamed.
    public let flashBytesPerToken: Double?
}

/// What a model is doing.
public enum ModelState: Sendable, Hashable {
    /// There is no file.
    case notDownloaded
    /// The file is arriving: bytes on disk of its size, where known.
    case downloading(done: Int64, total: Int64?)
    /// The file is there; nothing is loaded.
    case downloaded
    /// The file is being rewritten into the layout for streaming, from 0 to 1.
    case preparing(Float)
    /// The model is being loaded, from 0 to 1.
    case loading(Float)
    /// Loaded, and idle.
    case ready
    /// Loaded, and answering.
    case generating
    /// Unloaded because the app went to the background.
    case suspended
    /// Unloaded; loaded again when it is used.
    case unloaded
    /// The last attempt to download or load failed.
    case failed(reason: String)
}

/// What a download tells. ``completed(file:bytes:)`` is the last one; a download that fails throws instead.
public enum DownloadEvent: Sendable, Hashable {
    /// A source answered; `resumedFrom` bytes were there before.
    case started(resumedFrom: Int64, total: Int64?)
    /// Bytes arrived: bytes on disk, size where known, speed over the last seconds, seconds left where it can be told.
    case progress(done: Int64, total: Int64?, bytesPerSecond: Double, remaining: TimeInterval?)
    /// The bytes on disk could not be continued; the download began again.
    case restarted(reason: String)
    /// A source failed and is tried again after so many seconds.
    case retrying(reason: String, after: TimeInterval)
    /// A source failed for good; the next one is tried, if there is one.
    case sourceFailed(reason: String)
    /// The digest is being computed: bytes read of bytes to read.
    case verifying(done: Int64, total: Int64)
    /// The file is whole, verified, and in its place.
    case completed(file: URL, bytes: Int64)
}
