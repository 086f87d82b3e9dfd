//! GGUF files: untrusted bytes to metadata and a tensor directory, and back.
