//! Large language models on a phone, inside a memory budget planned before loading.
