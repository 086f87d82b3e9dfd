import Foundation
internal import PannierBindings

// What the engine calls during a hybrid turn, on its own threads.

/// Passes the events of a turn on.
final class HybridRelay: HybridSink, @unchecked Sendable {
    private let events: AsyncThrowingStream<HybridEvent, any Error>.Continuation
    private let lock = NSLock()
    private var told = false

    init(_ events: AsyncThrowingStream<HybridEvent, any Error>.Continuation) { self.events = events }

    /// Whether the terminal event was told.
    var ended: Bool { lock.withLock { told } }

    func onUpdate(update: HybridUpdate) {
        let event = HybridEvent(update)
        if event.isTerminal { lock.withLock { told = true } }
        events.yield(event)
    }
}

final class ProbeRelay: DeviceProbe {
    private let ask: @Sendable () -> DeviceCondition

    init(ask: @escaping @Sendable () -> DeviceCondition) { self.ask = ask }

    func condition() -> PannierBindings.DeviceCondition { ask().toFFI }
}

final class RuleRelay: AdmissionRule {
    private let ask: @Sendable (AdmissionFacts) -> AnswerRoute?

    init(ask: @escaping @Sendable (AdmissionFacts) -> AnswerRoute?) { self.ask = ask }

    func route(facts: PannierBindings.AdmissionFacts) -> PannierBindings.AnswerRoute? { ask(AdmissionFacts(facts))?.toFFI }
}

final class ConsentRelay: CloudConsent {
    private let ask: @Sendable (CloudPayload) -> Bool

    init(ask: @escaping @Sendable (CloudPayload) -> Bool) { self.ask = ask }

    func allows(payload: PannierBindings.CloudPayload) -> Bool { ask(CloudPayload(payload)) }
}

final class RedactorRelay: CloudRedactor {
    private let redact: @Sendable ([ChatMessage]) -> [ChatMessage]?

    init(redact: @escaping @Sendable ([ChatMessage]) -> [ChatMessage]?) { self.redact = redact }

    func redact(messages: [Message]) -> [Message]? { redact(messages.map(ChatMessage.init))?.map(\.toFFI) }
}

/// Runs the streams of an app's transport.
final class TransportRelay: PannierBindings.CloudTransport, @unchecked Sendable {
    private let transport: any CloudTransport
    private let lock = NSLock()
    private var calls: [UInt64: Task<Void, Never>] = [:]

    init(_ transport: any CloudTransport) { self.transport = transport }

    func name() -> String { transport.name }

    func prepare(prompt: PannierBindings.CloudPrompt) throws -> PannierBindings.CloudPayload {
        do { return try transport.prepare(CloudPrompt(prompt)).toFFI } catch { throw fault(error) }
    }

    func send(call: UInt64, payload: PannierBindings.CloudPayload, reply: CloudReply) throws {
        let payload = CloudPayload(payload)
        // The lock is held until the task is known, so that it cannot end unknown and an early cancel finds it.
        lock.withLock {
            calls[call] = Task {
                do {
                    for try await piece in transport.send(payload) {
                        guard reply.text(text: piece) else { break }
                    }
                    if Task.isCancelled {
                        reply.failed(fault: .Other(reason: "cancelled"))
                    } else {
                        reply.done(finish: .stop, usage: nil)
                    }
                } catch {
                    reply.failed(fault: fault(error))
                }
                lock.withLock { _ = calls.removeValue(forKey: call) }
            }
        }
    }

    func cancel(call: UInt64) { lock.withLock { calls[call] }?.cancel() }

    /// Words of what the app did not declare may hold anything, so they stay out.
    private func fault(_ error: any Error) -> CloudFault {
        guard let failure = error as? CloudFailure else { return .Other(reason: "the app's transport failed") }
        guard let status = failure.status else { return .Unreachable(reason: failure.reason) }
        return .Refused(
            status: UInt16(clamping: status), reason: failure.reason, retryAfterMs: failure.retryAfter?.milliseconds)
    }
}
