//! Vector operations: norms, gates, softmax.

/// One function pointer per vector operation; each instruction set fills one table.
pub(crate) struct VecTable {}
