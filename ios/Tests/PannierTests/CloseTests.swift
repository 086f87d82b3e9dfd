import Foundation
import XCTest

@testable import Pannier

/// Closing at every moment, and what is released without being closed.
final class CloseTests: XCTestCase {
    func testClosingAndDeletingDoNotWaitForAGeneration() async throws {
        // The bound is the promise of the API; the best of five leaves out a busy machine.
        var times: [Double] = []
        for _ in 1...5 {
            let folder = try temporaryFolder(self)
            let copy = folder.appendingPathComponent(Models.smol.lastPathComponent)
            // The same bytes under another name; a copy where the file systems differ.
            do {
                try FileManager.default.linkItem(at: Models.smol, to: copy)
            } catch {
                try FileManager.default.copyItem(at: Models.smol, to: copy)
            }
            let model = try await Pannier().load(copy, options: ModelOptions(context: 512))
            let seen = Box(0)
            let stream = try model.chat().send("Tell me a very long story.", options: endless)
            let reader = Task { () -> [GenerationEvent] in
                var events: [GenerationEvent] = []
                for try await event in stream {
                    events.append(event)
                    if isText(event) { seen.change { $0 += 1 } }
                }
                return events
            }
            try await eventually { seen.now > 0 }
            let begun = Date()
            XCTAssertTrue(try ModelStore(folder: folder).delete(copy.lastPathComponent))
            let deleted = Date()
            model.close()
            let closed = Date()
            let events = try await reader.value
            XCTAssertTrue(isCancelled(check(events)))
            times.append(max(deleted.timeIntervalSince(begun), closed.timeIntervalSince(deleted)) * 1000)
        }
        print("close and delete during a generation: \(times.map { String(format: "%.2f", $0) }) ms")
        XCTAssertLessThan(times.min() ?? 1000, 20, "\(times)")
    }

    func testClosingTwiceAndUsingAfterwards() async throws {
        let pannier = Pannier()
        let model = try await pannier.load(Models.smol, options: ModelOptions(context: 256))
        let chat = try model.chat()
        _ = try await chat.ask("Hi", options: greedy(2))
        chat.close()
        chat.close()
        let errors = [
            await failure { try await chat.ask("Hi") }, await failure { try await all(chat.send("Hi")) },
            await failure { try chat.setHistory([]) }, await failure { try await chat.tokenCount("Hi") },
        ]
        for error in errors { guard case .closed = error else { return XCTFail("\(String(describing: error))") } }
        chat.cancel()
        XCTAssertEqual(chat.history.count, 2, "the history can still be saved")
        let other = try model.chat()
        model.close()
        model.close()
        guard case .closed = await failure({ try await other.ask("Hi") }) else { return XCTFail("a closed model answered") }
        guard case .closed = await failure({ try await model.load() }) else { return XCTFail("a closed model was loaded") }
        XCTAssertEqual(model.state, .unloaded)
        XCTAssertNil(model.info)
        pannier.close()
        pannier.close()
    }

    func testClosingTheSessionDuringAGenerationEndsItOnce() async throws {
        let chat = try Shared.model.chat()
        var events: [GenerationEvent] = []
        for try await event in chat.send("Tell me a very long story.", options: endless) {
            events.append(event)
            if isText(event) { chat.close() }
        }
        XCTAssertTrue(isCancelled(check(events)), "\(events)")
    }

    func testWhatIsReleasedIsFreed() async throws {
        let pannier = Pannier()
        var model: Model? = try await pannier.load(Models.smol, options: ModelOptions(context: 256))
        // Nobody keeps the session, and the answer comes all the same.
        let stream = try XCTUnwrap(model).chat().send("Hi", options: greedy(3))
        check(try await all(stream))
        weak var gone = model
        XCTAssertGreaterThan(pannier.memory().used, 0)
        model = nil
        try await eventually { gone == nil && pannier.memory().used == 0 }
    }

    func testTenCyclesOfLoadGenerateCloseLeaveNothingBehind() async throws {
        try await cycles(warm: 5, measured: 10, slack: 0.06)
    }

    func testTwoHundredCyclesOfLoadGenerateCloseLeaveNothingBehind() async throws {
        try XCTSkipUnless(isLong, "takes minutes: PANNIER_TEST=full")
        await fillCaches()
        try await cycles(warm: 160, measured: 200, slack: 0.02)
    }

    private func cycles(warm: Int, measured: Int, slack: Double) async throws {
        Shared.pannier.onMemoryPressure(.critical)
        func cycle() async throws {
            let pannier = Pannier()
            let model = try await pannier.load(Models.smol, options: ModelOptions(context: 256))
            let chat = try model.chat()
            _ = try await chat.ask("Name a colour.", options: greedy(4))
            model.close()
        }
        for _ in 0..<warm { try await cycle() }
        var readings = [try await resident()]
        func ten() async throws {
            for _ in 0..<10 { try await cycle() }
            readings.append(try await resident())
        }
        for _ in 0..<measured / 10 { try await ten() }
        // Single readings may be high; a leak is in all the late ones.
        let some = max(1, readings.count / 3)
        let middle = { (of: ArraySlice<Int>) in of.sorted()[some / 2] }
        let most = Int(Double(middle(readings.prefix(some))) * (1 + slack))
        // The thread sanitizer keeps memory of its own for every thread that there was: then only races and threads are looked for.
        let sanitized = dlsym(nil, "__tsan_init") != nil
        // More cycles tell noise and leak apart: noise goes away, a leak grows.
        for _ in 0..<(sanitized ? 0 : 5) where middle(readings.suffix(some)) > most { try await ten() }
        try await eventually(seconds: 2) { engineThreads().isEmpty }
        print("cycles: \(measured) after \(warm), anonymous memory every ten in KiB: \(readings), engine threads left: \(engineThreads())")
        XCTAssertEqual(engineThreads(), [])
        if !sanitized { XCTAssertLessThanOrEqual(middle(readings.suffix(some)), most, "\(readings)") }
    }

    /// A thread of libdispatch keeps up to 1024 of the work items that it has freed (64 bytes each) for those that it submits itself. What
    /// threads of the engine submit ends there, a few items for each cycle. Full from the start, these caches do not look like a leak.
    private func fillCaches() async {
        await withTaskGroup(of: Void.self) { group in
            for _ in 0..<4 {
                group.addTask {
                    for _ in 0..<2000 {
                        await withUnsafeContinuation { (waiting: UnsafeContinuation<Void, Never>) in
                            Thread.detachNewThread { waiting.resume() }
                        }
                    }
                }
            }
        }
    }

    /// Anonymous memory in KiB, once everything is released that is going to be.
    private func resident() async throws -> Int {
        try await eventually(seconds: 2) { engineThreads().isEmpty }
        // What leaks is in every reading.
        var least = Int.max
        for _ in 0..<5 {
            // Free memory that the allocator keeps for later is no leak. Only glibc knows how to give it back, and Swift does not know that.
            if let trim = dlsym(nil, "malloc_trim") {
                _ = unsafeBitCast(trim, to: (@convention(c) (Int) -> CInt).self)(0)
            }
            try await pause(50)
            least = min(least, status("RssAnon"))
        }
        return least
    }
}
