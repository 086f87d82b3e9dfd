import Foundation
internal import PannierBindings

/// A conversation that the device and a cloud answer together. It stands on a ``ChatSession`` and shares its history: use one of both at a
/// time. Without a ``Cloud`` nothing can leave the device, whatever the policy.
public final class HybridSession: Sendable {
    /// The conversation on the device.
    public let chat: ChatSession
    /// What confidences of this model are worth.
    public let calibration: Calibration
    private let ffi: HybridChat

    /// - Parameters:
    ///   - chat: the conversation on the device.
    ///   - policy: who answers.
    ///   - rules: what is decided before any work.
    ///   - cloud: the cloud, with the consent to use it.
    ///   - device: tells the state of the device when a turn begins; `nil`: unknown.
    ///   - rule: the app's own say, asked before any work; it answers `nil` when it has none. Never overrides privacy.
    public init(
        _ chat: ChatSession, policy: HybridPolicy = .onDeviceOnly, rules: HybridRules = HybridRules(), cloud: Cloud? = nil,
        device: (@Sendable () -> DeviceCondition)? = nil, rule: (@Sendable (AdmissionFacts) -> AnswerRoute?)? = nil
    ) {
        self.chat = chat
        let config = HybridConfig(
            policy: policy.toFFI, rules: rules.toFFI, cloud: cloud?.ffi, modelPath: chat.model.file.path)
        ffi = HybridChat(
            chat: chat.ffi, config: config, device: device.map { ProbeRelay(ask: $0) }, rule: rule.map { RuleRelay(ask: $0) })
        calibration = Calibration(ffi.calibration())
    }

    /// The conversation so far, the system message first.
    public var history: [ChatMessage] { ffi.history().map(ChatMessage.init) }

    /// Whether this conversation stays on the device for good.
    public var isLockedToDevice: Bool { ffi.isLockedToDevice() }

    /// From now on, this conversation stays on the device. There is no way back.
    public func lockToDevice() { ffi.lockToDevice() }

    /// Says `text` as the user. See the other `send`.
    public func send(
        _ text: String, options: GenerationOptions = GenerationOptions(), task: String? = nil, onDeviceOnly: Bool = false
    ) -> AsyncThrowingStream<HybridEvent, any Error> {
        send([ChatMessage(.user, text)], options: options, task: task, onDeviceOnly: onDeviceOnly)
    }

    /// Adds messages and streams the answer. The turn begins now; the stream is for one reader.
    ///
    /// The last event is terminal, exactly one. A call that is refused gives no events and throws ``PannierError/busy(_:)`` or
    /// ``PannierError/invalidArgument(_:)``. Cancelling the reading task, leaving its loop, or dropping the stream cancels both sides.
    ///
    /// - Parameters:
    ///   - task: the app's class of the task, for its rules.
    ///   - onDeviceOnly: this turn stays on the device.
    public func send(
        _ messages: [ChatMessage], options: GenerationOptions = GenerationOptions(), task: String? = nil, onDeviceOnly: Bool = false
    ) -> AsyncThrowingStream<HybridEvent, any Error> {
        let (stream, events) = AsyncThrowingStream<HybridEvent, any Error>.makeStream(bufferingPolicy: .unbounded)
        let settings: GenerationSettings
        do {
            try chat.model.check()
            settings = try options.toFFI()
        } catch {
            events.finish(throwing: error)
            return stream
        }
        let cancel = CancelHandle()
        events.onTermination = { _ in cancel.cancel() }
        let sink = HybridRelay(events)
        let turn = TurnSettings(task: task, onDeviceOnly: onDeviceOnly)
        Task {
            do {
                _ = try await self.ffi.send(
                    messages: messages.map(\.toFFI), settings: settings, turn: turn, sink: sink, cancel: cancel)
                events.finish()
            } catch {
                // After the terminal event the error tells nothing new.
                events.finish(throwing: sink.ended ? nil : publicError(error))
            }
        }
        return stream
    }
}

/// Who answers.
public enum HybridPolicy: Sendable, Hashable {
    /// Nothing leaves the device.
    case onDeviceOnly
    /// The device answers; the cloud is asked where the device is not sure enough.
    case edgeFirst(EdgeFirst = EdgeFirst())
    /// The cloud answers; the device does when the cloud cannot.
    case cloudFirst
    /// Only the cloud answers.
    case cloudOnly
}

/// How ``HybridPolicy/edgeFirst(_:)`` decides.
public struct EdgeFirst: Sendable, Hashable {
    /// Below this probability of being right, the cloud is asked.
    public var minConfidence: Double
    /// The first look at an answer comes after this many tokens.
    public var checkAfterTokens: Int
    /// If the device has shown nothing after so many seconds, the cloud is asked; `nil`: it may take its time.
    public var maxEdgeLatency: TimeInterval?
    /// Show nothing before the first look, so that nothing has to be taken back.
    public var holdUntilChecked: Bool
    /// Look again at every sentence.
    public var checkSentences: Bool
    /// An answer that passed is given up only when its score falls this far below, twice in a row.
    public var hysteresis: Double
    /// At the end, also ask the model whether it is right: one short prefill.
    public var askItself: Bool
    /// What the cloud does with the draft.
    public var style: HandOffStyle
    /// Where the model's calibration also knows the cloud: only what that is likelier to get right by this much is handed over.
    public var minGain: Double

    /// The engine's defaults where nothing is given.
    public init(
        minConfidence: Double = 0.7, checkAfterTokens: Int = 50, maxEdgeLatency: TimeInterval? = nil, holdUntilChecked: Bool = true,
        checkSentences: Bool = true, hysteresis: Double = 0.1, askItself: Bool = false, style: HandOffStyle = .replace,
        minGain: Double = 0
    ) {
        self.minConfidence = minConfidence
        self.checkAfterTokens = checkAfterTokens
        self.maxEdgeLatency = maxEdgeLatency
        self.holdUntilChecked = holdUntilChecked
        self.checkSentences = checkSentences
        self.hysteresis = hysteresis
        self.askItself = askItself
        self.style = style
        self.minGain = minGain
    }
}

/// What the cloud does with a draft that is not good enough. If the cloud fails, the draft stands.
public enum HandOffStyle: Sendable, Hashable {
    /// Answers anew; the draft is taken back.
    case replace
    /// Goes on behind the sentences that were sure enough.
    case `continue`
    /// Judges the finished draft, and corrects it if need be.
    case verify
}

/// What is decided before any work. What is not given is off.
public struct HybridRules: Sendable, Hashable {
    /// Classes of tasks that go to the cloud.
    public var cloudTasks: [String]
    /// Classes of tasks that stay on the device.
    public var edgeTasks: [String]
    /// Longer prompts (in tokens) go to the cloud; those that do not fit the context always do.
    public var maxEdgePrompt: Int?
    /// Below this charge (0 to 1), unplugged, the cloud is asked.
    public var minBattery: Float?
    /// From this heat on, the cloud is asked.
    public var maxHeat: Heat?
    /// Under memory pressure, the cloud is asked.
    public var spareMemory: Bool

    /// No rule but those given.
    public init(
        cloudTasks: [String] = [], edgeTasks: [String] = [], maxEdgePrompt: Int? = nil, minBattery: Float? = nil,
        maxHeat: Heat? = nil, spareMemory: Bool = false
    ) {
        self.cloudTasks = cloudTasks
        self.edgeTasks = edgeTasks
        self.maxEdgePrompt = maxEdgePrompt
        self.minBattery = minBattery
        self.maxHeat = maxHeat
        self.spareMemory = spareMemory
    }
}

/// What the device says about itself; `nil`: unknown.
public struct DeviceCondition: Sendable, Hashable {
    /// Charge from 0 to 1.
    public var battery: Float?
    /// Whether it is plugged in.
    public var charging: Bool?
    /// How hot it is.
    public var heat: Heat
    /// The system asked for memory back.
    public var memoryPressure: Bool
    /// Whether there is a network.
    public var online: Bool?

    /// Unknown but for what is given.
    public init(
        battery: Float? = nil, charging: Bool? = nil, heat: Heat = .nominal, memoryPressure: Bool = false, online: Bool? = nil
    ) {
        self.battery = battery
        self.charging = charging
        self.heat = heat
        self.memoryPressure = memoryPressure
        self.online = online
    }
}

/// Which side.
public enum AnswerRoute: Sendable, Hashable {
    /// The device.
    case edge
    /// The cloud.
    case cloud
}

/// What an app's own rule sees.
public struct AdmissionFacts: Sendable, Hashable {
    /// Tokens of the prompt on the device, if it was counted.
    public let promptTokens: Int?
    /// The app's class of the task.
    public let task: String?
    /// The device.
    public let device: DeviceCondition
}

/// What confidences of a model are worth.
public struct Calibration: Sendable, Hashable {
    /// Fitted on answers of this very model file. If not, scores order answers, and their size is a guess.
    public let fitted: Bool
    /// Area under the receiver operating characteristic on answers that were not fitted on.
    public let auroc: Double?
    /// Expected calibration error on these.
    public let error: Double?
    /// Why a calibration that is there was not used.
    public let problem: String?
}
