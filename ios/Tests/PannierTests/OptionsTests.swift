import Foundation
import XCTest

@testable import Pannier

/// What an app may choose between memory, speed and quality: the KV cache, the precision of weights, and what a chat drops.
final class OptionsTests: XCTestCase {
    private func nested() throws -> URL {
        let path = ProcessInfo.processInfo.environment["PANNIER_NESTED"] ?? ""
        try XCTSkipIf(path.isEmpty, "`cargo xtask test --swift` makes a model in nested precision, and sets PANNIER_NESTED to it")
        return URL(fileURLWithPath: path)
    }

    private func notices(_ events: [GenerationEvent]) -> [Notice] {
        events.compactMap { if case .notice(let notice) = $0 { notice } else { nil } }
    }

    func testTypesOfTheKVCacheArePlannedRunAndReported() async throws {
        func kvBytes(_ type: KVType, context: Int = 1024) async throws -> Double {
            let options = ModelOptions(context: context, kv: KVOptions(type: type))
            return Double(try await Pannier.plan(Models.smol, options: options).kvBytes)
        }
        var bytes: [Double] = []
        for type in KVType.allCases where type != .q4Channel && type != .q8Channel { bytes.append(try await kvBytes(type)) }
        XCTAssertGreaterThan(bytes[0], 1.8 * bytes[1])
        XCTAssertEqual(bytes, bytes.sorted(by: >), "\(bytes)")
        // The newest keys are kept in halves while a chunk is read, whatever the context: what a longer one adds is small.
        let grown = try await kvBytes(.q4Channel, context: 2048) - kvBytes(.q4Channel)
        XCTAssertLessThan(grown, 0.35 * bytes[0], "\(grown) of \(bytes)")
        let grownInInt8 = try await kvBytes(.q8Channel, context: 2048) - kvBytes(.q8Channel)
        XCTAssertLessThan(grownInInt8, 0.6 * bytes[0], "\(grownInInt8) of \(bytes)")
        for type in [KVType.f16, .q8, .q8Channel, .q4] {
            let model = Pannier().model(at: Models.smol, options: ModelOptions(context: 512, kv: KVOptions(type: type)))
            let answer = try await model.chat().ask("Name the capital of France.", options: greedy(16))
            XCTAssertEqual(answer.stats.kvType, type)
            XCTAssertEqual(answer.stats.evicted, 0)
            XCTAssertEqual(answer.stats.view, .full)
            XCTAssertFalse(answer.text.isEmpty)
            if type == .q8 { XCTAssertTrue(answer.text.contains("Paris"), answer.text) }
            model.close()
        }
    }

    func testAWindowForgetsSaysSoAndKeepsTheCacheSmall() async throws {
        let long = String(repeating: "word ", count: 200)
        let kv = KVOptions(policy: .sinks(sinks: 4, recent: 32), evict: .above(slack: 16), prefixBytes: 0)
        // A prompt of several passes: the policy acts before a pass.
        let model = Pannier().model(at: Models.smol, options: ModelOptions(context: 1024, prefillChunk: 64, kv: kv))
        let events = try await all(model.chat().send(long, options: greedy(16)))
        guard case .completed(let answer) = check(events) else { return XCTFail("\(events)") }
        let told = notices(events).compactMap { if case .evicted(let eviction) = $0 { eviction } else { nil } }
        XCTAssertEqual(told.last?.kept, 36, "\(events)")
        XCTAssertGreaterThan(answer.stats.evicted, 100)
        model.close()
        let asked = KVOptions(policy: .heavyHitters(sinks: 4, recent: 32, top: 16))
        let other = Pannier().model(at: Models.smol, options: ModelOptions(context: 1024, kv: asked))
        let chat = try other.chat()
        let nothing = try await chat.evict()
        XCTAssertEqual(nothing, Eviction(gone: 0, kept: 0))
        let kept = try await chat.ask(long, options: greedy(16))
        XCTAssertEqual(kept.stats.evicted, 0)
        let eviction = try await chat.evict()
        XCTAssertEqual(eviction.kept, 52)
        XCTAssertGreaterThan(eviction.gone, 100)
        other.close()
    }

    func testWhatDoesNotGoTogetherIsAnInvalidArgument() async throws {
        let wrong = [
            KVOptions(policy: .window(recent: 0)), KVOptions(policy: .sinks(sinks: -1)), KVOptions(policy: .heavyHitters(top: 0)),
            KVOptions(policy: .pages(tokens: 96)), KVOptions(policy: .pages(), evict: .above()),
            KVOptions(policy: .window(), evict: .above(slack: -1)), KVOptions(evict: .above()), KVOptions(prefixBytes: -1),
        ]
        for kv in wrong {
            let options = ModelOptions(kv: kv)
            for error in [
                await failure({ try await Pannier.plan(Models.smol, options: options) }),
                await failure({ try await Pannier().load(Models.smol, options: options) }),
            ] {
                guard case .invalidArgument = error else { return XCTFail("\(kv): \(String(describing: error))") }
            }
        }
        let error = await failure { try Shared.model.chat(overflow: .dropOldest(reserve: -1)) }
        guard case .invalidArgument = error else { return XCTFail("\(String(describing: error))") }
    }

    func testAFileOfTwoViewsAnswersInBoth() async throws {
        let file = try nested()
        let question = "Name three colours."
        func options(_ precision: WeightPrecision?) -> GenerationOptions {
            GenerationOptions(maxTokens: 32, temperature: 0, precision: precision)
        }
        let model = Pannier().model(at: file, options: ModelOptions(context: 512))
        let low = try await model.chat().ask(question, options: options(.low))
        let full = try await model.chat().ask(question, options: options(.full))
        let usual = try await model.chat().ask(question, options: options(nil))
        XCTAssertEqual(low.stats.view, .low)
        XCTAssertEqual(full.stats.view, .full)
        XCTAssertNotEqual(low.text, full.text)
        XCTAssertEqual(usual.text, full.text)
        let events = try await all(model.chat().send(question, options: options(.auto)))
        guard case .completed(let answer) = check(events) else { return XCTFail("\(events)") }
        let chosen = notices(events).filter { if case .viewChosen = $0 { true } else { false } }
        XCTAssertEqual(chosen.first, .viewChosen(.low, because: .shortPrompt))
        guard case .viewChosen(let view, let reason) = chosen.last else { return XCTFail("\(events)") }
        XCTAssertTrue([.sure, .unsure].contains(reason), "\(chosen)")
        XCTAssertEqual(answer.stats.view, view)
        // Loaded with the low view alone, it takes less, and there is no other.
        let lowOptions = ModelOptions(context: 512, precision: .low)
        let (less, more) = (try await Pannier.plan(file, options: lowOptions), try await model.plan())
        XCTAssertLessThan(less.residentBytes, more.residentBytes)
        let only = Pannier().model(at: file, options: lowOptions)
        let alone = try await only.chat().ask(question, options: options(nil))
        XCTAssertEqual(alone.text, low.text)
        let refused = await failure { try await only.chat().ask(question, options: options(.full)) }
        guard case .unsupported = refused else { return XCTFail("\(String(describing: refused))") }
    }

    func testAFileWithoutPlanesHasNoLowView() async throws {
        let events = try await all(Shared.model.chat().send("Hi", options: GenerationOptions(precision: .low)))
        guard case .failed(.unsupported) = check(events) else { return XCTFail("\(events)") }
        let auto = GenerationOptions(maxTokens: 4, temperature: 0, precision: .auto)
        let answer = try await Shared.model.chat().ask("Hi", options: auto)
        XCTAssertEqual(answer.stats.view, .full)
        let error = await failure { try await Pannier().load(Models.smol, options: ModelOptions(precision: .low)) }
        guard case .unsupported = error else { return XCTFail("\(String(describing: error))") }
    }

    func testWhatWasReadIsSavedAndRestoredByAnotherModel() async throws {
        let folder = try temporaryFolder(self)
        let file = folder.appendingPathComponent("chat.kv")
        let options = ModelOptions(context: 512, kv: KVOptions(type: .q8))
        let first = Pannier().model(at: Models.smol, options: options)
        let chat = try first.chat()
        guard case .invalidArgument = await failure({ try await chat.saveCache(to: file) }) else {
            return XCTFail("there was nothing to save")
        }
        _ = try await chat.ask("Name the capital of France.", options: greedy(16))
        try await chat.saveCache(to: file)
        let saved = chat.save()
        let expected = text(try await all(chat.send("And of Italy?", options: greedy(16))))
        first.close()
        let again = try Pannier().model(at: Models.smol, options: options).chat()
        try again.restore(saved)
        let tokens = try await again.restoreCache(from: file)
        XCTAssertGreaterThan(tokens, 10)
        XCTAssertEqual(again.cachedTokens, tokens)
        let events = try await all(again.send("And of Italy?", options: greedy(16)))
        guard case .started(_, let cached) = events.first else { return XCTFail("\(events)") }
        XCTAssertGreaterThan(cached, tokens / 2)
        XCTAssertEqual(text(events), expected)
        // Other element types are other bits: refused, and nothing is lost.
        let halves = try Pannier().model(at: Models.smol, options: ModelOptions(context: 512)).chat()
        let refused = await failure { try await halves.restoreCache(from: file) }
        guard case .invalidArgument(let message) = refused else { return XCTFail("\(String(describing: refused))") }
        XCTAssertFalse(message.contains(folder.path))
        let absent = await failure { try await halves.restoreCache(from: folder.appendingPathComponent("absent")) }
        guard case .io = absent else { return XCTFail("\(String(describing: absent))") }
    }

    func testAChatMayDropItsOldestTurns() async throws {
        let model = Pannier().model(at: Models.smol, options: ModelOptions(context: 256))
        let chat = try model.chat(system: "Answer briefly.", overflow: .dropOldest(reserve: 32))
        var told: [Notice] = []
        for turn in 1...5 {
            let said = "Turn \(turn): " + String(repeating: "word ", count: 50)
            let events = try await all(chat.send(said, options: greedy(16)))
            guard case .completed = check(events) else { return XCTFail("\(events)") }
            told += notices(events)
        }
        XCTAssertTrue(told.contains { if case .turnsDropped(let messages) = $0 { messages >= 2 } else { false } }, "\(told)")
        XCTAssertEqual(chat.history.first?.content, "Answer briefly.")
        XCTAssertLessThan(chat.history.count, 11)
    }
}
