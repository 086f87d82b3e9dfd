//! `uniffi-bindgen generate …`; called by `cargo xtask`.

fn main() {
    uniffi::uniffi_bindgen_main();
}
