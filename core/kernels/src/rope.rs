//! Rotary position embedding.
