import Foundation
import XCTest

@testable import Pannier

/// What is refused, and how.
final class ErrorTests: XCTestCase {
    func testFilesThatAreNoModelsAreTypedErrorsWithoutAPath() async throws {
        let folder = try temporaryFolder(self)
        let whole = try Data(contentsOf: Models.smol, options: .alwaysMapped).prefix(4 << 20)
        let cases: [(String, Data?)] = [
            ("absent.gguf", nil), ("empty.gguf", Data()), ("text.gguf", Data("This is no model.".utf8)), ("cut.gguf", Data(whole)),
            ("header.gguf", Data(whole.prefix(20))),
        ]
        for (name, bytes) in cases {
            let file = folder.appendingPathComponent(name)
            try bytes?.write(to: file)
            let error = await failure { try await Pannier().load(file) }
            switch error {
            case .notFound(let message) where bytes == nil: XCTAssertFalse(message.contains(folder.path))
            case .invalidModel(let message) where bytes != nil: XCTAssertFalse(message.contains(folder.path))
            default: XCTFail("\(name): \(String(describing: error))")
            }
        }
        guard case .notFound = await failure({ try await Pannier().load(folder) }) else { return XCTFail("a folder was loaded") }
    }

    func testABudgetThatIsTooSmallIsRefusedWithThePlan() async throws {
        let budget = MemoryBudget.mebibytes(8)
        let error = await failure { try await Pannier(budget: budget).load(Models.smol) }
        guard case .outOfBudget(_, let plan?) = error else { return XCTFail("\(String(describing: error))") }
        XCTAssertFalse(plan.fits)
        XCTAssertEqual(plan.budgetBytes, budget.bytes)
        XCTAssertGreaterThan(plan.peakBytes, budget.bytes ?? 0)
        XCTAssertFalse(plan.notes.isEmpty)
        let told = try await Pannier.plan(Models.smol, budget: budget)
        XCTAssertEqual(told.notes, plan.notes, "what is told before loading is what loading finds")
    }

    func testAPlanIsMadeWithoutLoadingAndWhatItAllowsCanBeLoaded() async throws {
        let options = ModelOptions(context: 512)
        let plan = try await Pannier.plan(Models.smol, options: options)
        XCTAssertTrue(plan.fits)
        XCTAssertEqual(plan.context, 512)
        XCTAssertGreaterThan(plan.residentBytes, 90_000_000)
        // Mapped weights count as well: a budget without room for them means streaming.
        let budget = MemoryBudget.bytes(plan.peakBytes + plan.residentBytes + (16 << 20))
        let pannier = Pannier(budget: budget)
        let fits = try await pannier.plan(Models.smol, options: options).fits
        XCTAssertTrue(fits)
        let model = try await pannier.load(Models.smol, options: options)
        _ = try await model.chat().ask("Name a colour.", options: greedy(8))
        XCTAssertLessThanOrEqual(pannier.memory().peak, budget.bytes ?? 0)
        XCTAssertGreaterThan(pannier.memory().used, 0)
    }

    func testAModelWithoutAChatTemplateSaysSoAndNoPromptIsTold() async throws {
        let base = Pannier().model(at: Models.gemma, options: ModelOptions(context: 256))
        let events = try await all(base.chat().send("a secret of mine", options: greedy(2)))
        guard case .failed(.template(let message)) = check(events) else { return XCTFail("\(events)") }
        XCTAssertFalse(message.contains("secret"))
    }

    func testWhatIsNoConversationIsRefusedWithoutQuotingIt() async throws {
        let chat = try Shared.model.chat()
        let errors = [
            await failure { try chat.restore("{\"secret\": 1}") },
            await failure { try Shared.model.chat(toolsJSON: "secret") },
            await failure { try chat.setHistory([ChatMessage(.user, "x", fieldsJSON: "[\"secret\"]")]) },
            await failure { try await Pannier().model(at: Models.smol, options: ModelOptions(context: -3)).load() },
        ]
        for error in errors {
            guard case .invalidArgument(let message) = error else { return XCTFail("\(String(describing: error))") }
            XCTAssertFalse(message.contains("secret"))
            XCTAssertEqual(error?.localizedDescription, message)
        }
    }
}
