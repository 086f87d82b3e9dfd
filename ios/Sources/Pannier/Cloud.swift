import Foundation
internal import PannierBindings

/// A cloud with the consent to use it, and bounds. Making one opens no connection. One for all conversations of an app, so that the bounds
/// are kept together.
public final class Cloud: Sendable {
    let ffi: HybridCloud
    private let budget: CloudBudget

    private init(_ ffi: HybridCloud, _ budget: CloudBudget) {
        self.ffi = ffi
        self.budget = budget
    }

    /// An OpenAI-compatible server, by the built-in client.
    ///
    /// - Parameters:
    ///   - endpoint: where, and how to talk to it.
    ///   - redactor: takes out what must stay on the device; `nil` from it: the messages may not leave. The conversation keeps the originals.
    ///   - bounds: of cost and use.
    ///   - patience: how long the cloud may take.
    ///   - consent: whether exactly this may be sent. Asked for every request on the turn's thread, which waits: an app may ask its user.
    /// - Throws: ``PannierError/invalidArgument(_:)`` if the address is none, or not HTTPS.
    public static func openAI(
        _ endpoint: CloudEndpoint, redactor: (@Sendable ([ChatMessage]) -> [ChatMessage]?)? = nil,
        bounds: CloudBounds = CloudBounds(), patience: CloudPatience = CloudPatience(),
        consent: @escaping @Sendable (CloudPayload) -> Bool
    ) throws -> Cloud {
        let budget = CloudBudget(bounds: bounds.toFFI)
        return try rethrowingNow {
            let ffi = try HybridCloud.openAi(
                endpoint: endpoint.toFFI, consent: ConsentRelay(ask: consent), redactor: redactor.map { RedactorRelay(redact: $0) },
                budget: budget, waits: patience.toFFI)
            return Cloud(ffi, budget)
        }
    }

    /// The app's own way to a cloud: its gateway, its tokens. The parameters are those of ``openAI(_:redactor:bounds:patience:consent:)``.
    public static func custom(
        _ transport: any CloudTransport, redactor: (@Sendable ([ChatMessage]) -> [ChatMessage]?)? = nil,
        bounds: CloudBounds = CloudBounds(), patience: CloudPatience = CloudPatience(),
        consent: @escaping @Sendable (CloudPayload) -> Bool
    ) -> Cloud {
        let budget = CloudBudget(bounds: bounds.toFFI)
        let ffi = HybridCloud.custom(
            transport: TransportRelay(transport), consent: ConsentRelay(ask: consent),
            redactor: redactor.map { RedactorRelay(redact: $0) }, budget: budget, waits: patience.toFFI)
        return Cloud(ffi, budget)
    }

    /// What was spent today, to be kept over restarts.
    public var ledger: CloudLedger {
        let ledger = budget.ledger()
        return CloudLedger(day: Int(ledger.day), spentMicros: Int64(clamping: ledger.spentMicros))
    }

    /// Takes up a kept ledger.
    public func restore(_ ledger: CloudLedger) {
        budget.restore(
            ledger: PannierBindings.CloudLedger(day: UInt64(max(ledger.day, 0)), spentMicros: UInt64(max(ledger.spentMicros, 0))))
    }
}

/// An app's own way to a cloud model.
public protocol CloudTransport: Sendable {
    /// The model's name, for events.
    var name: String { get }

    /// What would be sent for this prompt. Opens nothing. Throws ``CloudFailure``.
    func prepare(_ prompt: CloudPrompt) throws -> CloudPayload

    /// Sends a prepared payload, and gives the pieces of the answer. The stream is dropped when nobody waits for it any more: close the
    /// connection then. Fails with ``CloudFailure``.
    func send(_ payload: CloudPayload) -> AsyncThrowingStream<String, any Error>
}

/// Why an app's own transport failed. The reason carries neither keys nor prompts: it is told in events.
public struct CloudFailure: Error, Sendable, Hashable {
    /// What happened.
    public var reason: String
    /// The HTTP status, if the server refused; `nil`: it was not reached.
    public var status: Int?
    /// When to come back, in seconds, if the server says so.
    public var retryAfter: TimeInterval?

    /// A failure.
    public init(_ reason: String, status: Int? = nil, retryAfter: TimeInterval? = nil) {
        self.reason = reason
        self.status = status
        self.retryAfter = retryAfter
    }
}

/// What is asked of the cloud, after redaction.
public struct CloudPrompt: Sendable, Hashable {
    /// The conversation, oldest first.
    public let messages: [ChatMessage]
    /// The last message is the beginning of the answer: to be continued, not answered.
    public let continueFinal: Bool
    /// At most this many tokens.
    public let maxTokens: Int?
    /// Sampling temperature.
    public let temperature: Float?
    /// Seed, for servers that know it.
    public let seed: UInt64?
    /// The answer ends before the first of these.
    public let stop: [String]
}

/// Exactly what leaves the device. Keys are not part of it.
public struct CloudPayload: Sendable, Hashable {
    /// Where to.
    public var destination: String
    /// The body, to the byte.
    public var body: String

    /// A payload.
    public init(destination: String, body: String) {
        self.destination = destination
        self.body = body
    }
}

/// An OpenAI-compatible server and how to talk to it. Printing it shows neither the key nor the headers.
public struct CloudEndpoint: Sendable, CustomStringConvertible, CustomReflectable {
    /// The address up to and including `/v1`. HTTPS, except on loopback.
    public var baseURL: String
    /// The name of the model there.
    public var model: String
    /// Sent as a bearer token.
    var key: String?
    /// Further headers; their values are treated as secrets.
    var headers: [String: String]
    /// Further fields of the request, as a JSON object.
    public var extraJSON: String?
    /// How often a failed request is sent again.
    public var retries: Int

    /// A server.
    public init(
        baseURL: String, model: String, key: String? = nil, headers: [String: String] = [:], extraJSON: String? = nil, retries: Int = 2
    ) {
        self.baseURL = baseURL
        self.model = model
        self.key = key
        self.headers = headers
        self.extraJSON = extraJSON
        self.retries = retries
    }

    /// Without the key and the headers.
    public var description: String { "CloudEndpoint(baseURL: \(baseURL), model: \(model))" }
    /// Without the key and the headers.
    public var customMirror: Mirror { Mirror(self, children: ["baseURL": baseURL, "model": model]) }
}

/// Bounds of cloud use, in millionths of the app's currency. `nil` is unbounded.
public struct CloudBounds: Sendable, Hashable {
    /// Price of a million tokens of requests.
    public var promptPriceMicros: Int64
    /// Price of a million tokens of answers.
    public var completionPriceMicros: Int64
    /// The most a request may cost.
    public var maxPerRequestMicros: Int64?
    /// The most that all requests of a day (UTC) may cost.
    public var maxPerDayMicros: Int64?
    /// The most requests per minute.
    public var maxPerMinute: Int?
    /// After so many failures in a row the cloud is left alone for a while.
    public var failuresToOpen: Int
    /// For how many seconds, at first.
    public var openFor: TimeInterval

    /// No bounds but those given.
    public init(
        promptPriceMicros: Int64 = 0, completionPriceMicros: Int64 = 0, maxPerRequestMicros: Int64? = nil,
        maxPerDayMicros: Int64? = nil, maxPerMinute: Int? = nil, failuresToOpen: Int = 3, openFor: TimeInterval = 30
    ) {
        self.promptPriceMicros = promptPriceMicros
        self.completionPriceMicros = completionPriceMicros
        self.maxPerRequestMicros = maxPerRequestMicros
        self.maxPerDayMicros = maxPerDayMicros
        self.maxPerMinute = maxPerMinute
        self.failuresToOpen = failuresToOpen
        self.openFor = openFor
    }
}

/// How long the cloud may take, in seconds.
public struct CloudPatience: Sendable, Hashable {
    /// Until its first text.
    public var firstText: TimeInterval
    /// Between texts.
    public var between: TimeInterval
    /// For the whole answer.
    public var whole: TimeInterval

    /// The engine's defaults where nothing is given.
    public init(firstText: TimeInterval = 20, between: TimeInterval = 15, whole: TimeInterval = 180) {
        self.firstText = firstText
        self.between = between
        self.whole = whole
    }
}

/// What was spent.
public struct CloudLedger: Sendable, Hashable, Codable {
    /// Days since 1970, UTC.
    public var day: Int
    /// Spent on that day, in millionths.
    public var spentMicros: Int64

    /// A ledger.
    public init(day: Int, spentMicros: Int64) {
        self.day = day
        self.spentMicros = spentMicros
    }
}
