//! `uniffi-bindgen-swift …`; called by `cargo xtask`.

fn main() {
    uniffi::uniffi_bindgen_swift();
}
