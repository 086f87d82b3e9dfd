import Pannier

/// What the user may set. The cloud is off until the user turns it on.
public struct ChatSettings: Sendable, Hashable {
    public var budgetMebibytes: Int
    public var contextTokens: Int
    public var cloudAllowed: Bool
    /// Below this, an answer of the device is not good enough.
    public var minConfidence: Double

    public init(budgetMebibytes: Int = 512, contextTokens: Int = 2048, cloudAllowed: Bool = false, minConfidence: Double = 0.7) {
        self.budgetMebibytes = budgetMebibytes
        self.contextTokens = contextTokens
        self.cloudAllowed = cloudAllowed
        self.minConfidence = minConfidence
    }
}

/// One line of the conversation, as it is shown.
public struct ChatLine: Sendable, Hashable {
    public var fromUser: Bool
    public var text: String
    /// Under an answer: where it comes from and how sure it is.
    public var badge: String?
    /// Why another side than usual answered.
    public var reason: String?

    public init(fromUser: Bool, text: String, badge: String? = nil, reason: String? = nil) {
        self.fromUser = fromUser
        self.text = text
        self.badge = badge
        self.reason = reason
    }
}

/// A download under way.
public struct Progress: Sendable, Hashable {
    /// From 0 to 1.
    public var share: Double
    /// Speed and time left.
    public var line: String
}

/// Everything the screen shows.
public struct ChatScreen: Sendable, Hashable {
    public var models: [KnownModel] = []
    public var here: Set<String> = []
    public var chosen: String?
    /// `nil` while nothing is downloaded.
    public var download: Progress?
    public var plan: MemoryPlan?
    public var lines: [ChatLine] = []
    public var answering = false
    /// Speed and memory.
    public var meter = ""
    public var online = true
    /// The last thing that went wrong, or that the user should know.
    public var notice: String?
}
