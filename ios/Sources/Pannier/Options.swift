import Foundation

/// How much anonymous memory all models of a ``Pannier`` may take together.
///
/// Pages of model files do not count: the system takes them back when it needs them.
public struct MemoryBudget: Sendable, Hashable {
    /// The budget in bytes; `nil`: none.
    public let bytes: Int64?

    /// No limit. For desktops and tests; on a phone give a limit.
    public static let unlimited = MemoryBudget(bytes: nil)

    /// This many bytes.
    public static func bytes(_ bytes: Int64) -> MemoryBudget {
        precondition(bytes > 0, "a budget must be positive")
        return MemoryBudget(bytes: bytes)
    }

    /// This many mebibytes.
    public static func mebibytes(_ mebibytes: Int) -> MemoryBudget { bytes(Int64(mebibytes) << 20) }
}

/// How a model is loaded.
public struct ModelOptions: Sendable, Hashable {
    /// The longest conversation in tokens; `nil`: what the model was trained for, and with a budget at most what fits.
    public var context: Int?
    /// Threads; `nil`: the performance cores.
    public var threads: Int?
    /// The most prompt tokens per pass; more need more memory and make other sessions wait longer.
    public var prefillChunk: Int?
    /// The KV cache: element types, and what may be forgotten.
    public var kv: KVOptions
    /// Which view of a file in nested precision answers if a request does not say. With ``WeightPrecision/low`` the rest of the file is never
    /// read, and there is no other view; loading another file so is ``PannierError/unsupported(_:)``.
    public var precision: WeightPrecision
    /// The file of a smaller model of the same vocabulary that guesses tokens for this one, such as ``ModelStore/find(_:)`` gives; `nil`:
    /// none. It is loaded with the model, within the same budget, and given up first when memory is scarce. A file that is not there is
    /// ``PannierError/notFound(_:)``, another vocabulary ``PannierError/invalidArgument(_:)``, and a budget that does not hold it whole
    /// ``PannierError/outOfBudget(_:plan:)``; each when the model is loaded.
    public var draft: URL?
    /// Where guesses come from if a request does not say; `nil`: from ``draft`` if there is one, else nowhere. ``Speculation/draft``
    /// without ``draft`` is ``PannierError/invalidArgument(_:)``.
    public var speculation: Speculation?

    /// The engine's defaults where nothing is given.
    public init(
        context: Int? = nil, threads: Int? = nil, prefillChunk: Int? = nil, kv: KVOptions = KVOptions(),
        precision: WeightPrecision = .full, draft: URL? = nil, speculation: Speculation? = nil
    ) {
        self.kv = kv
        self.precision = precision
        self.draft = draft
        self.speculation = speculation
        self.context = context
        self.threads = threads
        self.prefillChunk = prefillChunk
    }
}

/// How an answer is generated. `nil` is the engine's default.
public struct GenerationOptions: Sendable, Hashable {
    /// At most this many tokens; `nil`: until the model ends or the context is full.
    public var maxTokens: Int?
    /// The answer ends before the first of these strings. At most 64, of 1 to 1024 bytes.
    public var stop: [String]
    /// 0 always takes the most likely token; 1 is the model's own distribution.
    public var temperature: Float?
    /// Keep the most likely tokens; 0 keeps all.
    public var topK: Int?
    /// Keep the smallest set of tokens that has this probability; 1 keeps all.
    public var topP: Float?
    /// Drop tokens less likely than this share of the most likely one; 0 keeps all.
    public var minP: Float?
    /// Makes what was said lately less likely; 1 is off.
    public var repetitionPenalty: Float?
    /// Repeats an answer; `nil`: another one each time. ``Answer/seed`` tells which.
    public var seed: UInt64?
    /// How many alternatives to report for each token.
    public var topLogprobs: Int?
    /// Ends the answer with what there is after so many seconds.
    public var deadline: TimeInterval?
    /// Which view of a model in nested precision answers; `nil`: as the model was loaded. A view that is not there ends the turn with
    /// ``PannierError/unsupported(_:)``. Views are never mixed: what a session has read with another one is read again.
    public var precision: WeightPrecision?
    /// Where guessed tokens come from; `nil`: as the model was loaded. ``Speculation/draft`` ends the turn with
    /// ``PannierError/invalidArgument(_:)`` if the model was loaded without a draft model.
    public var speculation: Speculation?
    /// Always guess so many tokens, from 0 to 8, whether it pays or not: for measurements; `nil`: as many as pay.
    public var draftLength: Int?

    /// The engine's defaults where nothing is given.
    public init(
        maxTokens: Int? = nil, stop: [String] = [], temperature: Float? = nil, topK: Int? = nil, topP: Float? = nil,
        minP: Float? = nil, repetitionPenalty: Float? = nil, seed: UInt64? = nil, topLogprobs: Int? = nil,
        deadline: TimeInterval? = nil, precision: WeightPrecision? = nil, speculation: Speculation? = nil,
        draftLength: Int? = nil
    ) {
        self.maxTokens = maxTokens
        self.stop = stop
        self.temperature = temperature
        self.topK = topK
        self.topP = topP
        self.minP = minP
        self.repetitionPenalty = repetitionPenalty
        self.seed = seed
        self.topLogprobs = topLogprobs
        self.deadline = deadline
        self.precision = precision
        self.speculation = speculation
        self.draftLength = draftLength
    }

    /// Always the most likely token.
    public static func greedy(maxTokens: Int) -> GenerationOptions {
        GenerationOptions(maxTokens: maxTokens, temperature: 0)
    }
}

/// What happens when the next turn does not fit into the context.
public enum Overflow: Sendable, Hashable {
    /// The turn fails with ``PannierError/contextOverflow(_:tokens:limit:)``; the history stays as it is.
    case fail
    /// The oldest turns leave the history, so that the prompt and an answer of so many tokens fit; told in
    /// ``Notice/turnsDropped(messages:)``. System messages at the beginning stay.
    case dropOldest(reserve: Int = 256)
}

/// Who speaks.
public enum Role: Sendable, Hashable {
    /// Instructions of the app.
    case system
    /// The user.
    case user
    /// The model.
    case assistant
    /// The result of a tool.
    case tool
}

/// One message of a conversation.
public struct ChatMessage: Sendable, Hashable {
    /// Who speaks.
    public var role: Role
    /// What is said.
    public var content: String
    /// Further fields for the chat template, as a JSON object.
    public var fieldsJSON: String?

    /// A message.
    public init(_ role: Role, _ content: String, fieldsJSON: String? = nil) {
        self.role = role
        self.content = content
        self.fieldsJSON = fieldsJSON
    }
}
