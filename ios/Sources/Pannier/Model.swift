import Foundation
internal import PannierBindings

/// A model. It is loaded when it is used, unloaded when the budget, the system or the app asks, and loaded again on the next use.
///
/// It is closed when it and all of its sessions are released; ``close()`` does so at once.
public final class Model: Sendable {
    /// Its GGUF file.
    public let file: URL
    let ffi: PannierBindings.Model
    private let states: StateRelay
    private let watch: StateWatch
    /// What was wrong with the options.
    private let fault: PannierError?

    init(_ ffi: PannierBindings.Model, file: URL, fault: PannierError?) {
        self.ffi = ffi
        self.file = file
        self.fault = fault
        states = StateRelay(ModelState(ffi.state()))
        watch = ffi.observe(observer: states)
        // What changed between the two lines above.
        states.catchUp(ModelState(ffi.state()))
    }

    deinit { close() }

    /// What it is doing.
    public var state: ModelState { states.current }

    /// What it is doing, and every later change, in order. Ends when the model is closed.
    public func stateUpdates() -> AsyncStream<ModelState> { states.stream() }

    /// What there is to tell about it; `nil` while it is not loaded.
    public var info: ModelInfo? { ffi.details().map(ModelInfo.init) }

    /// Loads it now; does nothing to a loaded model. A load that has begun runs to its end, whatever becomes of the calling task.
    ///
    /// - Parameters:
    ///   - force: also if the app died while it loaded this model before. Ask the user first.
    ///   - onProgress: hears from 0 to 1, on a thread of the engine.
    /// - Throws: ``PannierError``; ``PannierError/outOfBudget(_:plan:)`` carries the plan.
    public func load(force: Bool = false, onProgress: @escaping @Sendable (Float) -> Void = { _ in }) async throws {
        try check()
        try await rethrowing { try await ffi.load(forced: force, sink: ProgressRelay(onProgress)) }
    }

    /// What loading it takes under the budget of its ``Pannier``.
    ///
    /// - Throws: ``PannierError``.
    public func plan() async throws -> MemoryPlan {
        try check()
        return try await rethrowing { try await MemoryPlan(ffi.plan()) }
    }

    /// A conversation. Nothing is loaded until it is used.
    ///
    /// - Parameters:
    ///   - system: the app's instructions, as the first message.
    ///   - toolsJSON: tools, as a JSON array in the OpenAI format, for chat templates that know them.
    ///   - thinking: thinking on or off, for chat templates that know it.
    ///   - checkpoint: where the conversation is written when the app goes to the background.
    ///   - overflow: what happens when the next turn does not fit into the context.
    /// - Throws: ``PannierError/invalidArgument(_:)`` if the tools are no JSON.
    public func chat(
        system: String? = nil, toolsJSON: String? = nil, thinking: Bool? = nil, checkpoint: URL? = nil,
        overflow: Overflow = .fail
    ) throws -> ChatSession {
        let config = ChatConfig(
            system: system, toolsJson: toolsJSON, thinking: thinking, checkpointPath: checkpoint?.path,
            overflow: try overflow.toFFI())
        return try rethrowingNow { try ChatSession(self, ffi.chat(config: config)) }
    }

    /// Frees its memory; generations are cancelled. The next use loads it again. Never waits.
    public func unload() { ffi.unload() }

    /// Like ``unload()``, and for good. Idempotent, never waits for a generation.
    public func close() {
        ffi.shutdown()
        watch.stop()
        states.finish()
    }

    /// Throws what was wrong with the options.
    func check() throws(PannierError) {
        if let fault { throw fault }
    }
}

/// What there is to tell about a loaded model.
public struct ModelInfo: Sendable, Hashable {
    /// The name in the file.
    public let name: String
    /// The architecture.
    public let architecture: String
    /// The context it runs with, in tokens.
    public let context: Int
    /// The context it was trained for, in tokens.
    public let trainedContext: Int
    /// Size of the file.
    public let fileBytes: Int64
    /// Threads.
    public let threads: Int
    /// Which kernels run.
    public let instructionSet: String
    /// What was wrong in the file and how it was mended.
    public let notes: [String]
    /// How long loading took, in seconds.
    public let loadTime: TimeInterval
}
