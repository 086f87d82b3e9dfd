//! Vocabularies, encoding, streaming decoding and chat templates.
