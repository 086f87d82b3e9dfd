import Foundation
import XCTest

@testable import Pannier

/// The device and a cloud that a test plays.
final class HybridTests: XCTestCase {
    /// Answers with a stream, and counts.
    private final class Play: CloudTransport {
        let sent = Box(0)
        private let answer: @Sendable () -> AsyncThrowingStream<String, any Error>

        init(_ answer: @escaping @Sendable () -> AsyncThrowingStream<String, any Error>) { self.answer = answer }

        convenience init(_ pieces: String...) {
            self.init {
                AsyncThrowingStream { events in
                    pieces.forEach { events.yield($0) }
                    events.finish()
                }
            }
        }

        var name: String { "play" }

        func prepare(_ prompt: CloudPrompt) throws -> CloudPayload {
            CloudPayload(destination: "test", body: prompt.messages.map(\.content).joined(separator: "|"))
        }

        func send(_ payload: CloudPayload) -> AsyncThrowingStream<String, any Error> {
            sent.change { $0 += 1 }
            return answer()
        }
    }

    /// More than any confidence: always unsure.
    private let unsure = HybridPolicy.edgeFirst(EdgeFirst(minConfidence: 1.01, checkAfterTokens: 4, holdUntilChecked: false))

    private func answer(_ events: [HybridEvent], file: StaticString = #filePath, line: UInt = #line) throws -> HybridAnswer {
        XCTAssertEqual(events.filter(\.isTerminal).count, 1, "\(events)", file: file, line: line)
        guard case .completed(let answer) = events.last else {
            XCTFail("\(events)", file: file, line: line)
            throw PannierError.internal("no answer")
        }
        return answer
    }

    /// What is shown at the end: text is added, and taken back.
    private func shown(_ events: [HybridEvent]) -> String {
        events.reduce(into: "") { shown, event in
            switch event {
            case .text(let text, _, _): shown += text
            case .discard(let remaining): shown = remaining
            default: break
            }
        }
    }

    func testWithoutACloudNothingLeavesTheDevice() async throws {
        let session = HybridSession(try Shared.model.chat())
        let events = try await all(session.send("Name the capital of France.", options: greedy()))
        let answer = try answer(events)
        XCTAssertTrue(answer.text.contains("Paris"), answer.text)
        XCTAssertEqual(answer.source, .onDevice)
        XCTAssertTrue((0...1).contains(answer.confidence?.value ?? -1))
        XCTAssertFalse(events.contains { if case .outgoing = $0 { true } else { false } })
        XCTAssertEqual(shown(events), answer.text)
        XCTAssertEqual(session.history.count, 2)
    }

    func testAnUnsureDeviceHandsOverWithAReasonConsentAndAReplacedDraft() async throws {
        let seen = Box<[CloudPayload]>([])
        let cloud = Cloud.custom(Play("From ", "the cloud 😀.")) { payload in
            seen.change { $0.append(payload) }
            return true
        }
        let session = HybridSession(try Shared.model.chat(), policy: unsure, cloud: cloud)
        let events = try await all(session.send("Name a colour.", options: greedy()))
        let answer = try answer(events)
        XCTAssertEqual(answer.text, "From the cloud 😀.")
        XCTAssertEqual(answer.source, .cloud)
        XCTAssertEqual(shown(events), answer.text, "the draft was taken back")
        let decision = try XCTUnwrap(answer.decisions.last { $0.route == .cloud })
        XCTAssertEqual(decision.reason, .unsure)
        XCTAssertFalse(decision.explanation.isEmpty)
        XCTAssertEqual(seen.now, [CloudPayload(destination: "test", body: "Name a colour.")])
        XCTAssertEqual(session.history.map(\.content), ["Name a colour.", answer.text])
    }

    func testNoConsentALockAndARedactorKeepItOnTheDevice() async throws {
        let play = Play("cloud")
        let refusals: [(Cloud, HandOffReason)] = [
            (.custom(play) { _ in false }, .noConsent),
            (.custom(play, redactor: { _ in nil }) { _ in true }, .redactionRefused),
        ]
        for (cloud, why) in refusals {
            let session = HybridSession(try Shared.model.chat(), policy: unsure, cloud: cloud)
            let answer = try answer(try await all(session.send("Hi", options: greedy())))
            XCTAssertEqual(answer.source, .onDevice)
            XCTAssertTrue(answer.decisions.contains { $0.route == .edge && $0.reason == why }, "\(answer.decisions)")
        }
        let locked = HybridSession(try Shared.model.chat(), policy: unsure, cloud: .custom(play) { _ in true })
        locked.lockToDevice()
        XCTAssertTrue(locked.isLockedToDevice)
        let kept = try answer(try await all(locked.send("Hi", options: greedy())))
        XCTAssertEqual(kept.source, .onDevice)
        XCTAssertEqual(play.sent.now, 0)
        let only = HybridSession(try Shared.model.chat(), policy: .cloudOnly, cloud: .custom(play) { _ in false })
        let events = try await all(only.send("a secret", options: greedy()))
        guard case .failed(.network(let message)) = events.last else { return XCTFail("\(events)") }
        // Nobody goes on, so there is no decision; the error says why.
        XCTAssertTrue(message.contains("no consent"), message)
        XCTAssertFalse(message.contains("secret"))
    }

    func testACloudThatFailsLeavesTheDevicesAnswer() async throws {
        let play = Play { AsyncThrowingStream { $0.finish(throwing: CloudFailure("down", status: 503)) } }
        let session = HybridSession(try Shared.model.chat(), policy: .cloudFirst, cloud: .custom(play) { _ in true })
        let answer = try answer(try await all(session.send("Name the capital of France.", options: greedy())))
        XCTAssertEqual(answer.source, .onDevice)
        XCTAssertTrue(answer.decisions.contains { $0.reason == .cloudFailed })
    }

    func testCancellingTheTaskClosesTheConnection() async throws {
        let closed = Box(false)
        let play = Play {
            AsyncThrowingStream { events in
                events.onTermination = { _ in closed.change { $0 = true } }
                events.yield("begun")
            }
        }
        let session = HybridSession(try Shared.model.chat(), policy: .cloudOnly, cloud: .custom(play) { _ in true })
        for try await event in session.send("Hi", options: greedy()) {
            if case .text = event { break }
        }
        try await eventually { closed.now }
    }

    func testTheAppsOwnRuleAndTheStateOfTheDeviceAreAsked() async throws {
        let session = HybridSession(
            try Shared.model.chat(), policy: .edgeFirst(), cloud: .custom(Play("cloud")) { _ in true },
            device: { DeviceCondition(battery: 0.1, charging: false, online: true) },
            rule: { $0.task == "hard" && $0.device.battery == 0.1 ? .cloud : nil })
        let answer = try answer(try await all(session.send("Hi", options: greedy(), task: "hard")))
        XCTAssertEqual(answer.text, "cloud")
        XCTAssertEqual(answer.decisions.first?.reason, .appRule)
    }

    func testAWrongAddressIsRefusedAndKeysAreNotPrinted() async {
        let endpoint = CloudEndpoint(baseURL: "http://example.org/v1", model: "m", key: "sk-4711")
        guard case .invalidArgument(let message) = await failure({ try Cloud.openAI(endpoint) { _ in true } }) else {
            return XCTFail("plain HTTP was taken")
        }
        var dumped = ""
        dump(endpoint, to: &dumped)
        XCTAssertFalse("\(endpoint) \(dumped) \(message)".contains("4711"))
    }
}
