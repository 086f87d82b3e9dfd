import Foundation
internal import PannierBindings

// What the engine calls, on its own threads and while it holds no lock. None of these blocks.

/// Passes the events of a generation on.
final class EventRelay: TokenSink, @unchecked Sendable {
    private let events: AsyncThrowingStream<GenerationEvent, any Error>.Continuation
    private let lock = NSLock()
    private var told = false

    init(_ events: AsyncThrowingStream<GenerationEvent, any Error>.Continuation) { self.events = events }

    /// Whether the terminal event was told.
    var ended: Bool { lock.withLock { told } }

    func onEvent(event: PannierBindings.GenerationEvent) {
        let event = GenerationEvent(event)
        if event.isTerminal { lock.withLock { told = true } }
        events.yield(event)
    }
}

/// For those who want the answer only.
final class DeafSink: TokenSink {
    func onEvent(event: PannierBindings.GenerationEvent) {}
}

/// Passes the progress of a load on.
final class ProgressRelay: LoadSink {
    private let onProgress: @Sendable (Float) -> Void

    init(_ onProgress: @escaping @Sendable (Float) -> Void) { self.onProgress = onProgress }

    func onProgress(fraction: Float) { onProgress(fraction) }
}

/// Passes the events of a download on.
final class DownloadRelay: DownloadSink {
    private let events: AsyncThrowingStream<DownloadEvent, any Error>.Continuation

    init(_ events: AsyncThrowingStream<DownloadEvent, any Error>.Continuation) { self.events = events }

    func onUpdate(update: DownloadUpdate) { events.yield(DownloadEvent(update)) }
}

/// One observer of the engine's for any number of readers. Holds no model, so that a forgotten one is released.
final class StateRelay: StateObserver, @unchecked Sendable {
    private let lock = NSLock()
    private var state: ModelState
    private var heard = false
    private var closed = false
    private var readers: [Int: AsyncStream<ModelState>.Continuation] = [:]
    private var next = 0

    init(_ state: ModelState) { self.state = state }

    var current: ModelState { lock.withLock { state } }

    func onState(state new: ModelLifeState) {
        lock.withLock {
            guard !closed else { return }
            heard = true
            post(ModelState(new))
        }
    }

    /// Takes a state that was read, unless a later one was told meanwhile.
    func catchUp(_ read: ModelState) {
        lock.withLock { if !heard { post(read) } }
    }

    /// The lock is held. `yield` calls nothing back.
    private func post(_ new: ModelState) {
        guard new != state else { return }
        state = new
        for reader in readers.values { reader.yield(new) }
    }

    func stream() -> AsyncStream<ModelState> {
        let (stream, reader) = AsyncStream<ModelState>.makeStream(bufferingPolicy: .unbounded)
        let number: Int? = lock.withLock {
            reader.yield(state)
            guard !closed else { return nil }
            next += 1
            readers[next] = reader
            return next
        }
        guard let number else {
            reader.finish()
            return stream
        }
        reader.onTermination = { [weak self] _ in
            guard let self else { return }
            _ = lock.withLock { readers.removeValue(forKey: number) }
        }
        return stream
    }

    func finish() {
        let ended = lock.withLock {
            guard !closed else { return [AsyncStream<ModelState>.Continuation]() }
            post(.unloaded)
            closed = true
            return Array(readers.values)
        }
        // Outside of the lock: this calls `onTermination`.
        for reader in ended { reader.finish() }
    }
}
