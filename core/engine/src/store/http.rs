//! The HTTP client, and the one place where the TLS provider is chosen.
//!
//! * Provider: `graviola`. It is Rust with assembler inside, so Android and iOS builds need no C compiler and no
//!   second build system, which `ring` and `aws-lc-rs` do. Its price: the CPU must have the AES and SHA extensions
//!   (every 64-bit phone of the last ten years; x86-64 since 2015). Without them there is a typed error, no crash.
//! * Trust: Mozilla's roots, compiled in. The system's verifier would need a JNI handle from the app on Android
//!   before the first connection, and a model is pinned by its SHA-256 anyway.

use std::sync::Arc;
use std::time::Duration;

use super::StoreError;

/// Redirects followed before a source is given up. Hubs use two or three.
const MAX_REDIRECTS: usize = 10;

/// A client for model downloads.
///
/// `secure` refuses every address that is not HTTPS, also those that a redirect names.
pub(crate) fn client(secure: bool, connect_timeout: Duration) -> Result<reqwest::Client, StoreError> {
    reqwest::Client::builder()
        .tls_backend_preconfigured(tls_client_config()?)
        .https_only(secure)
        .redirect(reqwest::redirect::Policy::limited(MAX_REDIRECTS))
        .connect_timeout(connect_timeout)
        // One transfer at a time: an idle connection has no use afterwards.
        .pool_max_idle_per_host(0)
        .user_agent(concat!("pannier/", env!("CARGO_PKG_VERSION")))
        .build()
        .map_err(|e| StoreError::Tls { reason: chain(&e) })
}

/// TLS as all clients here speak it.
///
/// # Errors
/// [`StoreError::Tls`] if the CPU cannot.
pub fn tls_client_config() -> Result<rustls::ClientConfig, StoreError> {
    cpu_can()?;
    let mut roots = rustls::RootCertStore::empty();
    roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    Ok(rustls::ClientConfig::builder_with_provider(Arc::new(rustls_graviola::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| StoreError::Tls { reason: e.to_string() })?
        .with_root_certificates(roots)
        .with_no_client_auth())
}

/// The provider asserts these features when it is first used; asking first turns the assertion into an error.
fn cpu_can() -> Result<(), StoreError> {
    macro_rules! need {
        ($detect:ident: $($feature:tt)+) => {
            [$(($feature, std::arch::$detect!($feature))),+]
                .into_iter()
                .find(|(_, there)| !there)
                .map(|(name, _)| name)
        };
    }
    #[cfg(target_arch = "x86_64")]
    let missing = need!(is_x86_feature_detected: "aes" "ssse3" "pclmulqdq" "avx" "avx2" "adx" "bmi1" "bmi2");
    #[cfg(target_arch = "aarch64")]
    let missing = need!(is_aarch64_feature_detected: "neon" "aes" "pmull" "sha2");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let missing = Some("64-bit x86 or Arm");
    match missing {
        None => Ok(()),
        Some(name) => Err(StoreError::Tls { reason: format!("the CPU lacks {name}") }),
    }
}

/// What went wrong, in one line, without the address: every message that this becomes part of names it already.
pub(crate) fn reason(error: reqwest::Error) -> String {
    chain(&error.without_url())
}

/// An error with its causes, in one line: `reqwest` keeps the interesting half in the source.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let inner_text = inner.to_string();
        if !text.contains(&inner_text) {
            text.push_str(": ");
            text.push_str(&inner_text);
        }
        cause = inner.source();
    }
    text.replace(['\n', '\r'], " ")
}
