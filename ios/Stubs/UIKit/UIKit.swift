// The few declarations of UIKit and of Apple's Foundation that Sources/Pannier/PannierDevice.swift uses, with their types and actors, so
// that the file is compiled on machines without them. Never part of the package that apps get.
@_exported import Foundation

@MainActor
public final class UIApplication {
    public static let shared = UIApplication()
    nonisolated public static let didReceiveMemoryWarningNotification = Notification.Name("memoryWarning")
    nonisolated public static let didEnterBackgroundNotification = Notification.Name("background")
    nonisolated public static let willEnterForegroundNotification = Notification.Name("foreground")

    public func beginBackgroundTask(
        withName name: String?, expirationHandler: (@MainActor @Sendable () -> Void)? = nil
    ) -> UIBackgroundTaskIdentifier { UIBackgroundTaskIdentifier(rawValue: 1) }
    public func endBackgroundTask(_ task: UIBackgroundTaskIdentifier) {}
}

public struct UIBackgroundTaskIdentifier: RawRepresentable, Hashable, Sendable {
    public let rawValue: Int
    public init(rawValue: Int) { self.rawValue = rawValue }
}

extension ProcessInfo {
    public enum ThermalState: Int, Sendable {
        case nominal, fair, serious, critical
    }
    public static let thermalStateDidChangeNotification = Notification.Name("heat")
    public var thermalState: ThermalState { .nominal }
}
