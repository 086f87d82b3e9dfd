//! The architectures, one file each.

mod gemma2;
mod gemma3;
mod gemma4;
mod gpt_oss;
mod lfm2;
mod llama;
mod olmoe;
mod phi3;
mod qwen2;
mod qwen2moe;
mod qwen3;
mod qwen35;
mod qwen3moe;
mod qwen3next;
mod smollm3;

use super::builder::Builder;
use super::hyper::Hyper;
use super::spec::Architecture;
use crate::Result;

/// An architecture as the list knows it.
#[derive(Clone, Copy, Debug)]
pub struct ArchEntry {
    /// Values of `general.architecture` that mean it.
    pub names: &'static [&'static str],
    /// Reads hyperparameters and collects tensors.
    pub build: fn(&Hyper<'_>, &mut Builder<'_>) -> Result<Box<dyn Architecture>>,
}

/// All of them.
pub const ARCHITECTURES: &[ArchEntry] = &[
    llama::ARCH,
    qwen2::ARCH,
    qwen3::ARCH,
    gemma2::ARCH,
    gemma3::ARCH,
    gemma4::ARCH,
    phi3::ARCH,
    smollm3::ARCH,
    qwen2moe::ARCH,
    qwen3moe::ARCH,
    gpt_oss::ARCH,
    olmoe::ARCH,
    lfm2::ARCH,
    qwen3next::ARCH,
    qwen35::ARCH,
];

/// The architecture with this name.
pub fn find(name: &str) -> Option<&'static ArchEntry> {
    ARCHITECTURES.iter().find(|entry| entry.names.contains(&name))
}

/// The names of all, for a message.
pub fn supported() -> String {
    let names: Vec<&str> = ARCHITECTURES.iter().flat_map(|entry| entry.names).copied().collect();
    names.join(", ")
}
