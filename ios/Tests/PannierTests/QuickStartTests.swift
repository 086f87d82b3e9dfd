import Foundation
import Pannier
import XCTest

// The READMEs show what is between the two marks.
// quick start
func quickStart(in folder: URL, show: (String) -> Void) async throws {
    let store = ModelStore(folder: folder)
    for try await event in store.download("smollm2-135m-instruct") { print(event) }
    guard let file = try store.find("smollm2-135m-instruct") else { return }
    let pannier = Pannier(budget: .mebibytes(512))
    let model = pannier.model(at: file, options: ModelOptions(context: 2048))
    guard try await model.plan().fits else { return }
    let chat = try model.chat(system: "Answer briefly.")
    for try await event in chat.send("Name three rivers in Europe.", options: GenerationOptions(maxTokens: 64)) {
        if case .text(let text, _) = event { show(text) }
    }
}
// end

/// The READMEs' example is this file's, and it works. That they show it is checked by `cargo xtask tidy`.
final class QuickStartTests: XCTestCase {
    func testTheQuickStartAnswers() async throws {
        let said = Box("")
        try await quickStart(in: Models.folder) { piece in said.change { $0 += piece } }
        XCTAssertFalse(said.now.isEmpty)
    }
}
