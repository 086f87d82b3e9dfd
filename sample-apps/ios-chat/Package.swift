// swift-tools-version: 6.0
// The sample without its views, so that it is built and tested everywhere. `App` holds the views; see README.md.
import PackageDescription

let package = Package(
    name: "ios-chat",
    platforms: [.iOS(.v15), .macOS(.v12)],
    products: [.library(name: "ChatLogic", targets: ["ChatLogic"])],
    dependencies: [.package(name: "Pannier", path: "../../ios")],
    targets: [
        .target(name: "ChatLogic", dependencies: [.product(name: "Pannier", package: "Pannier")]),
        .testTarget(name: "ChatLogicTests", dependencies: ["ChatLogic"]),
    ]
)
