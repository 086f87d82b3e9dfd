/// Which view of a file in nested precision answers (`pannier quantize --nested`). Other files have the full view only.
public enum WeightPrecision: Sendable, Hashable {
    /// The low plane: 3.5 bits per weight, for speed and for small memory. Answers differ from those of the full view.
    case low
    /// Both planes.
    case full
    /// Decided for each request, by the length of its prompt and by how sure the low view is of the first words of its answer; told in
    /// ``Notice/viewChosen(_:because:)``. Loading takes the memory of the full view.
    case auto
}

/// Which view of the weights was used.
public enum WeightView: Sendable, Hashable {
    /// The low plane of a file in nested precision.
    case low
    /// All there is.
    case full
}

/// Why a view was chosen.
public enum ViewReason: Sendable, Hashable {
    /// The prompt is short: the low view begins.
    case shortPrompt
    /// The prompt is long: the full view reads it.
    case longPrompt
    /// The low view was sure of its first words, and goes on.
    case sure
    /// The low view was unsure of its first words: the full view goes on.
    case unsure
    /// There is no other view.
    case onlyOne
    /// Something that this version has no word for.
    case other
}
