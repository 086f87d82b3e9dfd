import Foundation
import XCTest

@testable import Pannier

/// Answers of the real model, as they arrive.
final class StreamingTests: XCTestCase {
    func testAnAnswerStreamsAndIsTheSameEveryTime() async throws {
        let chat = try Shared.model.chat(system: "Answer briefly.")
        let events = try await all(chat.send("Name the capital of France.", options: greedy()))
        guard case .completed(let answer) = check(events) else { return XCTFail("\(events)") }
        guard case .started = events.first else { return XCTFail("\(events)") }
        XCTAssertGreaterThan(events.filter(isText).count, 2)
        XCTAssertTrue(answer.text.contains("Paris"), answer.text)
        XCTAssertEqual(answer.source, .onDevice)
        XCTAssertGreaterThan(answer.stats.decodeTokensPerSecond, 0)
        XCTAssertEqual(chat.history.count, 3)
        XCTAssertEqual(chat.history.last?.content, answer.text)
        let again = try await Shared.model.chat(system: "Answer briefly.").ask("Name the capital of France.", options: greedy())
        XCTAssertEqual(again.text, answer.text)
        // The next turn goes on from what was read.
        let next = try await all(chat.send("And of Italy?", options: greedy()))
        guard case .started(_, let cached) = next.first else { return XCTFail("\(next)") }
        XCTAssertGreaterThan(cached, 0)
    }

    func testTwoSessionsAtOnceAnswerAsEachWouldAlone() async throws {
        let questions = ["Name a colour.", "Count to five."]
        var alone: [String] = []
        for question in questions { alone.append(try await Shared.model.chat().ask(question, options: greedy()).text) }
        let together = try await withThrowingTaskGroup(of: (Int, String).self) { group in
            for (i, question) in questions.enumerated() {
                group.addTask { (i, text(try await all(Shared.model.chat().send(question, options: greedy())))) }
            }
            var answers = ["", ""]
            for try await (i, answer) in group { answers[i] = answer }
            return answers
        }
        XCTAssertEqual(together, alone)
    }

    func testOneSessionDoesOneThingAtATime() async throws {
        let chat = try Shared.model.chat()
        var events: [GenerationEvent] = []
        var refused: PannierError?
        for try await event in chat.send("Tell me a story.", options: greedy()) {
            events.append(event)
            if case .started = event { refused = await failure { try await all(chat.send("And?")) } }
        }
        guard case .busy = refused else { return XCTFail("\(String(describing: refused))") }
        guard case .completed = check(events) else { return XCTFail("\(events)") }
    }

    func testEmojiCJKAndJoinedSequencesArriveWhole() async throws {
        let said = "👩‍👩‍👧‍👦 🏳️‍🌈 漢字かな 한국어 é̂ 𝕏"
        let chat = try Shared.model.chat()
        // Sampled wildly, answers are full of pieces of characters.
        let wild = GenerationOptions(maxTokens: 48, temperature: 4, topK: 0, topP: 1, minP: 0, seed: 7)
        let events = try await all(chat.send(said, options: wild))
        guard case .completed(let answer) = check(events) else { return XCTFail("\(events)") }
        XCTAssertEqual(answer.text, text(events))
        XCTAssertEqual(chat.history.first?.content.unicodeScalars.map(\.value), said.unicodeScalars.map(\.value))
        let other = try Shared.model.chat()
        try other.restore(chat.save())
        XCTAssertEqual(other.history, chat.history)
        // Shown how, the small model repeats an emoji, which takes it several tokens.
        let parrot = try Shared.model.chat()
        let turn = [ChatMessage(.user, "Say 😀"), ChatMessage(.assistant, "😀😀😀")]
        try parrot.setHistory(turn + turn + turn)
        let echo = try await all(parrot.send("Say 😀", options: greedy(12)))
        XCTAssertTrue(text(echo).contains("😀"), text(echo))
        XCTAssertFalse(text(echo).contains("\u{FFFD}"), text(echo))
        let joined = echo.contains { if case .text(_, let tokens) = $0 { tokens.count > 1 } else { false } }
        XCTAssertTrue(joined, "an emoji of several tokens came in pieces")
    }

    func testASlowReaderGetsEverythingAndHoldsNobodyUp() async throws {
        let done = Box(false)
        let slow = Task { () -> [GenerationEvent] in
            var events: [GenerationEvent] = []
            for try await event in try Shared.model.chat().send("Count to ten.", options: greedy()) {
                events.append(event)
                try await pause(40)
            }
            done.change { $0 = true }
            return events
        }
        try await pause(20)
        check(try await all(Shared.model.chat().send("Count to three.", options: greedy(8))))
        XCTAssertFalse(done.now, "the quick one did not wait for the slow reader")
        check(try await slow.value)
    }

    func testAReaderOnTheMainActorGetsItsEvents() async throws {
        let count = try await Self.onMain()
        XCTAssertGreaterThan(count, 2)
    }

    @MainActor
    private static func onMain() async throws -> Int {
        var count = 0
        for try await _ in try Shared.model.chat().send("Hi", options: greedy(4)) {
            MainActor.preconditionIsolated()
            count += 1
        }
        return count
    }

    func testOptionsAreCheckedAndTakeEffect() async throws {
        let chat = try Shared.model.chat()
        let bad = try await all(chat.send("Hi", options: GenerationOptions(temperature: -1)))
        guard case .failed(.invalidArgument) = check(bad) else { return XCTFail("\(bad)") }
        guard case .invalidArgument = await failure({ try await chat.ask("Hi", options: GenerationOptions(maxTokens: -1)) }) else {
            return XCTFail("a negative number of tokens was taken")
        }
        XCTAssertTrue(chat.history.isEmpty, "a failed turn leaves no trace")
        let top = try await all(chat.send("Hi", options: GenerationOptions(maxTokens: 3, seed: 1, topLogprobs: 2)))
        for case .text(_, let tokens) in top { XCTAssertTrue(tokens.allSatisfy { $0.top.count == 2 }) }
        let stopped = try await Shared.model.chat().ask("Count: 1 2 3", options: GenerationOptions(maxTokens: 40, stop: ["e"]))
        XCTAssertFalse(stopped.text.contains("e"), stopped.text)
        let short = try await Shared.model.chat().ask("Tell a long story.", options: GenerationOptions(deadline: 0.15))
        XCTAssertEqual(short.finishReason, .deadline)
    }

    func testTooLongAConversationIsRefusedNotCut() async throws {
        let chat = try Shared.model.chat()
        let long = String(repeating: "word ", count: 2000)
        let tokens = try await chat.tokenCount(long)
        XCTAssertGreaterThan(tokens, 1024)
        let error = await failure { try await chat.ask(long) }
        guard case .contextOverflow(let message, let needed, let limit) = error else { return XCTFail("\(String(describing: error))") }
        XCTAssertEqual(limit, 1024)
        XCTAssertGreaterThan(needed, 2000)
        XCTAssertFalse(message.contains("word"))
    }
}
