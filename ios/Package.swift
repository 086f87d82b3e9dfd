// swift-tools-version: 6.0
// One package for apps on Apple's systems and for tests on Linux. They differ in where the engine comes from: an XCFramework there,
// the library that cargo has built here. `cargo xtask bindgen` writes Sources/PannierBindings and Sources/PannierFFI first.
import PackageDescription

// On Linux, PANNIER_XCFRAMEWORK=1 shows the package as Apple users see it: `swift package describe` checks that.
#if os(Linux)
let apple = Context.environment["PANNIER_XCFRAMEWORK"] != nil
#else
let apple = true
#endif

// Compiles the part for UIKit against a handful of stubs, on machines without Apple's frameworks.
let stubs = Context.environment["PANNIER_STUBS"] != nil

let engine: Target =
    apple
    ? .binaryTarget(name: "PannierFFI", path: "PannierFFI.xcframework")
    : .systemLibrary(name: "PannierFFI", path: "Sources/PannierFFI")

let package = Package(
    name: "Pannier",
    platforms: [.iOS(.v15), .macOS(.v12)],
    products: [.library(name: "Pannier", targets: ["Pannier"])],
    targets: [
        engine,
        .target(
            name: "PannierBindings",
            dependencies: ["PannierFFI"],
            linkerSettings: apple ? [] : [.linkedLibrary("pannier_ffi")]
        ),
        .target(name: "Pannier", dependencies: ["PannierBindings"] + (stubs ? ["UIKit", "os"] : [])),
        .testTarget(name: "PannierTests", dependencies: ["Pannier"]),
    ] + (stubs ? [.target(name: "UIKit", path: "Stubs/UIKit"), .target(name: "os", path: "Stubs/os")] : [])
)
