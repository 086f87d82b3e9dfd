import Foundation

/// What went wrong. Messages are one line for a developer; they hold no text of a conversation and no path of the user's, so they can
/// be logged.
public enum PannierError: Error, Sendable, Hashable {
    /// There is no such model, file, or known name.
    case notFound(String)
    /// The file is damaged, or not a model.
    case invalidModel(String)
    /// A model, a template or an option that the engine cannot do.
    case unsupported(String)
    /// An argument out of its range.
    case invalidArgument(String)
    /// The memory budget does not hold this. The plan says what the model needs and what would fit; `nil` when a running generation hit
    /// the budget.
    case outOfBudget(String, plan: MemoryPlan?)
    /// The conversation is longer than the context. Nothing was cut off and nothing was computed.
    case contextOverflow(String, tokens: Int, limit: Int)
    /// The chat template of the model does not take this conversation.
    case template(String)
    /// Cancelled, by the app, or because the model or the session was closed or unloaded meanwhile.
    case cancelled(String)
    /// Something else is running that excludes this: a session does one thing at a time.
    case busy(String)
    /// The model or session was closed before the call.
    case closed(String)
    /// The app died repeatedly while it loaded this model. Ask the user before ``Model/load(force:onProgress:)`` with `force`.
    case crashLoop(String, deaths: Int)
    /// The system refused a file operation, or the disk is full.
    case io(String)
    /// The network, or the server. What has arrived of a download is kept.
    case network(String)
    /// A bug of the engine. The process and the user's data live on.
    case `internal`(String)

    /// One line for a developer.
    public var message: String {
        switch self {
        case .notFound(let m), .invalidModel(let m), .unsupported(let m), .invalidArgument(let m), .outOfBudget(let m, _),
            .contextOverflow(let m, _, _), .template(let m), .cancelled(let m), .busy(let m), .closed(let m), .crashLoop(let m, _),
            .io(let m), .network(let m), .internal(let m):
            m
        }
    }
}

extension PannierError: LocalizedError {
    /// The same as ``message``.
    public var errorDescription: String? { message }
}
