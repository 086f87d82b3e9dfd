// swift-tools-version: 6.0
// The Swift library in a terminal, on Linux: `cargo xtask test --swift` builds and runs it.
import PackageDescription

let package = Package(
    name: "swift-chat",
    platforms: [.macOS(.v12)],
    dependencies: [.package(name: "Pannier", path: "../../ios")],
    targets: [
        .executableTarget(name: "swift-chat", dependencies: [.product(name: "Pannier", package: "Pannier")])
    ]
)
