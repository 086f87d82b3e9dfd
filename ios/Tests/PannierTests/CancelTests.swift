import Foundation
import XCTest

@testable import Pannier

/// Cancelling, from every side.
final class CancelTests: XCTestCase {
    func testCancellingTheSessionEndsTheStreamInOneCancelledEvent() async throws {
        let chat = try Shared.model.chat()
        var events: [GenerationEvent] = []
        for try await event in chat.send("Tell me a very long story.", options: endless) {
            events.append(event)
            if events.filter(isText).count == 3 { chat.cancel() }
        }
        XCTAssertTrue(isCancelled(check(events)), "\(events)")
        XCTAssertEqual(chat.history.count, 2, "what the user has seen is part of the history")
    }

    func testCancellingTheTaskReachesTheEngine() async throws {
        let chat = try Shared.model.chat()
        let begun = Box(false)
        let reader = Task {
            for try await event in chat.send("Tell me a very long story.", options: endless) where isText(event) {
                begun.change { $0 = true }
            }
        }
        try await eventually { begun.now }
        reader.cancel()
        try await reader.value
        try await settled(chat)
        XCTAssertEqual(Shared.model.state, .ready)
    }

    func testCancellingAskThrowsCancellationError() async throws {
        let chat = try Shared.model.chat()
        let asking = Task { try await chat.ask("Tell me a very long story.", options: endless) }
        try await eventually { Shared.model.state == .generating }
        asking.cancel()
        do {
            _ = try await asking.value
            XCTFail("it was answered")
        } catch is CancellationError {}
        try await settled(chat)
    }

    func testLeavingTheLoopAndDroppingTheStreamCancel() async throws {
        let chat = try Shared.model.chat()
        for try await event in chat.send("Tell me a very long story.", options: endless) where isText(event) { break }
        try await settled(chat)
        _ = chat.send("Tell me a very long story.", options: endless)
        try await settled(chat)
    }

    func testAReaderThatThrowsCancelsAndGetsItsError() async throws {
        struct Mine: Error {}
        let chat = try Shared.model.chat()
        do {
            for try await event in chat.send("Tell me a very long story.", options: endless) where isText(event) { throw Mine() }
            XCTFail("nothing was thrown")
        } catch is Mine {}
        try await settled(chat)
    }

    func testAHundredCancelsAtRandomMoments() async throws { try await cancels(100) }

    func testAThousandCancelsAtRandomMoments() async throws {
        try XCTSkipUnless(isLong, "takes minutes: PANNIER_TEST=full")
        try await cancels(1000)
    }

    private func cancels(_ times: Int) async throws {
        var random = Fixed(state: 42)
        let chat = try Shared.model.chat()
        _ = try await chat.ask("Hi", options: greedy(1))
        var starts: [Double] = []
        var cancelled = 0
        for round in 0..<times {
            try chat.setHistory([])
            let options = GenerationOptions(maxTokens: 12, temperature: 1, topK: 0, seed: UInt64(round))
            let stream = chat.send("Tell me a story.", options: options)
            let reader = Task { try await all(stream) }
            // From before the first event to the middle of the answer.
            try await pause(Double(random.next() % 60_000) / 1000)
            chat.cancel()
            let mark = Date()
            if isCancelled(check(try await reader.value)) { cancelled += 1 }
            // The session is free when the end is told: the next one starts at once.
            try chat.setHistory([])
            for try await event in chat.send("Hi", options: greedy(1)) {
                if case .started = event { break }
            }
            starts.append(Date().timeIntervalSince(mark) * 1000)
            try await settled(chat)
        }
        starts.sort()
        let at = { (share: Double) in String(format: "%.1f", starts[Int(Double(times - 1) * share)]) }
        print("cancels: \(cancelled) of \(times) were cancelled; next start after the cancel: median \(at(0.5)), 99% \(at(0.99)), worst \(at(1)) ms")
        XCTAssertGreaterThan(cancelled, times / 4)
        // The bound is the promise of the API; one of a hundred may be late on a busy machine.
        XCTAssertLessThan(starts[(times - 1) * 99 / 100], 50)
    }
}

/// The same numbers every time (SplitMix64).
struct Fixed {
    var state: UInt64

    mutating func next() -> UInt64 {
        state &+= 0x9E37_79B9_7F4A_7C15
        var z = state
        z = (z ^ (z >> 30)) &* 0xBF58_476D_1CE4_E5B9
        z = (z ^ (z >> 27)) &* 0x94D0_49BB_1331_11EB
        return z ^ (z >> 31)
    }
}
