/// Where guessed tokens come from. Several are checked in one pass, which is faster where they are right often enough; whether they are is
/// measured, and guesses that do not pay are not made. The answer does not depend on it, not by a bit.
public enum Speculation: Sendable, Hashable {
    /// Nowhere: one token per pass.
    case off
    /// From earlier text and from the draft model, whatever there is and pays at the moment.
    case auto
    /// From earlier text that ended in the same tokens. It takes next to no memory, and pays where an answer quotes, edits or repeats.
    case ngram
    /// From the draft model that the model was loaded with.
    case draft
}

/// What guessing tokens is expected to bring on a middling phone, if 70% of the guesses are right: as in texts that quote, edit or follow a
/// pattern. In free prose n-grams are seldom found, and cost nothing then.
public struct SpeculationForecast: Sendable, Hashable {
    /// Tokens to guess for a pass; 0 if guessing does not pay.
    public let draftLength: Int
    /// Tokens that a pass gives.
    public let tokensPerPass: Double
    /// Speed of an answer.
    public let decodeTokensPerSecond: Double
    /// How many times as fast as one token per pass.
    public let gain: Double
}
