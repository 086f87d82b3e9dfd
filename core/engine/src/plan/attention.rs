//! How fast attention is on this machine: one query behind a long context, in layers of a model's own shapes.

use super::AttentionRate;
use crate::Result;
use crate::memory::{Category, zeroed};
use pannier_kernels::{
    AttentionJob, AttentionScratch, AttentionShape, Kernels, KvLayout, KvPages, PAGE_TOKENS, Parallel,
};
use std::time::Instant;

/// Tokens before the query: more than the caches of a core hold of a layer.
const TOKENS: usize = 1024;
/// Keys and values of all layers together, at most: decoding finds them in memory, as weights have passed through the caches since the last token.
const BYTES: usize = 48 << 20;
/// A half that is an ordinary number.
const FILLING: u16 = 0x3333;

/// Measures layers of `shape`, with up to so many bytes (two layers take part in any case).
pub(super) fn rate(
    par: &dyn Parallel,
    kernels: &Kernels,
    shape: &AttentionShape,
    scale: f32,
    most: usize,
) -> Result<AttentionRate> {
    let layout = KvLayout::f16(*shape);
    let (pages, page_len) = (TOKENS / PAGE_TOKENS, layout.page_len());
    // A layer is a chunk, as large as those of a cache or larger.
    let layers = (BYTES.min(most) / (2 * pages * page_len)).clamp(2, 64);
    let mut chunks = Vec::with_capacity(layers);
    for _ in 0..layers {
        let mut chunk = zeroed::<u16>(pages * page_len, Category::Scratch)?;
        chunk.fill(FILLING);
        chunks.push(chunk.into_boxed_slice());
    }
    let q = vec![0.5; shape.heads * shape.k_dim];
    let mut out = vec![0.0; shape.heads * shape.v_dim];
    let mut scratch = AttentionScratch::new(shape, par.threads(), TOKENS);
    let mut pass = || {
        let start = Instant::now();
        for layer in 0..layers {
            let table: [u32; TOKENS / PAGE_TOKENS] =
                std::array::from_fn(|page| (layer * pages + page) as u32);
            let kv = KvPages {
                chunks: &chunks,
                chunk_pages: pages,
                layout,
                page_len,
                table: &table,
                first_token: 0,
                fresh: None,
                most_pages: None,
            };
            kernels.attention(
                par,
                &mut AttentionJob {
                    q: &q,
                    n: 1,
                    first_pos: TOKENS - 1,
                    heads: shape.heads,
                    kv_heads: shape.kv_heads,
                    k_dim: shape.k_dim,
                    v_dim: shape.v_dim,
                    kv,
                    scale,
                    soft_cap: None,
                    window: None,
                    sinks: None,
                    scratch: &mut scratch,
                    out: &mut out,
                },
            );
        }
        start.elapsed().as_secs_f64()
    };
    let seconds = super::measure::middle(&mut pass);
    Ok(AttentionRate {
        heads: shape.heads,
        kv_heads: shape.kv_heads,
        k_dim: shape.k_dim,
        v_dim: shape.v_dim,
        bps: (2 * layers * pages * page_len) as f64 / seconds.max(1e-9),
    })
}
