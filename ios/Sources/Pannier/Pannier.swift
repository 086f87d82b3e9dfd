import Foundation
internal import PannierBindings

/// All models of an app, under one memory budget. One per app is enough; it is cheap until a model is loaded.
///
/// Everything here may be called from any thread or actor. What takes time is `async` and runs on threads of the engine.
///
/// ```swift
/// let pannier = Pannier(budget: .mebibytes(512))
/// let model = pannier.model(at: file)
/// for try await event in try model.chat().send("Name three rivers in Europe.") {
///     if case .text(let text, _) = event { print(text, terminator: "") }
/// }
/// ```
public final class Pannier: Sendable {
    private let engine: Engine

    /// An engine without models.
    ///
    /// - Parameters:
    ///   - budget: what all models together may take.
    ///   - idleUnload: models that were not used for so many seconds are unloaded; the next use loads them again.
    ///   - stateFolder: a private folder of the app, where it is noted which model was being loaded when the app died. `nil` turns that
    ///     guard off.
    public init(budget: MemoryBudget = .unlimited, idleUnload: TimeInterval? = nil, stateFolder: URL? = nil) {
        engine = Engine(
            config: EngineConfig(
                budgetBytes: budget.bytes.map { UInt64($0) },
                idleUnloadMs: idleUnload.map { max($0, 0.001).milliseconds },
                guardDir: stateFolder?.path
            ))
    }

    /// The version of the engine.
    public static var version: String { engineVersion() }

    /// What loading this model would take under `budget`. Reads the directory of the file, no weights.
    ///
    /// - Throws: ``PannierError``. A budget that is too small is no error: ``MemoryPlan/fits`` is false then.
    public static func plan(
        _ file: URL, budget: MemoryBudget = .unlimited, options: ModelOptions = ModelOptions()
    ) async throws -> MemoryPlan {
        try await Pannier(budget: budget).plan(file, options: options)
    }

    /// What loading this model would take under `budget`, or under that of this engine.
    ///
    /// - Throws: ``PannierError``.
    public func plan(_ file: URL, options: ModelOptions = ModelOptions(), budget: MemoryBudget? = nil) async throws -> MemoryPlan {
        let config = try options.toFFI(file: file)
        return try await rethrowing {
            try await MemoryPlan(engine.plan(config: config, budgetBytes: budget?.bytes.map { UInt64($0) }))
        }
    }

    /// A model of this engine. Nothing is read; it is loaded when it is first used. The file need not be there yet.
    ///
    /// Options out of their range are reported by the first use.
    public func model(at file: URL, options: ModelOptions = ModelOptions()) -> Model {
        let config: ModelConfig
        var fault: PannierError?
        do {
            config = try options.toFFI(file: file)
        } catch {
            config = ModelConfig(path: file.path, context: nil, threads: nil, prefillChunk: nil)
            fault = error
        }
        return Model(engine.open(config: config), file: file, fault: fault)
    }

    /// ``model(at:options:)``, loaded: `onProgress` hears from 0 to 1, on a thread of the engine.
    ///
    /// - Throws: ``PannierError``; ``PannierError/outOfBudget(_:plan:)`` carries the plan.
    public func load(
        _ file: URL, options: ModelOptions = ModelOptions(), onProgress: @escaping @Sendable (Float) -> Void = { _ in }
    ) async throws -> Model {
        let model = model(at: file, options: options)
        do {
            try await model.load(onProgress: onProgress)
        } catch {
            model.close()
            throw error
        }
        return model
    }

    /// Changes the budget, and unloads idle models until what is used fits.
    public func setBudget(_ budget: MemoryBudget) {
        engine.setBudget(bytes: budget.bytes.map { UInt64($0) })
    }

    /// Memory now.
    public func memory() -> MemoryUse { MemoryUse(engine.memory()) }

    /// Gives memory back to the system. Running generations go on, with smaller caches. On iOS, `PannierDevice` calls this.
    public func onMemoryPressure(_ pressure: MemoryPressure) {
        engine.onPressure(level: pressure.toFFI)
    }

    /// The device is so hot, which holds until this is called again. From ``Heat/serious`` on fewer threads compute, and nothing is read
    /// ahead of need; running generations tell it in ``Notice/heatChanged(_:threads:)``. On iOS, `PannierDevice` calls this.
    public func onHeat(_ heat: Heat) {
        engine.onThermal(level: heat.toFFI)
    }

    /// For the way to the background: writes the checkpoints of conversations, then unloads models until at most `keepBytes` are used.
    /// Generations of models that have to go are cancelled.
    ///
    /// - Throws: ``PannierError/io(_:)`` if a checkpoint could not be written; the models are unloaded all the same.
    public func enterBackground(keepBytes: Int64 = 0) async throws {
        try await rethrowing { try await engine.suspend(keepBytes: UInt64(max(keepBytes, 0))) }
    }

    /// For the way back: loads what ``enterBackground(keepBytes:)`` unloaded. A model that is used before loads by itself.
    ///
    /// - Throws: ``PannierError``.
    public func enterForeground() async throws {
        try await rethrowing { try await engine.resume() }
    }

    /// Closes all models. Idempotent, never waits for a generation.
    public func close() { engine.shutdown() }
}
