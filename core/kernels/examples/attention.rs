//! Speed of attention on one thread: `cargo run --release -p pannier-kernels --example attention`.
//!
//! Prefill is the last 128 queries of a prompt, in GFLOP/s of the two products; decode is one query, in microseconds. The best of
//! many runs counts, so that other work on the machine does not. The first argument selects shapes by name, the
//! second (`prefill` or `decode`) one of the two. The last column is how many tokens a query reads, where it chooses pages by their summaries;
//! GFLOP/s are of the work that reading all of them is.

use std::time::Instant;

use pannier_kernels::{
    AttentionJob, AttentionScratch, AttentionShape, FreshKeys, Kernels, KvFormat, KvLayout, KvPages,
    PAGE_TOKENS, Serial,
};

fn main() {
    let shapes = [
        ("SmolLM2-135M", 9, 3, 64),
        ("Qwen2.5-0.5B", 14, 2, 64),
        ("Qwen2.5-1.5B", 12, 2, 128),
        ("Llama-3-8B", 32, 8, 128),
        ("Gemma-3-270M", 4, 1, 256),
    ];
    let wanted = std::env::args().nth(1).unwrap_or_default();
    println!(
        "{:<14} {:<7} {:<4} {:>6} {:>15} {:>12} {:>6}",
        "shape", "isa", "kv", "tokens", "prefill GFLOP/s", "decode us", "reads"
    );
    for (name, heads, kv_heads, dim) in shapes.into_iter().filter(|s| s.0.contains(&wanted)) {
        for kernels in Kernels::available().into_iter().skip(1) {
            for (tokens, format) in [128, 1024, 4096, 8192].into_iter().flat_map(|tokens| {
                [KvFormat::F16, KvFormat::Q8, KvFormat::Q4, KvFormat::Q4Channel, KvFormat::Q8Channel]
                    .map(|format| (tokens, format))
            }) {
                for reads in [tokens, 1536, 768].into_iter().filter(|&reads| reads <= tokens) {
                    let (prefill, decode) = measure(kernels, (heads, kv_heads, dim), tokens, (format, reads));
                    let (isa, format) = (format!("{:?}", kernels.isa()), format!("{format:?}"));
                    println!(
                        "{name:<14} {isa:<7} {format:<4} {tokens:>6} {prefill:>15.1} {decode:>12.1} {reads:>6}"
                    );
                }
            }
        }
    }
}

fn measure(
    kernels: &Kernels,
    (heads, kv_heads, dim): (usize, usize, usize),
    tokens: usize,
    (format, reads): (KvFormat, usize),
) -> (f64, f64) {
    let shape = AttentionShape { heads, kv_heads, k_dim: dim, v_dim: dim };
    // Only keys are rounded per channel.
    let v = match format {
        KvFormat::Q4Channel => KvFormat::Q4,
        KvFormat::Q8Channel => KvFormat::Q8,
        other => other,
    };
    let chooses = reads < tokens;
    let layout = KvLayout { shape, k: format, v, summaries: chooses };
    // Several layers, so that decode reads from memory as it would in a model.
    let pages_per_layer = tokens.div_ceil(PAGE_TOKENS);
    let layers = (64_000_000 / (2 * pages_per_layer * layout.page_len())).clamp(1, 64);
    let mut state = 1u32;
    let mut noise = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 8_388_608.0 - 1.0
    };
    let row: Vec<f32> = (0..4099).map(|_| noise()).collect();
    let mut halves = vec![0u16; row.len()];
    kernels.to_f16(&row, &mut halves);
    let pages: Box<[u16]> =
        halves.iter().copied().cycle().take(layers * pages_per_layer * layout.page_len()).collect();
    let chunks = [pages];
    let fresh_len = layout.fresh().page_len();
    let fresh_chunks = [halves.iter().copied().cycle().take(5 * fresh_len).collect::<Box<[u16]>>()];
    let fresh_first = pages_per_layer.saturating_sub(5);
    let fresh = FreshKeys {
        chunks: &fresh_chunks,
        chunk_pages: 5,
        page_len: fresh_len,
        table: &[0, 1, 2, 3, 4],
        first: fresh_first,
    };
    let q: Vec<f32> = (0..tokens * heads * dim).map(|_| noise() * 3.0).collect();
    let mut out = vec![0.0; q.len()];
    let mut scratch = AttentionScratch::new(&shape, 1, tokens).choosing(&shape, 1, tokens);
    let mut run = |layer: usize, first: usize, n: usize| {
        let table: Vec<u32> = (0..pages_per_layer).map(|p| (layer * pages_per_layer + p) as u32).collect();
        let start = Instant::now();
        kernels.attention(
            &Serial,
            &mut AttentionJob {
                q: &q[..n * heads * dim],
                n,
                first_pos: first,
                heads,
                kv_heads,
                k_dim: dim,
                v_dim: dim,
                kv: KvPages {
                    chunks: &chunks,
                    chunk_pages: layers * pages_per_layer,
                    layout,
                    page_len: layout.page_len(),
                    table: &table,
                    first_token: 0,
                    fresh: (layout.k.per_channel()).then_some(fresh),
                    most_pages: chooses.then_some(reads / PAGE_TOKENS),
                },
                scale: 1.0 / (dim as f32).sqrt(),
                soft_cap: None,
                window: None,
                sinks: None,
                scratch: &mut scratch,
                out: &mut out[..n * heads * dim],
            },
        );
        start.elapsed().as_secs_f64()
    };
    let n = tokens.min(128);
    let only = std::env::args().nth(2).unwrap_or_default();
    let runs = |name: &str, n: usize| if only.is_empty() || only == name { n } else { 0 };
    let prefill = (0..runs("prefill", 20)).map(|i| run(i % layers, tokens - n, n)).fold(f64::MAX, f64::min);
    let flops = ((tokens * (tokens + 1) - (tokens - n) * (tokens - n + 1)) / 2 * heads * dim * 4) as f64;
    let decode = (0..runs("decode", 300)).map(|i| run(i % layers, tokens - 1, 1)).fold(f64::MAX, f64::min);
    (flops / prefill / 1e9, decode * 1e6)
}
