//! Random models of real shapes: `cargo xtask synth --shape 1.1b --type Q4_K_M OUT`.
//!
//! What speed and memory depend on is real: shapes, block formats, the mixture of types, the tokenizer (taken from a model on
//! this machine). Weights are Gaussian, scaled so that activations stay finite; each row is a random choice of a few thousand
//! encoded blocks, which writes gigabytes at the disk's speed. The same arguments give the same bytes.
//!
//! With `--hollow` the file has its whole directory but no weights: what a plan reads is there, and 20 GB take a few hundred kilobytes of
//! disk.
//!
//! Routers are skewed: uniformly random routing has no favourites, so no cache would ever hit. Embeddings share a direction that
//! the residual stream keeps, and each expert has its own liking for it.

use std::collections::HashMap;
use std::error::Error;
use std::path::PathBuf;

use pannier_forge::encode;
use pannier_gguf::{GgmlType, Gguf, Metadata, Writer};

const USAGE: &str = "synth --shape 1.1b|7b|13b|35b|35b-a3b|moe-2g|moe-128x8|tiny|moe-tiny [--type Q4_K_M] [--hollow] \
                     [--skew X] --tokenizer FILE OUT";

struct Shape {
    name: &'static str,
    layers: u32,
    embd: u64,
    ffn: u64,
    heads: u64,
    kv_heads: u64,
    head_dim: u64,
    /// Experts and how many of them a token uses.
    experts: Option<(u64, u64)>,
}

const SHAPES: &[Shape] = &[
    Shape {
        name: "1.1b",
        layers: 22,
        embd: 2048,
        ffn: 5632,
        heads: 32,
        kv_heads: 4,
        head_dim: 64,
        experts: None,
    },
    Shape {
        name: "7b",
        layers: 32,
        embd: 4096,
        ffn: 11008,
        heads: 32,
        kv_heads: 32,
        head_dim: 128,
        experts: None,
    },
    Shape {
        name: "moe-2g",
        layers: 20,
        embd: 2048,
        ffn: 768,
        heads: 16,
        kv_heads: 4,
        head_dim: 128,
        experts: Some((32, 4)),
    },
    Shape {
        name: "moe-128x8",
        layers: 8,
        embd: 2048,
        ffn: 512,
        heads: 16,
        kv_heads: 4,
        head_dim: 128,
        experts: Some((128, 8)),
    },
    // For plans on paper only: their files are written hollow.
    Shape {
        name: "13b",
        layers: 40,
        embd: 5120,
        ffn: 13824,
        heads: 40,
        kv_heads: 40,
        head_dim: 128,
        experts: None,
    },
    Shape {
        name: "35b",
        layers: 68,
        embd: 7168,
        ffn: 18432,
        heads: 56,
        kv_heads: 8,
        head_dim: 128,
        experts: None,
    },
    Shape {
        name: "35b-a3b",
        layers: 40,
        embd: 2048,
        ffn: 512,
        heads: 32,
        kv_heads: 4,
        head_dim: 128,
        experts: Some((256, 8)),
    },
    Shape {
        name: "tiny",
        layers: 6,
        embd: 512,
        ffn: 1536,
        heads: 8,
        kv_heads: 2,
        head_dim: 64,
        experts: None,
    },
    Shape {
        name: "moe-tiny",
        layers: 6,
        embd: 512,
        ffn: 256,
        heads: 8,
        kv_heads: 2,
        head_dim: 64,
        experts: Some((16, 4)),
    },
];

/// How much of an embedding is the shared direction, and how strongly experts differ in liking it, in units of what a token's
/// own part contributes to a router's logit. With these, a cache of two to four times what a token needs has hits between those of the two
/// recorded traces, within a few points (benches/record/2026-11-30-moe.md); real routers also have moods, which random ones have not.
const SHARED: f32 = 0.5;
const SKEW: f32 = 0.5;

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn normal(&mut self) -> f32 {
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        (radius * (std::f64::consts::TAU * self.unit()).cos()) as f32
    }
}

/// Encoded blocks to make rows of.
struct Pool {
    block: usize,
    bytes: Vec<u8>,
    count: u64,
}

const POOL_BLOCKS: usize = 2048;

impl Pool {
    fn new(ty: GgmlType, std: f32, random: &mut Random) -> Result<Pool, Box<dyn Error>> {
        let encoder = encode::encoder(ty).ok_or_else(|| format!("no encoder for {ty}"))?;
        // Short blocks in groups, so that a row is not assembled from single floats.
        let elements = ty.block_elements().max(32) as usize;
        let block = ty.row_bytes(elements as u64).ok_or("block")? as usize;
        let mut bytes = vec![0; block * POOL_BLOCKS];
        let mut row = vec![0f32; elements];
        for out in bytes.chunks_exact_mut(block) {
            row.fill_with(|| random.normal() * std);
            encoder.encode_row(&row, None, out)?;
        }
        Ok(Pool { block, bytes, count: POOL_BLOCKS as u64 })
    }

    fn fill(&self, out: &mut [u8], random: &mut Random) {
        for place in out.chunks_exact_mut(self.block) {
            let index = ((random.next() >> 32) * self.count) >> 32;
            let start = index as usize * self.block;
            place.copy_from_slice(&self.bytes[start..start + self.block]);
        }
    }
}

enum Content {
    /// Gaussian with this standard deviation.
    Random(f32),
    Ones,
    Embedding,
    Router,
}

struct Tensor {
    name: String,
    dims: Vec<u64>,
    ty: GgmlType,
    content: Content,
}

/// The field's mixtures: most tensors in the base type, the ones that hurt most in more bits.
struct Mixture {
    base: GgmlType,
    more: GgmlType,
    output: GgmlType,
}

fn mixture(name: &str) -> Result<Mixture, Box<dyn Error>> {
    let upper = name.to_ascii_uppercase();
    let (base, more, output) = match upper.as_str() {
        "Q4_K_M" => (GgmlType::Q4_K, GgmlType::Q6_K, GgmlType::Q6_K),
        "Q5_K_M" => (GgmlType::Q5_K, GgmlType::Q6_K, GgmlType::Q6_K),
        "Q3_K_M" => (GgmlType::Q3_K, GgmlType::Q5_K, GgmlType::Q6_K),
        "Q4_K_S" => (GgmlType::Q4_K, GgmlType::Q4_K, GgmlType::Q6_K),
        other => {
            let ty = GgmlType::from_name(other).ok_or_else(|| format!("unknown type {name:?}"))?;
            (ty, ty, ty)
        }
    };
    Ok(Mixture { base, more, output })
}

fn tensors(shape: &Shape, vocab: u64, mix: &Mixture) -> Vec<Tensor> {
    let &Shape { embd, ffn, heads, kv_heads, head_dim, layers, experts, .. } = shape;
    let inner = |columns: u64| 1.0 / (columns as f32).sqrt();
    // The residual stream grows by what the blocks add, so each adds little.
    let outer = |columns: u64| inner(columns) / (2.0 * layers as f32).sqrt();
    let mut all = Vec::new();
    let mut add = |name: String, dims: &[u64], ty: GgmlType, content: Content| {
        all.push(Tensor { name: format!("{name}.weight"), dims: dims.to_vec(), ty, content });
    };
    add("token_embd".into(), &[embd, vocab], mix.base, Content::Embedding);
    for layer in 0..layers {
        let more = layer < layers / 8 || layer >= 7 * layers / 8 || (layer - layers / 8) % 3 == 2;
        let heavy = if more { mix.more } else { mix.base };
        let blk = |part: &str| format!("blk.{layer}.{part}");
        add(blk("attn_norm"), &[embd], GgmlType::F32, Content::Ones);
        add(blk("attn_q"), &[embd, heads * head_dim], mix.base, Content::Random(inner(embd)));
        add(blk("attn_k"), &[embd, kv_heads * head_dim], mix.base, Content::Random(inner(embd)));
        add(blk("attn_v"), &[embd, kv_heads * head_dim], heavy, Content::Random(inner(embd)));
        add(
            blk("attn_output"),
            &[heads * head_dim, embd],
            mix.base,
            Content::Random(outer(heads * head_dim)),
        );
        if experts.is_some() {
            add(blk("attn_q_norm"), &[head_dim], GgmlType::F32, Content::Ones);
            add(blk("attn_k_norm"), &[head_dim], GgmlType::F32, Content::Ones);
        }
        add(blk("ffn_norm"), &[embd], GgmlType::F32, Content::Ones);
        match experts {
            None => {
                add(blk("ffn_gate"), &[embd, ffn], mix.base, Content::Random(inner(embd)));
                add(blk("ffn_up"), &[embd, ffn], mix.base, Content::Random(inner(embd)));
                add(blk("ffn_down"), &[ffn, embd], heavy, Content::Random(outer(ffn)));
            }
            Some((count, _)) => {
                add(blk("ffn_gate_inp"), &[embd, count], GgmlType::F32, Content::Router);
                add(blk("ffn_gate_exps"), &[embd, ffn, count], mix.base, Content::Random(inner(embd)));
                add(blk("ffn_up_exps"), &[embd, ffn, count], mix.base, Content::Random(inner(embd)));
                add(blk("ffn_down_exps"), &[ffn, embd, count], heavy, Content::Random(outer(ffn)));
            }
        }
    }
    add("output_norm".into(), &[embd], GgmlType::F32, Content::Ones);
    add("output".into(), &[embd, vocab], mix.output, Content::Random(inner(embd)));
    all
}

fn metadata(shape: &Shape, ty: &str, tokenizer: &Metadata, vocab: u64) -> Metadata {
    let arch = if shape.experts.is_some() { "qwen3moe" } else { "llama" };
    let mut meta = Metadata::new();
    meta.insert("general.architecture", arch);
    meta.insert("general.name", format!("synthetic {} {ty}", shape.name));
    let mut key = |name: &str, value: u64| meta.insert(format!("{arch}.{name}"), value as u32);
    key("context_length", 8192);
    key("embedding_length", shape.embd);
    key("block_count", u64::from(shape.layers));
    key("feed_forward_length", shape.ffn);
    key("attention.head_count", shape.heads);
    key("attention.head_count_kv", shape.kv_heads);
    key("attention.key_length", shape.head_dim);
    key("attention.value_length", shape.head_dim);
    key("rope.dimension_count", shape.head_dim);
    key("vocab_size", vocab);
    if let Some((count, used)) = shape.experts {
        key("expert_count", count);
        key("expert_used_count", used);
        key("expert_feed_forward_length", shape.ffn);
    }
    meta.insert(format!("{arch}.attention.layer_norm_rms_epsilon"), 1e-5f32);
    meta.insert(format!("{arch}.rope.freq_base"), 10000f32);
    for (name, value) in tokenizer.iter().filter(|(name, _)| name.starts_with("tokenizer.")) {
        meta.insert(name, value.clone());
    }
    meta
}

fn main() -> Result<(), Box<dyn Error>> {
    let (mut shape, mut ty, mut tokenizer, mut out) = (None, "Q4_K_M".to_owned(), None, None);
    let (mut hollow, mut skew) = (false, SKEW);
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--shape" => shape = args.next(),
            "--type" => ty = args.next().ok_or(USAGE)?,
            "--hollow" => hollow = true,
            "--skew" => skew = args.next().ok_or(USAGE)?.parse()?,
            "--tokenizer" => tokenizer = args.next(),
            _ => out = Some(PathBuf::from(arg)),
        }
    }
    let name = shape.ok_or(USAGE)?;
    let shape = SHAPES
        .iter()
        .find(|shape| shape.name == name)
        .ok_or_else(|| format!("no shape {name:?}; {USAGE}"))?;
    let out = out.ok_or(USAGE)?;
    let donor = Gguf::open(tokenizer.ok_or(USAGE)?)?;
    let vocab = donor.metadata().get("tokenizer.ggml.tokens").and_then(|value| match value {
        pannier_gguf::Value::Array(array) => Some(array.len() as u64),
        _ => None,
    });
    let vocab = vocab.ok_or("the tokenizer's file has no tokens")?;
    let tensors = tensors(shape, vocab, &mixture(&ty)?);
    let mut writer = Writer::with_metadata(metadata(shape, &ty, donor.metadata(), vocab));
    for tensor in &tensors {
        writer.tensor(&tensor.name, &tensor.dims, tensor.ty)?;
    }

    if hollow {
        let mut header = Vec::new();
        writer.begin(&mut header)?;
        let bytes = tensors.iter().try_fold(header.len() as u64, |sum, tensor| {
            let rows: u64 = tensor.dims[1..].iter().product();
            Some((sum + rows * tensor.ty.row_bytes(tensor.dims[0])?).next_multiple_of(32))
        });
        std::fs::write(&out, header)?;
        std::fs::File::options().write(true).open(&out)?.set_len(bytes.ok_or("a row")?)?;
        return Ok(());
    }

    let mut random = Random(0x5eed);
    let direction: Vec<f32> = (0..shape.embd).map(|_| random.normal()).collect();
    let mut pools: HashMap<(GgmlType, u32), Pool> = HashMap::new();
    writer.write_file(&out, |stream| -> Result<(), Box<dyn Error>> {
        let mut buffer = Vec::new();
        for tensor in &tensors {
            let columns = tensor.dims[0];
            let rows: u64 = tensor.dims[1..].iter().product();
            let row_bytes = tensor.ty.row_bytes(columns).ok_or("row")? as usize;
            match tensor.content {
                Content::Random(std) => {
                    let pool = match pools.entry((tensor.ty, std.to_bits())) {
                        std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
                        std::collections::hash_map::Entry::Vacant(entry) => {
                            entry.insert(Pool::new(tensor.ty, std, &mut random)?)
                        }
                    };
                    let mut left = rows * row_bytes as u64;
                    // A whole number of blocks, whatever the type.
                    let piece = (4 << 20) / pool.block * pool.block;
                    while left > 0 {
                        buffer.resize(left.min(piece as u64) as usize, 0);
                        pool.fill(&mut buffer, &mut random);
                        stream.write(&tensor.name, &buffer)?;
                        left -= buffer.len() as u64;
                    }
                }
                ref content => {
                    let encoder = encode::encoder(tensor.ty).ok_or("no encoder")?;
                    buffer.resize(row_bytes, 0);
                    let mut row = vec![0f32; columns as usize];
                    let scale = 1.0 / (columns as f32).sqrt();
                    for _ in 0..rows {
                        match content {
                            Content::Embedding => {
                                row.iter_mut()
                                    .zip(&direction)
                                    .for_each(|(x, u)| *x = random.normal() + SHARED * u);
                            }
                            Content::Router => {
                                let liking = skew * random.normal() * scale;
                                row.iter_mut().zip(&direction).for_each(|(x, u)| {
                                    *x = random.normal() + liking * u;
                                    *x *= scale;
                                });
                            }
                            _ => row.fill(1.0),
                        }
                        encoder.encode_row(&row, None, &mut buffer)?;
                        stream.write(&tensor.name, &buffer)?;
                    }
                }
            }
        }
        Ok(())
    })?;
    eprintln!("{}: {} bytes", out.display(), std::fs::metadata(&out)?.len());
    Ok(())
}
