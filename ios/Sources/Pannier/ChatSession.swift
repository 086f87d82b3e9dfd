import Foundation
internal import PannierBindings

/// A conversation. It outlives the loaded model: a turn loads the model if need be.
///
/// A turn becomes part of the history when it is completed, or cancelled after some text was given out. A turn that fails leaves no
/// trace, so it can be repeated.
public final class ChatSession: Sendable {
    /// The model.
    public let model: Model
    let ffi: Chat

    init(_ model: Model, _ ffi: Chat) {
        self.model = model
        self.ffi = ffi
    }

    deinit { ffi.shutdown() }

    /// The conversation so far, the system message first.
    public var history: [ChatMessage] { ffi.history().map(ChatMessage.init) }

    /// Says `text` as the user. See the other `send`.
    public func send(_ text: String, options: GenerationOptions = GenerationOptions()) -> AsyncThrowingStream<GenerationEvent, any Error> {
        send([ChatMessage(.user, text)], options: options)
    }

    /// Adds messages and streams the answer. The turn begins now; the stream is for one reader.
    ///
    /// The last event is terminal, exactly one. A call that is refused gives no events and throws ``PannierError/busy(_:)``,
    /// ``PannierError/closed(_:)`` or ``PannierError/invalidArgument(_:)``. Cancelling the reading task, leaving its loop, or dropping
    /// the stream cancels the generation; a cancelled task sees the stream end without a terminal event. A slow reader does not slow
    /// the generation down: events wait for it.
    public func send(
        _ messages: [ChatMessage], options: GenerationOptions = GenerationOptions()
    ) -> AsyncThrowingStream<GenerationEvent, any Error> {
        let (stream, events) = AsyncThrowingStream<GenerationEvent, any Error>.makeStream(bufferingPolicy: .unbounded)
        let settings: GenerationSettings
        do {
            try model.check()
            settings = try options.toFFI()
        } catch {
            events.finish(throwing: error)
            return stream
        }
        let cancel = CancelHandle()
        events.onTermination = { _ in cancel.cancel() }
        let sink = EventRelay(events)
        // Holds the session: what was asked is answered, also when nobody keeps the session.
        Task {
            do {
                _ = try await self.ffi.send(messages: messages.map(\.toFFI), settings: settings, sink: sink, cancel: cancel)
                events.finish()
            } catch {
                // After the terminal event the error tells nothing new.
                events.finish(throwing: sink.ended ? nil : publicError(error))
            }
        }
        return stream
    }

    /// Says `text` and waits for the whole answer. Cancelling the task cancels the generation.
    ///
    /// - Throws: ``PannierError``: what ended the turn, if not the answer's end; `CancellationError` if the task was cancelled.
    public func ask(_ text: String, options: GenerationOptions = GenerationOptions()) async throws -> Answer {
        try model.check()
        let settings = try options.toFFI()
        let cancel = CancelHandle()
        return try await withTaskCancellationHandler {
            do {
                let messages = [ChatMessage(.user, text).toFFI]
                return try await Answer(ffi.send(messages: messages, settings: settings, sink: DeafSink(), cancel: cancel))
            } catch {
                try Task.checkCancellation()
                throw publicError(error)
            }
        } onCancel: {
            cancel.cancel()
        }
    }

    /// How many tokens the prompt would have if `next` were said now. Loads the model if need be.
    ///
    /// - Throws: ``PannierError``.
    public func tokenCount(_ next: String = "") async throws -> Int {
        try model.check()
        let messages = next.isEmpty ? [] : [ChatMessage(.user, next).toFFI]
        return try await rethrowing { try await Int(ffi.tokenCount(next: messages)) }
    }

    /// How many tokens need not be read again for the next turn; 0 while a generation runs.
    public var cachedTokens: Int { Int(ffi.cachedTokens()) }

    /// Replaces the conversation.
    ///
    /// - Throws: ``PannierError/busy(_:)``, ``PannierError/closed(_:)`` or ``PannierError/invalidArgument(_:)``.
    public func setHistory(_ messages: [ChatMessage]) throws {
        try rethrowingNow { try ffi.setHistory(messages: messages.map(\.toFFI)) }
    }

    /// The conversation as text, for ``restore(_:)``.
    public func save() -> String { ffi.save() }

    /// Replaces the conversation by a saved one.
    ///
    /// - Throws: ``PannierError/busy(_:)``, ``PannierError/closed(_:)``, or ``PannierError/invalidArgument(_:)`` for what is none.
    public func restore(_ saved: String) throws {
        try rethrowingNow { try ffi.restore(saved: saved) }
    }

    /// Writes what was read to a file, which is there whole or not at all: after a restart, ``restoreCache(from:)`` makes reading it again
    /// unnecessary. It holds the conversation in a form that the model can read, so it is as private as the text itself.
    ///
    /// - Throws: ``PannierError/invalidArgument(_:)`` if nothing was read, or the model was unloaded since; ``PannierError/io(_:)``.
    public func saveCache(to file: URL) async throws {
        try model.check()
        try await rethrowing { try await ffi.saveCache(path: file.path) }
    }

    /// Takes what was read from a file, also one of an earlier process; gives how many tokens need not be read again. The conversation stays
    /// as it is: restore that as well, with ``restore(_:)``. Loads the model if need be.
    ///
    /// - Throws: ``PannierError/invalidArgument(_:)`` if the file is damaged, or was saved with another model or other ``ModelOptions``; what
    ///   was read before is still there. ``PannierError/io(_:)``.
    @discardableResult
    public func restoreCache(from file: URL) async throws -> Int {
        try model.check()
        return try await rethrowing { try await Int(ffi.restoreCache(path: file.path)) }
    }

    /// Forgets what ``KVOptions/policy`` does not keep, and gives its memory back.
    ///
    /// - Throws: ``PannierError/busy(_:)`` or ``PannierError/closed(_:)``.
    @discardableResult
    public func evict() async throws -> Eviction {
        try await rethrowing { try await Eviction(ffi.evict()) }
    }

    /// Gives back the memory of what was read; the history stays.
    public func forget() { ffi.forget() }

    /// Cancels the running turn, if any; its stream ends in ``GenerationEvent/cancelled(_:)``. Never waits.
    public func cancel() { ffi.cancel() }

    /// Cancels the running turn and frees the conversation's memory. Idempotent, never waits.
    public func close() { ffi.shutdown() }
}
