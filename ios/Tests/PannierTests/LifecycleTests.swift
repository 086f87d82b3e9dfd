import Foundation
import XCTest

@testable import Pannier

/// Loading, unloading, background and foreground.
final class LifecycleTests: XCTestCase {
    private let small = ModelOptions(context: 512)

    func testAnUnloadInBetweenChangesNoAnswer() async throws {
        let pannier = Pannier()
        let (kept, moved) = (pannier.model(at: Models.smol, options: small), pannier.model(at: Models.smol, options: small))
        XCTAssertEqual(kept.state, .downloaded)
        let (a, b) = (try kept.chat(), try moved.chat())
        for question in ["Name a colour.", "Another one?", "And a third?"] {
            let (one, two) = (try await a.ask(question, options: greedy(12)), try await b.ask(question, options: greedy(12)))
            XCTAssertEqual(one.text, two.text)
            moved.unload()
            XCTAssertEqual(moved.state, .unloaded)
        }
        XCTAssertEqual(a.history, b.history)
        XCTAssertEqual(kept.state, .ready)
    }

    func testStatesAreToldWhileAModelLoadsAndAnswers() async throws {
        let model = Pannier().model(at: Models.smol, options: small)
        let progress = Box<[Float]>([])
        let seen = Task { () -> [ModelState] in
            var seen: [ModelState] = []
            for await state in model.stateUpdates() { seen.append(state) }
            return seen
        }
        // The reader is there from the start.
        try await pause(20)
        try await model.load { fraction in progress.change { $0.append(fraction) } }
        XCTAssertEqual(progress.now, progress.now.sorted())
        XCTAssertEqual(progress.now.last, 1)
        XCTAssertEqual(model.state, .ready)
        XCTAssertEqual(model.info?.architecture, "llama")
        XCTAssertEqual(model.info?.context, 512)
        check(try await all(model.chat().send("Count to ten.", options: greedy(12))))
        model.close()
        let states = await seen.value
        XCTAssertEqual(states.first, .downloaded)
        XCTAssertTrue(states.contains { if case .loading = $0 { true } else { false } }, "\(states)")
        XCTAssertTrue(states.contains(.generating), "\(states)")
        XCTAssertEqual(states.last, .unloaded)
        for await state in model.stateUpdates() { XCTAssertEqual(state, .unloaded, "a closed model tells its state and ends") }
    }

    func testTheBackgroundFreesAndTheForegroundRestores() async throws {
        let saved = try temporaryFolder(self).appendingPathComponent("chat.json")
        let pannier = Pannier()
        let model = try await pannier.load(Models.smol, options: small)
        let chat = try model.chat(system: "Be brief.", checkpoint: saved)
        _ = try await chat.ask("Name a colour.", options: greedy(12))
        try await pannier.enterBackground()
        XCTAssertEqual(model.state, .suspended)
        XCTAssertEqual(pannier.memory().used, 0)
        let copy = try model.chat()
        try copy.restore(String(contentsOf: saved, encoding: .utf8))
        XCTAssertEqual(copy.history, chat.history)
        try await pannier.enterForeground()
        XCTAssertEqual(model.state, .ready)
        _ = try await chat.ask("Another one?", options: greedy(12))
        XCTAssertEqual(chat.history.count, 5)
    }

    func testPressureAndIdleTimeUnloadAndTheNextUseLoadsAgain() async throws {
        let pannier = Pannier(idleUnload: 0.3)
        let model = try await pannier.load(Models.smol, options: small)
        try await eventually { model.state == .unloaded }
        let chat = try model.chat()
        _ = try await chat.ask("Hi", options: greedy(1))
        pannier.onMemoryPressure(.critical)
        XCTAssertEqual(model.state, .unloaded)
        _ = try await chat.ask("Hi", options: greedy(1))
        XCTAssertEqual(chat.history.count, 4)
    }

    func testTwoModelsShareABudgetTheOlderOneMakesRoom() async throws {
        // Less than the file: each model pins what fits and streams the rest, so that two never fit together.
        let budget = MemoryBudget.mebibytes(80)
        let need = try await Pannier.plan(Models.smol, budget: budget, options: small)
        XCTAssertTrue(need.fits && 2 * need.peakBytes > budget.bytes ?? 0, "\(need)")
        let pannier = Pannier(budget: budget)
        let (a, b) = (pannier.model(at: Models.smol, options: small), pannier.model(at: Models.smol, options: small))
        let (chatA, chatB) = (try a.chat(), try b.chat())
        for _ in 0..<2 {
            _ = try await chatA.ask("Name a colour.", options: greedy(12))
            _ = try await chatB.ask("Name a colour.", options: greedy(12))
        }
        XCTAssertEqual(chatA.history, chatB.history)
        XCTAssertLessThanOrEqual(pannier.memory().peak, budget.bytes ?? 0)
    }

    func testAModelThatKilledTheAppTwiceIsNotLoadedByItself() async throws {
        let folder = try temporaryFolder(self)
        // Marks as two processes that died would leave them; the format is the engine's own.
        func die() async throws {
            let pannier = Pannier(stateFolder: folder)
            let model = pannier.model(at: Models.smol, options: small)
            let stolen = Box<[String: Data]>([:])
            try await model.load { _ in
                for file in (try? FileManager.default.contentsOfDirectory(at: folder, includingPropertiesForKeys: nil)) ?? [] {
                    if let mark = try? Data(contentsOf: file) { stolen.change { $0[file.lastPathComponent] = mark } }
                }
            }
            model.close()
            XCTAssertFalse(stolen.now.isEmpty, "a load leaves no mark while it runs")
            for (name, mark) in stolen.now {
                let words = String(decoding: mark, as: UTF8.self).split(separator: " ")
                // Another process' number.
                try "1 \(words.last ?? "0")".write(to: folder.appendingPathComponent(name), atomically: true, encoding: .utf8)
            }
        }
        try await die()
        try await die()
        let model = Pannier(stateFolder: folder).model(at: Models.smol, options: small)
        let error = await failure { try await model.load() }
        guard case .crashLoop(_, deaths: 2) = error else { return XCTFail("\(String(describing: error))") }
        try await model.load(force: true)
        XCTAssertEqual(model.state, .ready)
    }
}
