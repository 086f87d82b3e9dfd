//! How long work reports where it is, and how it is stopped.

/// Receives progress, and is asked whether to go on. Called from worker threads.
pub trait Progress: Sync {
    /// `done` of `total` output bytes are complete; `tensor` is one that was just worked on.
    fn step(&self, done: u64, total: u64, tensor: &str) {
        let _ = (done, total, tensor);
    }

    /// Whether to stop. Looked at before each piece of about 260 000 weights.
    fn cancelled(&self) -> bool {
        false
    }
}

/// Nobody watches, nobody stops it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {}
