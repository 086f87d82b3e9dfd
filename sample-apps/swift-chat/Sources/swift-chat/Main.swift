import Foundation
import Pannier

/// `swift-chat [FOLDER] [MODEL] [TEMPERATURE]`: fetches a model into the folder and talks in the terminal. An empty line ends it. Temperature 0
/// always takes the most likely token, so that an answer is the same every time; without it the engine's default holds.
@main
struct Main {
    static func main() async {
        let arguments = CommandLine.arguments.dropFirst()
        let folder = arguments.first ?? NSHomeDirectory() + "/.cache/pannier/models"
        let name = arguments.dropFirst().first ?? "smollm2-135m-instruct"
        let temperature = arguments.dropFirst(2).first
        let options = GenerationOptions(maxTokens: 256, temperature: temperature.flatMap(Float.init))
        if let temperature, options.temperature == nil {
            complain("\(temperature) is no temperature\nusage: swift-chat [FOLDER] [MODEL] [TEMPERATURE]\n")
            exit(2)
        }
        do {
            try await talk(store: ModelStore(folder: URL(fileURLWithPath: folder)), name: name, options: options)
        } catch {
            complain("\(error.localizedDescription)\n")
            exit(1)
        }
    }

    static func talk(store: ModelStore, name: String, options: GenerationOptions) async throws {
        for try await event in store.download(name) {
            if case .progress(let done, let total, _, _) = event {
                complain("\r\(done / 1_000_000) of \((total ?? 0) / 1_000_000) MB ")
            }
        }
        guard let file = try store.find(name) else { throw PannierError.notFound("\(name) is not here") }
        let model = Pannier(budget: .mebibytes(1024)).model(at: file, options: ModelOptions(context: 2048))
        let plan = try await model.plan()
        complain("needs \(plan.peakBytes >> 20) MB of memory for \(plan.context) tokens\n")
        let chat = try model.chat(system: "Answer briefly.")
        while true {
            complain("> ")
            guard let line = readLine(), !line.isEmpty else { return }
            for try await event in chat.send(line, options: options) {
                switch event {
                case .text(let text, _):
                    FileHandle.standardOutput.write(Data(text.utf8))
                case .failed(let error):
                    complain("\(error.message)\n")
                case .completed(let answer):
                    complain(String(format: "\n[%.1f tokens/s]\n", answer.stats.decodeTokensPerSecond))
                default:
                    break
                }
            }
            print()
        }
    }

    /// What is no part of the conversation goes to standard error.
    static func complain(_ text: String) { FileHandle.standardError.write(Data(text.utf8)) }
}
