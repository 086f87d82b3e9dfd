import Foundation
import Pannier
import XCTest

@testable import ChatLogic

private let smol = "smollm2-135m-instruct"

/// The sample without its views, on the real engine. The model belongs to the main actor; the tests do not, because XCTest's runner calls
/// them from outside of it.
final class ChatModelTests: XCTestCase {
    func testAChosenModelIsPlannedAnswersAndShowsSpeedMemoryAndSource() async throws {
        try await onMain { folders in
            let pannier = Pannier()
            let chat = ChatModel(pannier: pannier, store: try folders.filled())
            XCTAssertEqual(chat.screen.here, [smol])
            chat.choose(smol)
            await chat.settle()
            XCTAssertEqual(chat.screen.plan?.fits, true)
            XCTAssertEqual(pannier.memory().used, 0, "nothing is loaded before the user speaks")
            var seen = 0
            chat.onChange = { _ in seen += 1 }
            chat.say("Name a colour.")
            chat.say("ignored while it answers")
            await chat.settle()
            let screen = chat.screen
            XCTAssertNil(screen.notice)
            XCTAssertEqual(screen.lines.map(\.fromUser), [true, false])
            XCTAssertFalse(screen.lines[1].text.isEmpty)
            XCTAssertEqual(screen.lines[1].badge?.hasPrefix("on device"), true)
            XCTAssertTrue(screen.meter.contains("tokens/s") && screen.meter.contains("MB"), screen.meter)
            XCTAssertGreaterThan(seen, 3, "the view is told while the answer comes")
            chat.clear()
            XCTAssertTrue(chat.screen.lines.isEmpty)
        }
    }

    func testStopKeepsWhatWasSaid() async throws {
        try await onMain { folders in
            let chat = ChatModel(pannier: Pannier(), store: try folders.filled())
            chat.choose(smol)
            await chat.settle()
            chat.onChange = { [weak chat] screen in
                if screen.answering, screen.lines.last?.text.isEmpty == false { chat?.stop() }
            }
            chat.say("Tell me a very long story about a river.")
            await chat.settle()
            XCTAssertEqual(chat.screen.lines.last?.badge, "stopped")
            XCTAssertEqual(chat.screen.lines.last?.text.isEmpty, false)
            XCTAssertFalse(chat.screen.answering)
        }
    }

    func testInAirplaneModeAModelThatIsHereWorksAndAnotherOneSaysWhyNot() async throws {
        try await onMain { folders in
            let empty = ChatModel(pannier: Pannier(), store: ModelStore(folder: try folders.make()), isOnline: { false })
            empty.choose(smol)
            await empty.settle()
            XCTAssertEqual(empty.screen.notice?.contains("No network"), true)
            XCTAssertFalse(empty.screen.online)
            let chat = ChatModel(pannier: Pannier(), store: try folders.filled(), isOnline: { false })
            chat.choose(smol)
            chat.say("too early")
            await chat.settle()
            chat.say("Hi")
            await chat.settle()
            XCTAssertEqual(chat.screen.lines.last?.text.isEmpty, false)
        }
    }

    func testAnUnsureAnswerIsReplacedByTheCloudsOnlyIfTheUserAllowsIt() async throws {
        try await onMain { folders in
            struct Play: CloudTransport {
                let name = "play"
                func prepare(_ prompt: CloudPrompt) throws -> CloudPayload { CloudPayload(destination: "test", body: "") }
                func send(_ payload: CloudPayload) -> AsyncThrowingStream<String, any Error> {
                    AsyncThrowingStream { events in
                        events.yield("The cloud says blue.")
                        events.finish()
                    }
                }
            }
            let chat = ChatModel(pannier: Pannier(), store: try folders.filled(), cloud: .custom(Play()) { _ in true })
            for allowed in [false, true] {
                chat.apply(ChatSettings(cloudAllowed: allowed, minConfidence: 1.01))
                chat.choose(smol)
                await chat.settle()
                chat.say("Name a colour.")
                await chat.settle()
                let line = try XCTUnwrap(chat.screen.lines.last)
                XCTAssertEqual(line.badge == "cloud", allowed, "\(line)")
                XCTAssertEqual(line.text == "The cloud says blue.", allowed, "\(line)")
                XCTAssertEqual(line.reason != nil, allowed, "\(line)")
            }
        }
    }

    func testASmallBudgetIsToldBeforeAnythingIsLoaded() async throws {
        try await onMain { folders in
            let chat = ChatModel(pannier: Pannier(), store: try folders.filled())
            chat.apply(ChatSettings(budgetMebibytes: 8))
            chat.choose(smol)
            await chat.settle()
            XCTAssertEqual(chat.screen.plan?.fits, false)
            XCTAssertEqual(chat.screen.notice?.contains("does not fit"), true)
            chat.apply(ChatSettings(budgetMebibytes: 512))
            await chat.settle()
            XCTAssertEqual(chat.screen.plan?.fits, true)
        }
    }

    func testAConversationSurvivesTheBackgroundAndANewStart() async throws {
        try await onMain { folders in
            let saved = try folders.make().appendingPathComponent("chat.json")
            let store = try folders.filled()
            let pannier = Pannier()
            let chat = ChatModel(pannier: pannier, store: store, checkpoint: saved)
            chat.choose(smol)
            await chat.settle()
            chat.say("Name a colour. 🎨")
            await chat.settle()
            let before = chat.screen.lines.map(\.text)
            try await pannier.enterBackground()
            XCTAssertEqual(pannier.memory().used, 0)
            let later = ChatModel(pannier: Pannier(), store: store, checkpoint: saved)
            later.choose(smol)
            await later.settle()
            XCTAssertEqual(later.screen.lines.map(\.text), before)
        }
    }
}

/// Runs a test's body, and clears up after it.
@MainActor
private func onMain(_ body: @MainActor @Sendable (Folders) async throws -> Void) async throws {
    let folders = Folders()
    defer { folders.remove() }
    try await body(folders)
}

/// Folders that are gone after the test.
@MainActor
private final class Folders {
    private var made: [URL] = []

    private static let models: URL = {
        let environment = ProcessInfo.processInfo.environment
        if let folder = environment["PANNIER_MODELS"], !folder.isEmpty { return URL(fileURLWithPath: folder) }
        return URL(fileURLWithPath: NSHomeDirectory() + "/.cache/pannier/models")
    }()

    func make() throws -> URL {
        let folder = FileManager.default.temporaryDirectory.appendingPathComponent("chat-\(UUID().uuidString)")
        try FileManager.default.createDirectory(at: folder, withIntermediateDirectories: true)
        made.append(folder)
        return folder
    }

    /// A store that has the model.
    func filled() throws -> ModelStore {
        let folder = try make()
        let file = "SmolLM2-135M-Instruct.Q4_1.gguf"
        try FileManager.default.createSymbolicLink(
            at: folder.appendingPathComponent(file), withDestinationURL: Self.models.appendingPathComponent(file))
        return ModelStore(folder: folder)
    }

    func remove() {
        for folder in made { try? FileManager.default.removeItem(at: folder) }
    }
}
