import Foundation
internal import PannierBindings

/// A folder of model files. A file has its final name only when it is whole and verified.
public final class ModelStore: Sendable {
    /// The folder; it is created when something is downloaded. Apps pass a private one that is not backed up.
    public let folder: URL
    private let ffi: Store

    /// The store in this folder.
    public init(folder: URL) {
        self.folder = folder
        ffi = Store(dir: folder.path)
    }

    /// The models that are known by name, smallest first.
    public var known: [KnownModel] { ffi.known().map(KnownModel.init) }

    /// The model files in the folder.
    ///
    /// - Throws: ``PannierError/io(_:)``.
    public func list() throws -> [StoredModel] {
        try rethrowingNow { try ffi.list().map(StoredModel.init) }
    }

    /// The file of a known model; `nil` if it is not here, or not whole.
    ///
    /// - Throws: ``PannierError/io(_:)``.
    public func find(_ name: String) throws -> URL? {
        do {
            return try rethrowingNow { try URL(fileURLWithPath: ffi.locate(name: name)) }
        } catch PannierError.notFound, PannierError.invalidModel {
            return nil
        }
    }

    /// Bytes that the folder takes, unfinished downloads included.
    ///
    /// - Throws: ``PannierError/io(_:)``.
    public func diskUse() throws -> Int64 { try rethrowingNow { try Int64(ffi.diskUse()) } }

    /// Deletes a model's file, finished or not; answers whether something was there. A model that is loaded from it goes on.
    ///
    /// - Throws: ``PannierError``.
    @discardableResult
    public func delete(_ name: String) throws -> Bool { try rethrowingNow { try ffi.delete(name: name) } }

    /// Reads the file of a known model again; answers whether it is what it should be.
    ///
    /// - Throws: ``PannierError``.
    public func verify(_ name: String) async throws -> Bool { try await rethrowing { try await ffi.verify(name: name) } }

    /// Downloads a known model, resuming what was begun before. Ends with ``DownloadEvent/completed(file:bytes:)``, or throws. Cancelling
    /// the reading task, leaving its loop, or dropping the stream stops the download; the bytes are kept.
    ///
    /// - Parameter follower: a model whose ``Model/state`` is to follow.
    public func download(_ name: String, follower: Model? = nil) -> AsyncThrowingStream<DownloadEvent, any Error> {
        download(name, urls: [], bytes: nil, sha256: nil, follower: follower)
    }

    /// Downloads from addresses that hold the same bytes, best first. See ``download(_:follower:)``.
    ///
    /// - Parameters:
    ///   - file: name of the file in the folder, ending in `.gguf`; `nil`: as in the first address.
    ///   - bytes: exact size, where known.
    ///   - sha256: digest, where known. Without it, plain HTTP is refused.
    ///   - follower: a model whose ``Model/state`` is to follow.
    public func download(
        from urls: [URL], file: String? = nil, bytes: Int64? = nil, sha256: String? = nil, follower: Model? = nil
    ) -> AsyncThrowingStream<DownloadEvent, any Error> {
        precondition(!urls.isEmpty, "no address was given")
        return download(file ?? "", urls: urls.map(\.absoluteString), bytes: bytes, sha256: sha256, follower: follower)
    }

    private func download(
        _ name: String, urls: [String], bytes: Int64?, sha256: String?, follower: Model?
    ) -> AsyncThrowingStream<DownloadEvent, any Error> {
        let (stream, events) = AsyncThrowingStream<DownloadEvent, any Error>.makeStream(bufferingPolicy: .unbounded)
        let cancel = CancelHandle()
        events.onTermination = { _ in cancel.cancel() }
        Task {
            do {
                let done = try await self.ffi.download(
                    name: name, urls: urls, bytes: bytes.map { UInt64(max($0, 0)) }, sha256: sha256, model: follower?.ffi,
                    sink: DownloadRelay(events), cancel: cancel)
                events.yield(.completed(file: URL(fileURLWithPath: done.path), bytes: Int64(done.bytes)))
                events.finish()
            } catch {
                events.finish(throwing: publicError(error))
            }
        }
        return stream
    }
}

/// A model that is known by name.
public struct KnownModel: Sendable, Hashable {
    /// The name.
    public let name: String
    /// What it is, in one line.
    public let about: String
    /// Its licence.
    public let licence: String
    /// Name of its file in the store.
    public let file: String
    /// Size of the file.
    public let bytes: Int64
    /// SHA-256 of the file.
    public let sha256: String
    /// Whether it was tuned to chat.
    public let instruct: Bool
}

/// A model file.
public struct StoredModel: Sendable, Hashable {
    /// The file.
    public let file: URL
    /// Its size.
    public let bytes: Int64
    /// The name, if it is a known model.
    public let name: String?
}
