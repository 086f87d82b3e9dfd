#if canImport(UIKit)
import Foundation
import UIKit
import os

/// Connects a ``Pannier`` to iOS: memory warnings, heat, the way to the background and back, and where files belong. Make one when the
/// app starts and keep it.
///
/// Nothing here needs an entitlement, and no thread is started.
@MainActor
public final class PannierDevice {
    /// The engine.
    public let pannier: Pannier
    /// The app's private models. They are large and can be fetched again, so they are not backed up.
    public let store: ModelStore
    private let folder: URL
    private let connection: SystemConnection

    /// - Parameters:
    ///   - budget: what all models together may take.
    ///   - idleUnload: models that were not used for so many seconds are unloaded.
    ///   - keepBytes: what models may keep in the background.
    public init(budget: MemoryBudget = PannierDevice.defaultBudget(), idleUnload: TimeInterval? = 300, keepBytes: Int64 = 0) {
        folder = Self.privateFolder()
        pannier = Pannier(budget: budget, idleUnload: idleUnload, stateFolder: folder.appendingPathComponent("state"))
        store = ModelStore(folder: folder.appendingPathComponent("models"))
        let signals = SystemSignals(
            memoryWarning: UIApplication.didReceiveMemoryWarningNotification,
            enteredBackground: UIApplication.didEnterBackgroundNotification,
            willEnterForeground: UIApplication.willEnterForegroundNotification,
            heatChanged: ProcessInfo.thermalStateDidChangeNotification,
            heat: { Heat(ProcessInfo.processInfo.thermalState) },
            protect: Self.withBackgroundTime)
        connection = SystemConnection(pannier, signals: signals, center: .default, keepBytes: keepBytes)
    }

    /// How hot the device is now, and every change.
    public func heatUpdates() -> AsyncStream<Heat> { connection.heatUpdates() }

    /// Where a conversation can be written when the app goes to the background. `name` is letters, digits, `-` and `_`.
    public func checkpoint(_ name: String) -> URL {
        let plain = name.unicodeScalars.allSatisfy { CharacterSet.alphanumerics.contains($0) || $0 == "-" || $0 == "_" }
        precondition(plain && !name.isEmpty, "not a plain name")
        let chats = folder.appendingPathComponent("chats")
        try? FileManager.default.createDirectory(at: chats, withIntermediateDirectories: true)
        return chats.appendingPathComponent(name + ".json")
    }

    /// Ends the connection and closes the engine. Idempotent, never waits.
    public func close() {
        connection.end()
        pannier.close()
    }

    /// How much memory this app can still take before the system kills it, in bytes.
    nonisolated public static func availableMemory() -> Int64 { Int64(os_proc_available_memory()) }

    /// Half of what the app can have now, at least 256 MiB: the other half is for the app itself, and for the system's own pages.
    nonisolated public static func defaultBudget() -> MemoryBudget { .bytes(max(availableMemory() / 2, 256 << 20)) }

    /// A folder in Application Support that is not backed up.
    private static func privateFolder() -> URL {
        let manager = FileManager.default
        let support = manager.urls(for: .applicationSupportDirectory, in: .userDomainMask).first ?? manager.temporaryDirectory
        var folder = support.appendingPathComponent("Pannier")
        try? manager.createDirectory(at: folder, withIntermediateDirectories: true)
        var values = URLResourceValues()
        values.isExcludedFromBackup = true
        try? folder.setResourceValues(values)
        return folder
    }

    /// Asks for the time that unloading and checkpoints take: a few milliseconds, of the seconds that the system gives.
    @Sendable
    private static func withBackgroundTime(_ work: @escaping @Sendable () async -> Void) async {
        let task = UIApplication.shared.beginBackgroundTask(withName: "Pannier") {}
        await work()
        UIApplication.shared.endBackgroundTask(task)
    }
}

extension Heat {
    init(_ state: ProcessInfo.ThermalState) {
        switch state {
        case .nominal: self = .nominal
        case .fair: self = .fair
        case .serious: self = .serious
        case .critical: self = .critical
        @unknown default: self = .critical
        }
    }
}
#endif
