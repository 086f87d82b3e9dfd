import Foundation
import XCTest

@testable import Pannier

/// What a system says, and what becomes of it. The names stand for UIKit's.
final class SystemTests: XCTestCase {
    private let small = ModelOptions(context: 256)
    private let center = NotificationCenter()

    private func signals(heat: Box<Heat> = Box(.nominal), protected: Box<Int> = Box(0)) -> SystemSignals {
        SystemSignals(
            memoryWarning: Notification.Name("memory"), enteredBackground: Notification.Name("background"),
            willEnterForeground: Notification.Name("foreground"), heatChanged: Notification.Name("heat"), heat: { heat.now },
            protect: { work in
                protected.change { $0 += 1 }
                await work()
            })
    }

    private func post(_ name: String) { center.post(name: Notification.Name(name), object: nil) }

    func testAMemoryWarningUnloadsWhatIsIdle() async throws {
        let pannier = Pannier()
        let connection = SystemConnection(pannier, signals: signals(), center: center, keepBytes: 0)
        let model = try await pannier.load(Models.smol, options: small)
        post("memory")
        XCTAssertEqual(model.state, .unloaded)
        connection.end()
        try await model.load()
        post("memory")
        XCTAssertEqual(model.state, .ready, "nobody listens any more")
    }

    func testTheBackgroundFreesInProtectedTimeAndTheForegroundRestores() async throws {
        let (pannier, protected) = (Pannier(), Box(0))
        let connection = SystemConnection(pannier, signals: signals(protected: protected), center: center, keepBytes: 0)
        let model = try await pannier.load(Models.smol, options: small)
        post("background")
        await connection.settle()
        XCTAssertEqual(model.state, .suspended)
        XCTAssertEqual(pannier.memory().used, 0)
        XCTAssertEqual(protected.now, 1)
        // Back and forth faster than the engine: the last one counts.
        post("foreground")
        post("background")
        post("foreground")
        await connection.settle()
        XCTAssertEqual(model.state, .ready)
    }

    func testHeatIsToldAndARunningAnswerGoesOnUnderPressure() async throws {
        let heat = Box(Heat.nominal)
        let pannier = Pannier()
        let connection = SystemConnection(pannier, signals: signals(heat: heat), center: center, keepBytes: 0)
        var felt: [Heat] = []
        for await now in connection.heatUpdates() {
            felt.append(now)
            if now == .serious { break }
            heat.change { $0 = .serious }
            post("heat")
        }
        XCTAssertEqual(felt, [.nominal, .serious])
        XCTAssertLessThan(Heat.fair, .serious)
        let chat = try pannier.model(at: Models.smol, options: small).chat()
        var events: [GenerationEvent] = []
        for try await event in chat.send("Count to ten.", options: greedy(12)) {
            events.append(event)
            if isText(event) { post("memory") }
        }
        guard case .completed = check(events) else { return XCTFail("\(events)") }
    }
}
