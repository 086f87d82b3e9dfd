import Foundation
import XCTest

@testable import Pannier

/// Guessed tokens: faster or not, never another answer. The model drafts for itself, so all its guesses are right.
final class SpeculationTests: XCTestCase {
    private let drafted = ModelOptions(context: 512, draft: Models.smol)
    /// Its answer quotes it.
    private let question = "Repeat: the quick brown fox jumps over the lazy dog. the quick brown fox jumps over the lazy dog."

    private func greedy(_ speculation: Speculation? = nil, length: Int? = nil, tokens: Int = 40) -> GenerationOptions {
        GenerationOptions(maxTokens: tokens, temperature: 0, speculation: speculation, draftLength: length)
    }

    /// All notices of a long answer and its end; `act` is called once, when the third text has come.
    private func run(
        _ model: Model, _ options: GenerationOptions, act: () -> Void = {}
    ) async throws -> (notices: [Notice], end: GenerationEvent?) {
        var events: [GenerationEvent] = []
        for try await event in try model.chat().send("Tell me a story about a dog.", options: options) {
            events.append(event)
            if isText(event), events.filter(isText).count == 3 { act() }
        }
        return (events.compactMap { if case .notice(let notice) = $0 { notice } else { nil } }, check(events))
    }

    func testGuessesChangeTheSpeedAndNotTheAnswer() async throws {
        let question = question
        let model = Pannier().model(at: Models.smol, options: drafted)
        func ask(_ options: GenerationOptions) async throws -> Answer { try await model.chat().ask(question, options: options) }
        let plain = try await ask(greedy(.off))
        XCTAssertEqual(plain.stats.proposedTokens, 0)
        XCTAssertNil(plain.stats.acceptanceRate)
        XCTAssertEqual(plain.stats.tokensPerPass, 1)
        XCTAssertNil(plain.stats.flashBytesPerToken)
        XCTAssertGreaterThan(plain.stats.generatedTokens, 15)
        // A model that was loaded with a draft model uses it if nothing else is said.
        let own = try await ask(greedy(length: 3))
        XCTAssertEqual(own.text, plain.text)
        XCTAssertEqual(own.stats.acceptanceRate, 1)
        XCTAssertEqual(own.stats.acceptedTokens, own.stats.proposedTokens)
        XCTAssertGreaterThan(own.stats.tokensPerPass ?? 0, 2.5)
        let quoted = try await ask(greedy(.ngram, length: 5))
        XCTAssertEqual(quoted.text, plain.text)
        XCTAssertGreaterThan(quoted.stats.acceptedTokens, 5)
        XCTAssertGreaterThan(quoted.stats.acceptanceRate ?? 0, 0.1)
        XCTAssertGreaterThan(quoted.stats.tokensPerPass ?? 0, 1.2)
        for speculation in [Speculation.off, .auto, .ngram, .draft] {
            let answer = try await ask(greedy(speculation))
            XCTAssertEqual(answer.text, plain.text, "\(speculation)")
        }
        var drawn = GenerationOptions(maxTokens: 24, temperature: 1, seed: 7, speculation: .off)
        let expected = try await ask(drawn)
        (drawn.speculation, drawn.draftLength) = (nil, 4)
        let guessed = try await ask(drawn)
        XCTAssertEqual(guessed.text, expected.text)
        model.close()
        let quoting = Pannier().model(at: Models.smol, options: ModelOptions(context: 512, speculation: .ngram))
        let byDefault = try await quoting.chat().ask(question, options: greedy(length: 5))
        XCTAssertGreaterThan(byDefault.stats.acceptedTokens, 5)
        let without = try await Shared.model.chat().ask(question, options: greedy(length: 5))
        XCTAssertEqual(without.stats.proposedTokens, 0)
    }

    func testAPlanTellsWhatADraftModelTakesAndWhatGuessesBring() async throws {
        let single = ModelOptions(context: 512)
        let alone = try await Pannier.plan(Models.smol, options: single)
        XCTAssertEqual(alone.draftBytes, 0)
        XCTAssertTrue((1...8).contains(alone.speculation.draftLength) && alone.speculation.gain > 1, "\(alone.speculation)")
        XCTAssertGreaterThan(alone.speculation.decodeTokensPerSecond, alone.predictedDecodeTokensPerSecond)
        let both = try await Pannier.plan(Models.smol, options: drafted)
        XCTAssertGreaterThan(both.draftBytes, 88_000_000)
        XCTAssertGreaterThan(both.peakBytes, alone.peakBytes)
        XCTAssertGreaterThan(Double(both.fileBackedBytes), 1.9 * Double(alone.fileBackedBytes))
        // A draft model as large as the model brings less than guesses that cost nothing.
        XCTAssertTrue((1...alone.speculation.gain).contains(both.speculation.gain), "\(both.speculation)")
        let budget = MemoryBudget.mebibytes(96)
        let (small, large) = (
            try await Pannier.plan(Models.smol, budget: budget, options: single),
            try await Pannier.plan(Models.smol, budget: budget, options: drafted)
        )
        XCTAssertTrue(small.fits)
        XCTAssertFalse(large.fits)
        let refused = await failure { try await Pannier(budget: budget).load(Models.smol, options: drafted) }
        guard case .outOfBudget(_, let plan?) = refused else { return XCTFail("\(String(describing: refused))") }
        XCTAssertEqual(plan.draftBytes, both.draftBytes)
    }

    func testWhatCannotDraftIsATypedError() async throws {
        let folder = try temporaryFolder(self)
        func errors(_ options: ModelOptions) async -> [PannierError?] {
            let loading = await failure { try await Pannier().load(Models.smol, options: options) }
            let planning = await failure { try await Pannier.plan(Models.smol, options: options) }
            return [loading, planning]
        }
        let other = await errors(ModelOptions(draft: Models.gemma))[0]
        guard case .invalidArgument(let why) = other else { return XCTFail("\(String(describing: other))") }
        XCTAssertTrue(why.contains("vocabulary"), why)
        for error in await errors(ModelOptions(draft: folder.appendingPathComponent("absent.gguf"))) {
            guard case .notFound(let message) = error else { return XCTFail("\(String(describing: error))") }
            XCTAssertFalse(message.contains(folder.path), message)
        }
        let text = folder.appendingPathComponent("text.gguf")
        try Data("This is no model.".utf8).write(to: text)
        for error in await errors(ModelOptions(draft: text)) {
            guard case .invalidModel = error else { return XCTFail("\(String(describing: error))") }
        }
        for error in await errors(ModelOptions(speculation: .draft)) {
            guard case .invalidArgument = error else { return XCTFail("\(String(describing: error))") }
        }
        let negative = await failure { try await all(Shared.model.chat().send(question, options: greedy(.ngram, length: -1))) }
        guard case .invalidArgument = negative else { return XCTFail("\(String(describing: negative))") }
        for options in [greedy(.draft), greedy(.ngram, length: 9)] {
            let events = try await all(Shared.model.chat().send(question, options: options))
            guard case .failed(.invalidArgument) = check(events) else { return XCTFail("\(events)") }
        }
        // With guesses off, nothing is asked for.
        guard case .completed = try await run(Shared.model, greedy(.off)).end else { return XCTFail("it did not answer") }
    }

    func testADraftModelIsGivenUpWhenMemoryIsScarceAndTheAnswerGoesOn() async throws {
        let pannier = Pannier()
        let model = pannier.model(at: Models.smol, options: drafted)
        guard case .completed(let plain) = try await run(model, greedy(.off, tokens: 64)).end else { return XCTFail("no answer") }
        let (notices, end) = try await run(model, greedy(length: 3, tokens: 64)) { pannier.onMemoryPressure(.moderate) }
        let bytes = try await model.plan().draftBytes
        let released = notices.filter { if case .draftReleased = $0 { true } else { false } }
        XCTAssertEqual(released, [.draftReleased(bytes: bytes)], "\(notices)")
        guard case .completed(let answer) = end else { return XCTFail("\(String(describing: end))") }
        XCTAssertEqual(answer.text, plain.text)
        XCTAssertGreaterThan(answer.stats.proposedTokens, 0)
        XCTAssertLessThan(answer.stats.tokensPerPass ?? 9, 3.5)
        // It was there, so asking for it is no error; it comes back with the model.
        let after = try await model.chat().ask(question, options: greedy(.draft))
        XCTAssertEqual(after.stats.proposedTokens, 0)
        model.unload()
        pannier.onMemoryPressure(.normal)
        let again = try await model.chat().ask(question, options: greedy(length: 3))
        XCTAssertGreaterThan(again.stats.acceptedTokens, 5)
        model.close()
    }

    func testHeatTakesThreadsIsToldAndChangesNoAnswer() async throws {
        let pannier = Pannier()
        let model = pannier.model(at: Models.smol, options: ModelOptions(context: 512, threads: 2))
        let cool = try await run(model, greedy(tokens: 64))
        XCTAssertEqual(cool.notices, [])
        let hot = try await run(model, greedy(tokens: 64)) { pannier.onHeat(.serious) }
        XCTAssertEqual(hot.notices, [.heatChanged(.serious, threads: 1)])
        guard case .completed(let before) = cool.end, case .completed(let after) = hot.end else { return XCTFail("\(hot)") }
        XCTAssertEqual(after.text, before.text)
        // It holds for models that are loaded later, and until something else is said.
        model.unload()
        for expected: [Notice] in [[.heatChanged(.serious, threads: 1)], []] {
            let notices = try await run(model, greedy()).notices
            XCTAssertEqual(notices, expected)
        }
        pannier.onHeat(.nominal)
        let notices = try await run(model, greedy()).notices
        XCTAssertEqual(notices, [.heatChanged(.nominal, threads: 2)])
        model.close()
    }
}
