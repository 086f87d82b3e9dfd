import Foundation
import Pannier

/// What the sample does, without a view: picks, downloads and plans a model, and talks to it. A view draws ``screen`` and calls the
/// functions; a test does the same.
@MainActor
public final class ChatModel {
    /// What is to be seen now.
    public private(set) var screen: ChatScreen {
        didSet { onChange?(screen) }
    }
    /// Hears every change of ``screen``.
    public var onChange: ((ChatScreen) -> Void)?

    private let pannier: Pannier
    private let store: ModelStore
    private let isOnline: @MainActor () -> Bool
    private let checkpoint: URL?
    /// Used only while the user allows it.
    private let cloud: Cloud?
    private var settings = ChatSettings()
    private var model: Model?
    private var chat: ChatSession?
    /// The turn under way. Cancelling it stops both sides.
    private var turn: Task<Void, any Error>?
    private var work: Task<Void, Never>?

    public init(
        pannier: Pannier, store: ModelStore, isOnline: @escaping @MainActor () -> Bool = { true }, checkpoint: URL? = nil,
        cloud: Cloud? = nil
    ) {
        self.pannier = pannier
        self.store = store
        self.isOnline = isOnline
        self.checkpoint = checkpoint
        self.cloud = cloud
        screen = ChatScreen(models: store.known.filter(\.instruct))
        apply(settings)
        refresh()
    }

    /// Looks again which models are here and whether there is a network.
    public func refresh() {
        screen.here = Set(screen.models.map(\.name).filter { (try? store.find($0)) != nil })
        screen.online = isOnline()
    }

    /// Takes new settings; a chosen model is planned again.
    public func apply(_ new: ChatSettings) {
        settings = new
        pannier.setBudget(.mebibytes(new.budgetMebibytes))
        if let chosen = screen.chosen { choose(chosen) }
    }

    /// Chooses a model: fetches it if it is not here, and shows what it will take. Nothing is loaded yet.
    public func choose(_ name: String) {
        launch { [self] in
            release()
            (screen.chosen, screen.plan, screen.lines, screen.notice) = (name, nil, [], nil)
            var file = try store.find(name)
            if file == nil { file = try await fetch(name) }
            guard let file else { return }
            let opened = pannier.model(at: file, options: ModelOptions(context: settings.contextTokens))
            model = opened
            let plan = try await opened.plan()
            screen.plan = plan
            guard plan.fits else {
                screen.notice = "This model does not fit: " + plan.notes.joined(separator: ", ")
                return
            }
            chat = try opened.chat(system: "You are a helpful assistant. Answer briefly.", checkpoint: checkpoint)
            restore()
        }
    }

    /// The same conversation, for one turn, with the network as it is now. Only what the user allowed can leave the device.
    private func hybrid(_ chat: ChatSession) -> HybridSession {
        let allowed = settings.cloudAllowed ? cloud : nil
        let first = EdgeFirst(minConfidence: settings.minConfidence, holdUntilChecked: false)
        let online = isOnline()
        return HybridSession(
            chat, policy: allowed == nil ? .onDeviceOnly : .edgeFirst(first), cloud: allowed,
            device: { DeviceCondition(online: online) })
    }

    private func fetch(_ name: String) async throws -> URL? {
        guard isOnline() else {
            (screen.online, screen.notice) = (false, "No network: this model has to be downloaded first.")
            return nil
        }
        defer { screen.download = nil }
        var file: URL?
        for try await event in store.download(name) {
            switch event {
            case .progress(let done, let total, let speed, let remaining):
                let share = Double(done) / Double(max(total ?? 0, 1))
                let left = remaining.map { String(format: ", %.0f s left", $0) } ?? ""
                screen.download = Progress(share: min(share, 1), line: String(format: "%.1f MB/s", speed / 1e6) + left)
            case .completed(let done, _):
                file = done
            default:
                break
            }
        }
        refresh()
        return file
    }

    /// Says something. Ignored while an answer is under way, and before a model is ready.
    public func say(_ text: String) {
        guard let chat, !screen.answering, !text.allSatisfy(\.isWhitespace) else { return }
        let session = hybrid(chat)
        screen.lines += [ChatLine(fromUser: true, text: text), ChatLine(fromUser: false, text: "")]
        (screen.answering, screen.notice) = (true, nil)
        launch { [self] in
            defer { (screen.answering, turn) = (false, nil) }
            let turn = Task { try await read(session.send(text, options: GenerationOptions(maxTokens: 512))) }
            self.turn = turn
            try await turn.value
            // A cancelled reader sees no end.
            if turn.isCancelled { answer { $0.badge = "stopped" } }
        }
    }

    private func read(_ events: AsyncThrowingStream<HybridEvent, any Error>) async throws {
        let begun = Date()
        var tokens = 0
        for try await event in events {
            switch event {
            case .text(let piece, let source, _):
                if source == .onDevice { tokens += 1 }
                answer { $0.text += piece }
                meter(Double(tokens) / max(Date().timeIntervalSince(begun), 0.001))
            case .discard(let remaining):
                // The draft was not good enough: what remains of it, or nothing, and then the cloud's words.
                answer { $0.text = remaining }
            case .decision(let decision) where decision.route == .cloud:
                answer { $0.reason = decision.explanation }
            case .completed(let answer):
                self.answer { $0.badge = badge(answer) }
                if let stats = answer.stats { meter(stats.decodeTokensPerSecond) }
            case .failed(let error):
                screen.notice = error.message
            case .cancelled:
                answer { $0.badge = "stopped" }
            default:
                break
            }
        }
    }

    /// Stops the answer; what was said so far stays.
    public func stop() { turn?.cancel() }

    /// Begins a new conversation.
    public func clear() {
        guard !screen.answering else { return }
        try? chat?.setHistory([])
        screen.lines = []
    }

    private func restore() {
        guard let checkpoint, let chat, let saved = try? String(contentsOf: checkpoint, encoding: .utf8) else { return }
        do {
            try chat.restore(saved)
        } catch {
            // Written by another version: begin anew.
            try? FileManager.default.removeItem(at: checkpoint)
        }
        screen.lines = chat.history.filter { $0.role != .system }.map { ChatLine(fromUser: $0.role == .user, text: $0.content) }
    }

    private func answer(_ change: (inout ChatLine) -> Void) {
        guard !screen.lines.isEmpty else { return }
        change(&screen.lines[screen.lines.count - 1])
    }

    private func meter(_ speed: Double) {
        let memory = pannier.memory()
        let held = memory.processAnonymous ?? memory.used
        screen.meter = String(format: "%.1f tokens/s, %d MB", speed, Int(held >> 20))
    }

    /// An unfitted confidence orders answers, but its size is a guess: the user is not told a number then.
    private func badge(_ answer: HybridAnswer) -> String {
        switch answer.source {
        case .cloud: return "cloud"
        case .both: return "on device, then cloud"
        case .onDevice:
            guard let confidence = answer.confidence, confidence.fitted else { return "on device" }
            return String(format: "on device, %.0f%% sure", confidence.value * 100)
        }
    }

    private func release() {
        chat?.close()
        model?.close()
        (chat, model) = (nil, nil)
    }

    /// One thing at a time; errors become a notice.
    private func launch(_ block: @escaping @MainActor () async throws -> Void) {
        let before = work
        work = Task { @MainActor in
            await before?.value
            do {
                try await block()
            } catch {
                screen.notice = error.localizedDescription
            }
        }
    }

    /// Waits until nothing is going on: for tests.
    public func settle() async {
        while let work {
            await work.value
            if work == self.work { return }
        }
    }
}
