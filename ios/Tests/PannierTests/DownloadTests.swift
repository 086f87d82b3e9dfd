import Foundation
import XCTest

@testable import Pannier

/// Downloads from a server on this machine; what servers do wrong in detail is tested in the engine.
final class DownloadTests: XCTestCase {
    /// 3 MiB that no compression or sparse file could stand for.
    private static let body: Data = {
        var random = Fixed(state: 5)
        var body = Data(capacity: 3 << 20)
        for _ in 0..<(3 << 20) / 8 { withUnsafeBytes(of: random.next().littleEndian) { body.append(contentsOf: $0) } }
        body.replaceSubrange(0..<4, with: Data("GGUF".utf8))
        return body
    }()
    private static let sha256 = "06eecb31491e940d6b9a40d75f854320eb89678b67bd7394a83f62e0955d1ed3"

    private var folder = URL(fileURLWithPath: "/")
    private var server: Server?
    private var store: ModelStore { ModelStore(folder: folder) }

    override func setUp() async throws {
        folder = try temporaryFolder(self)
        let cuts = Box(0)
        server = try Server { path in
            switch path {
            case "whole.gguf": return Server.Reply(body: Self.body)
            case "cut.gguf":
                cuts.change { $0 += 1 }
                return Server.Reply(body: Self.body, cutAfter: cuts.now < 4 ? 700_000 : nil)
            case "wrong.gguf":
                var wrong = Self.body
                wrong[100] &+= 1
                return Server.Reply(body: wrong)
            case "slow.gguf": return Server.Reply(body: Self.body, pause: 20_000)
            default: return nil
            }
        }
    }

    override func tearDown() async throws { server?.stop() }

    private func url(_ path: String) throws -> URL { try XCTUnwrap(server).url(path) }

    private func fetch(_ path: String, file: String? = nil, follower: Model? = nil) throws -> AsyncThrowingStream<DownloadEvent, any Error> {
        store.download(from: [try url(path)], file: file, sha256: Self.sha256, follower: follower)
    }

    func testADownloadArrivesWholeWithProgressAndIsNotRepeated() async throws {
        let events = try await all(fetch("whole.gguf"))
        guard case .started = events.first, case .completed(let file, let bytes) = events.last else { return XCTFail("\(events)") }
        XCTAssertEqual(try Data(contentsOf: file), Self.body)
        XCTAssertEqual(bytes, Int64(Self.body.count))
        XCTAssertTrue(events.contains { if case .progress = $0 { true } else { false } })
        XCTAssertEqual(try store.list().map(\.file.lastPathComponent), ["whole.gguf"])
        XCTAssertEqual(try store.diskUse(), Int64(Self.body.count))
        let again = try await all(fetch("whole.gguf"))
        XCTAssertFalse(again.contains { if case .started = $0 { true } else { false } })
        XCTAssertTrue(try store.delete("whole.gguf"))
        XCTAssertFalse(try store.delete("whole.gguf"))
        XCTAssertTrue(try store.list().isEmpty)
    }

    func testCutConnectionsAreResumed() async throws {
        let events = try await all(fetch("cut.gguf"))
        guard case .completed(let file, _) = events.last else { return XCTFail("\(events)") }
        XCTAssertEqual(try Data(contentsOf: file), Self.body)
        XCTAssertTrue(events.contains { if case .started(let from, _) = $0 { from > 0 } else { false } }, "\(events)")
    }

    func testWrongBytesNeverGetTheFinalNameAndTheNextMirrorIsTried() async throws {
        let error = await failure { try await all(self.fetch("wrong.gguf", file: "m.gguf")) }
        guard case .invalidModel = error else { return XCTFail("\(String(describing: error))") }
        let file = folder.appendingPathComponent("m.gguf")
        XCTAssertFalse(FileManager.default.fileExists(atPath: file.path))
        let mirrors = [try url("absent.gguf"), try url("wrong.gguf"), try url("whole.gguf")]
        let events = try await all(store.download(from: mirrors, file: "m.gguf", sha256: Self.sha256))
        XCTAssertTrue(events.contains { if case .sourceFailed = $0 { true } else { false } })
        XCTAssertEqual(try Data(contentsOf: file), Self.body)
    }

    func testCancellingKeepsTheBytesAndAModelsStateFollows() async throws {
        let model = Pannier().model(at: folder.appendingPathComponent("slow.gguf"))
        XCTAssertEqual(model.state, .notDownloaded)
        for try await event in try fetch("slow.gguf", follower: model) {
            if case .progress(let done, _, _, _) = event, done > 200_000 { break }
        }
        try await eventually { model.state == .notDownloaded }
        XCTAssertFalse(FileManager.default.fileExists(atPath: model.file.path))
        XCTAssertGreaterThan(try store.diskUse(), 200_000)
        let rest = try await all(fetch("slow.gguf", follower: model))
        guard case .started(let from, _) = rest.first else { return XCTFail("\(rest)") }
        XCTAssertGreaterThan(from, 200_000)
        XCTAssertEqual(try Data(contentsOf: model.file), Self.body)
        XCTAssertEqual(model.state, .downloaded)
    }

    func testWhatCannotBeDownloadedIsATypedErrorWithoutTheAddress() async throws {
        let cases: [(String, String?)] = [
            ("ftp://example.org/token-4711", nil), ("http://example.org/token-4711", nil),
            ("https://example.org/token-4711", "../token-4711.gguf"),
        ]
        for (address, file) in cases {
            let url = try XCTUnwrap(URL(string: address))
            let error = await failure { try await all(self.store.download(from: [url], file: file)) }
            guard case .invalidArgument(let message) = error else { return XCTFail("\(String(describing: error))") }
            XCTAssertFalse(message.contains("4711"))
        }
        guard case .notFound = await failure({ try await all(self.store.download("no such model")) }) else {
            return XCTFail("an unknown model was downloaded")
        }
        guard case .network = await failure({ try await all(self.fetch("absent.gguf")) }) else {
            return XCTFail("nothing was downloaded from nowhere")
        }
    }

    func testKnownModelsAreListedAndVerified() async throws {
        XCTAssertTrue(store.known.contains { $0.name == "smollm2-135m-instruct" && $0.instruct })
        XCTAssertNil(try store.find("smollm2-135m-instruct"))
        let real = ModelStore(folder: Models.folder)
        XCTAssertEqual(try real.find("smollm2-135m-instruct")?.lastPathComponent, Models.smol.lastPathComponent)
        let verified = try await real.verify("smollm2-135m-instruct")
        XCTAssertTrue(verified)
    }
}
