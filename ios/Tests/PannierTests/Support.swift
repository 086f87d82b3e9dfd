import Foundation
import XCTest

@testable import Pannier

/// Real models: in PANNIER_MODELS, or in the user's cache.
enum Models {
    static let folder: URL = {
        let environment = ProcessInfo.processInfo.environment
        if let folder = environment["PANNIER_MODELS"], !folder.isEmpty { return URL(fileURLWithPath: folder) }
        let cache = environment["XDG_CACHE_HOME"] ?? NSHomeDirectory() + "/.cache"
        return URL(fileURLWithPath: cache).appendingPathComponent("pannier/models")
    }()

    static func file(_ name: String) -> URL {
        let file = folder.appendingPathComponent(name)
        precondition(
            FileManager.default.fileExists(atPath: file.path),
            "\(name) is missing: `cargo xtask models` fetches it, or set PANNIER_MODELS to its folder")
        return file
    }

    static var smol: URL { file("SmolLM2-135M-Instruct.Q4_1.gguf") }
    static var gemma: URL { file("gemma-3-270m-q4_k_m.gguf") }
}

/// One loaded model for all tests that do not load and close themselves; they share it as sessions do.
enum Shared {
    static let pannier = Pannier()
    static let model = pannier.model(at: Models.smol, options: ModelOptions(context: 1024))
}

/// Always the most likely token, so answers are the same every time.
func greedy(_ tokens: Int = 24) -> GenerationOptions { .greedy(maxTokens: tokens) }

/// An answer that does not end by itself soon.
let endless = GenerationOptions(temperature: 1, topK: 0, seed: 3)

/// What several tasks write.
final class Box<Value: Sendable>: @unchecked Sendable {
    private let lock = NSLock()
    private var value: Value

    init(_ value: Value) { self.value = value }

    var now: Value { lock.withLock { value } }

    func change(_ work: (inout Value) -> Void) { lock.withLock { work(&value) } }
}

func all<Element: Sendable>(_ stream: AsyncThrowingStream<Element, any Error>) async throws -> [Element] {
    var events: [Element] = []
    for try await event in stream { events.append(event) }
    return events
}

func text(_ events: [GenerationEvent]) -> String {
    events.map { if case .text(let text, _) = $0 { text } else { "" } }.joined()
}

func isText(_ event: GenerationEvent) -> Bool { if case .text = event { true } else { false } }

/// Checks the order of events, and that there is exactly one end, the last. Gives the end.
@discardableResult
func check(_ events: [GenerationEvent], file: StaticString = #filePath, line: UInt = #line) -> GenerationEvent? {
    XCTAssertEqual(events.filter(\.isTerminal).count, 1, "\(events)", file: file, line: line)
    XCTAssertEqual(events.last?.isTerminal, true, "\(events)", file: file, line: line)
    let starts = events.filter { if case .started = $0 { true } else { false } }
    XCTAssertLessThanOrEqual(starts.count, 1, file: file, line: line)
    if case .completed(let answer) = events.last {
        XCTAssertEqual(answer.text, text(events), file: file, line: line)
    }
    return events.last
}

func isCancelled(_ event: GenerationEvent?) -> Bool { if case .cancelled = event { true } else { false } }

/// The error that the work ends with, if it is one of ours.
func failure<T>(_ work: () async throws -> T) async -> PannierError? {
    do {
        _ = try await work()
        return nil
    } catch {
        return error as? PannierError
    }
}

func pause(_ milliseconds: Double) async throws { try await Task.sleep(nanoseconds: UInt64(milliseconds * 1e6)) }

/// Waits until something holds; nothing here may hang.
func eventually(seconds: Double = 60, file: StaticString = #filePath, line: UInt = #line, _ holds: () -> Bool) async throws {
    let end = Date().addingTimeInterval(seconds)
    while !holds() {
        if Date() > end { return XCTFail("it never came", file: file, line: line) }
        try await pause(1)
    }
}

/// Waits until a cancelled turn has let go of the session.
func settled(_ chat: ChatSession) async throws {
    try await eventually { (try? chat.setHistory(chat.history)) != nil }
}

/// A folder that goes with the test.
func temporaryFolder(_ test: XCTestCase) throws -> URL {
    let folder = FileManager.default.temporaryDirectory.appendingPathComponent("pannier-\(UUID().uuidString)")
    try FileManager.default.createDirectory(at: folder, withIntermediateDirectories: true)
    test.addTeardownBlock { try? FileManager.default.removeItem(at: folder) }
    return folder
}

/// A line of /proc/self/status, in KiB, or 0 elsewhere.
func status(_ key: String) -> Int {
    let text = (try? String(contentsOfFile: "/proc/self/status", encoding: .utf8)) ?? ""
    let line = text.split(separator: "\n").first { $0.hasPrefix(key + ":") } ?? ""
    return Int(line.filter(\.isNumber)) ?? 0
}

/// The engine's threads in this process, by name.
func engineThreads() -> [String] {
    let tasks = (try? FileManager.default.contentsOfDirectory(atPath: "/proc/self/task")) ?? []
    let names = tasks.compactMap { try? String(contentsOfFile: "/proc/self/task/\($0)/comm", encoding: .utf8) }
    return names.map { $0.trimmingCharacters(in: .whitespacesAndNewlines) }.filter { $0.hasPrefix("pannier") }
}

/// Tests that take minutes run with PANNIER_TEST=full.
let isLong = ProcessInfo.processInfo.environment["PANNIER_TEST"] == "full"
