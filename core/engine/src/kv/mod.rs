//! To come with the forward pass.
