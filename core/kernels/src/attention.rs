//! Attention over KV pages.
