import Foundation

/// How a system tells apps about memory, heat, and their way to the background and back. A value, so that tests can speak for a system.
struct SystemSignals: Sendable {
    /// The system is about to kill the app for its memory.
    var memoryWarning: Notification.Name
    var enteredBackground: Notification.Name
    var willEnterForeground: Notification.Name
    var heatChanged: Notification.Name
    /// How hot it is now.
    var heat: @Sendable () -> Heat
    /// Runs work while the system leaves the app the time for it.
    var protect: @Sendable (_ work: @escaping @Sendable () async -> Void) async -> Void
}

/// How hot the device is, in the words of `ProcessInfo`. From ``serious`` on the engine computes with fewer threads, and an app should
/// generate less.
public enum Heat: Int, Sendable, Comparable {
    /// As it should be.
    case nominal
    /// A little warm.
    case fair
    /// The processor is slowed down.
    case serious
    /// Everything is slowed down.
    case critical

    /// By heat.
    public static func < (a: Heat, b: Heat) -> Bool { a.rawValue < b.rawValue }
}

/// Connects an engine to a system until it is released or ended.
final class SystemConnection: @unchecked Sendable {
    private let center: NotificationCenter
    private let pannier: Pannier
    private let signals: SystemSignals
    private let keepBytes: Int64
    private let lock = NSLock()
    private var observers: [any NSObjectProtocol] = []
    /// Ways to the background and back, one after the other: the user may be quicker than the engine.
    private var last: Task<Void, Never>?
    private var readers: [Int: AsyncStream<Heat>.Continuation] = [:]
    private var next = 0

    init(_ pannier: Pannier, signals: SystemSignals, center: NotificationCenter, keepBytes: Int64) {
        self.pannier = pannier
        self.signals = signals
        self.center = center
        self.keepBytes = keepBytes
        pannier.onHeat(signals.heat())
        observe(signals.memoryWarning) { $0.pannier.onMemoryPressure(.critical) }
        observe(signals.enteredBackground) { connection in
            connection.queue { pannier, signals in
                // A checkpoint that cannot be written is no reason to keep the memory; the conversation is in memory still.
                await signals.protect { try? await pannier.enterBackground(keepBytes: keepBytes) }
            }
        }
        observe(signals.willEnterForeground) { connection in
            // A model that cannot be loaded now says so when it is used.
            connection.queue { pannier, _ in try? await pannier.enterForeground() }
        }
        observe(signals.heatChanged) { connection in
            let (heat, readers) = (connection.signals.heat(), connection.lock.withLock { Array(connection.readers.values) })
            connection.pannier.onHeat(heat)
            for reader in readers { reader.yield(heat) }
        }
    }

    deinit { end() }

    private func observe(_ name: Notification.Name, _ act: @escaping @Sendable (SystemConnection) -> Void) {
        let observer = center.addObserver(forName: name, object: nil, queue: nil) { [weak self] _ in
            if let self { act(self) }
        }
        lock.withLock { observers.append(observer) }
    }

    private func queue(_ work: @escaping @Sendable (Pannier, SystemSignals) async -> Void) {
        lock.withLock {
            let (before, pannier, signals) = (last, pannier, signals)
            last = Task {
                await before?.value
                await work(pannier, signals)
            }
        }
    }

    /// Waits until what was heard so far is done.
    func settle() async { await lock.withLock { last }?.value }

    /// How hot it is now, and every change.
    func heatUpdates() -> AsyncStream<Heat> {
        let (stream, reader) = AsyncStream<Heat>.makeStream(bufferingPolicy: .bufferingNewest(1))
        let number = lock.withLock {
            next += 1
            readers[next] = reader
            return next
        }
        reader.onTermination = { [weak self] _ in
            guard let self else { return }
            _ = lock.withLock { readers.removeValue(forKey: number) }
        }
        reader.yield(signals.heat())
        return stream
    }

    func end() {
        let (observers, readers) = lock.withLock {
            defer { (self.observers, self.readers) = ([], [:]) }
            return (self.observers, Array(self.readers.values))
        }
        observers.forEach(center.removeObserver)
        for reader in readers { reader.finish() }
    }
}
