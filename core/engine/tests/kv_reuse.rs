//! Prefixes, saved sequences and policies, on forward passes.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod golden_support;

use golden_support::{Setup, open, real, runner, tiny};
use pannier::kv::{EvictWhen, Heat, KvCache, KvGeometry, KvOptions, KvPolicy, KvType, KvTypes};
use pannier::memory::Accountant;
use pannier::model::{
    AttentionSpec, Forward, LoadedModel, ModelSpec, Outputs, PrecisionTable, Runner, RunnerOptions,
    ScratchPlan,
};
use pannier::pool::Pool;
use pannier::{CancelFlag, Error};
use pannier_kernels::AttentionShape;
use std::io::Cursor;
use std::sync::Arc;

fn tokens(n: usize, vocab: usize) -> Vec<u32> {
    (0..n).map(|i| ((7 * i + 1) % vocab) as u32).collect()
}

fn step(runner: &mut Runner, seq: &mut <Runner as Forward>::Seq, tokens: &[u32]) -> Vec<u32> {
    let logits = runner.step(seq, tokens, Outputs::Last, &CancelFlag::new()).unwrap();
    logits.iter().map(|logit| logit.to_bits()).collect()
}

fn with(model: &Arc<LoadedModel>, kv: KvOptions) -> Runner {
    let options = RunnerOptions { kv, ..RunnerOptions::default() };
    Runner::new(Arc::clone(model), Arc::new(Pool::new(2)), &options, &Accountant::new(None)).unwrap()
}

/// Dense, with windows, and with recurrent states.
const MODELS: [&str; 5] =
    ["arch-llama-dense", "arch-gemma3-dense", "arch-qwen35-dense", "arch-qwen3next-moe", "arch-lfm2moe-moe"];

/// In all layers, as these models have few.
const CHANNEL: KvTypes = KvTypes { edges: 0, ..KvTypes::Q4_CHANNEL };

#[test]
fn a_resumed_prefix_has_the_logits_of_a_cold_one() {
    for name in MODELS {
        for types in [KvTypes::F16, KvTypes::Q8, KvTypes::Q8_CHANNEL, CHANNEL] {
            let model = open(&tiny(&format!("{name}.gguf")));
            let n = 120.min(model.spec().context);
            let ids = tokens(n, model.spec().vocab);
            let expected = {
                let mut cold = runner(&model, Setup { kv: types, ..Setup::default() });
                let mut seq = cold.new_seq().unwrap();
                step(&mut cold, &mut seq, &ids)
            };
            let mut warm = runner(&model, Setup { kv: types, ..Setup::default() });
            assert_eq!(warm.published(&ids), 0);
            // As a session reads it: to the last border that is published, and on.
            let border = (n - 1) / 32 * 32;
            let mut first = warm.new_seq().unwrap();
            step(&mut warm, &mut first, &ids[..border]);
            warm.publish(&first, &ids[..border]);
            assert_eq!(step(&mut warm, &mut first, &ids[border..]), expected, "{name}");
            assert_eq!(warm.published(&ids), border, "{name}");
            // Another text that begins alike takes what is common.
            let mut other = ids.clone();
            other[border + 1] ^= 1;
            for (text, published) in [(&ids, border), (&other, border)] {
                let mut seq = warm.resume(&text[..n - 1]).unwrap().unwrap();
                assert_eq!(Runner::len(&seq), published);
                let got = step(&mut warm, &mut seq, &text[published..]);
                assert_eq!(got == expected, text == &ids, "{name}");
            }
            // The one that was published is not disturbed.
            assert_eq!(step(&mut warm, &mut first, &[5]), {
                let mut cold = runner(&model, Setup { kv: types, ..Setup::default() });
                let mut seq = cold.new_seq().unwrap();
                step(&mut cold, &mut seq, &ids);
                step(&mut cold, &mut seq, &[5])
            });
        }
    }
}

#[test]
fn a_restored_sequence_goes_on_as_the_saved_one() {
    for name in MODELS {
        for types in [KvTypes::F16, KvTypes::K8V4, KvTypes::Q4, CHANNEL] {
            let model = open(&tiny(&format!("{name}.gguf")));
            let ids = tokens(77.min(model.spec().context - 2), model.spec().vocab);
            let mut one = runner(&model, Setup { kv: types, ..Setup::default() });
            let mut seq = one.new_seq().unwrap();
            step(&mut one, &mut seq, &ids);
            let mut file = Vec::new();
            one.save(&seq, &ids, &mut file).unwrap();
            let expected = step(&mut one, &mut seq, &[3]);
            // Another process: the file is opened anew.
            let mut two =
                runner(&open(&tiny(&format!("{name}.gguf"))), Setup { kv: types, ..Setup::default() });
            let (mut seq, read) = two.restore(&mut Cursor::new(&file)).unwrap();
            assert_eq!(read, ids);
            assert_eq!(step(&mut two, &mut seq, &[3]), expected, "{name} {types}");
            // Other settings, another model, a damaged file.
            let other = if types == KvTypes::Q8 { KvTypes::F16 } else { KvTypes::Q8 };
            let mut three = runner(&model, Setup { kv: other, ..Setup::default() });
            let mut four =
                runner(&open(&tiny("tiny-llama-Q4_0.gguf")), Setup { kv: types, ..Setup::default() });
            file.push(0);
            for refused in [
                three.restore(&mut Cursor::new(&file[..file.len() - 1])).map(|_| ()),
                four.restore(&mut Cursor::new(&file[..file.len() - 1])).map(|_| ()),
                two.restore(&mut Cursor::new(&file)).map(|_| ()),
                two.restore(&mut Cursor::new(b"")).map(|_| ()),
            ] {
                assert!(matches!(refused, Err(Error::BadCacheFile { .. })), "{refused:?}");
            }
        }
    }
}

/// Of keys per channel the last 32 tokens can be taken back one by one; before them a sequence is cut at the border of a page, and only what is behind
/// it is read again.
#[test]
fn a_cut_far_back_is_made_at_a_border() {
    let model = open(&tiny("arch-llama-dense.gguf"));
    let ids = tokens(120.min(model.spec().context - 8), model.spec().vocab);
    for (types, len, kept) in
        [(KvTypes::F16, 50, 50), (CHANNEL, 50, 32), (CHANNEL, ids.len() - 32, ids.len() - 32)]
    {
        let mut runner = runner(&model, Setup { kv: types, ..Setup::default() });
        let mut seq = runner.new_seq().unwrap();
        step(&mut runner, &mut seq, &ids);
        assert_eq!(runner.truncate_near(&mut seq, len).unwrap(), Some(kept), "{types}");
        let other: Vec<u32> = ids[kept..].iter().rev().copied().collect();
        let got = step(&mut runner, &mut seq, &other);
        let mut fresh = runner.new_seq().unwrap();
        step(&mut runner, &mut fresh, &ids[..kept]);
        assert_eq!(got, step(&mut runner, &mut fresh, &other), "{types}");
    }
}

/// A policy that keeps more than there is changes nothing; one that keeps less keeps positions and memory.
#[test]
fn policies_forget_when_asked_and_keep_positions() {
    let model = open(&tiny("arch-llama-dense.gguf"));
    let ids = tokens(150.min(model.spec().context - 8), model.spec().vocab);
    let expected = {
        let mut cold = runner(&model, Setup::default());
        let mut seq = cold.new_seq().unwrap();
        step(&mut cold, &mut seq, &ids);
        step(&mut cold, &mut seq, &[9])
    };
    let policy = KvPolicy::HeavyHitters { sinks: 2, recent: 20, top: 500 };
    for (policy, same) in [
        (policy, true),
        (KvPolicy::KeepAll, true),
        (KvPolicy::Window { recent: 40 }, false),
        (KvPolicy::Sinks { sinks: 4, recent: 40 }, false),
        (KvPolicy::HeavyHitters { sinks: 4, recent: 20, top: 20 }, false),
    ] {
        let mut runner = with(&model, KvOptions { policy, ..KvOptions::default() });
        let mut seq = runner.new_seq().unwrap();
        step(&mut runner, &mut seq, &ids);
        let evicted = runner.evict(&mut seq).unwrap();
        let keeps = policy.keeps().unwrap_or(ids.len()).min(ids.len());
        assert_eq!((evicted.gone, evicted.kept), (ids.len() - keeps, keeps), "{policy}");
        assert_eq!(Runner::len(&seq), ids.len());
        assert_eq!(step(&mut runner, &mut seq, &[9]) == expected, same, "{policy}");
        // It acts only when asked.
        assert!(runner.make_room(&mut seq, 1, None).unwrap().is_none());
    }
}

/// However a prompt is cut before its watched end, the same is forgotten.
#[test]
fn what_is_forgotten_does_not_depend_on_chunks_and_threads() {
    let model = open(&tiny("arch-qwen3-dense.gguf"));
    let ids = tokens(150.min(model.spec().context - 30), model.spec().vocab);
    let watched = 64;
    let policy = KvPolicy::HeavyHitters { sinks: 2, recent: 16, top: 24 };
    let mut all = Vec::new();
    for (chunk, threads) in [(512, 1), (512, 2), (7, 2), (33, 1)] {
        let kv = KvOptions { policy, ..KvOptions::default() };
        let options = RunnerOptions { kv, chunk, ..RunnerOptions::default() };
        let pool = Arc::new(Pool::new(threads));
        let mut runner = Runner::new(Arc::clone(&model), pool, &options, &Accountant::new(None)).unwrap();
        assert_eq!(runner.prompt_steps().last, watched);
        let mut seq = runner.new_seq().unwrap();
        for part in ids[..ids.len() - watched].chunks(chunk) {
            step(&mut runner, &mut seq, part);
        }
        step(&mut runner, &mut seq, &ids[ids.len() - watched..]);
        for id in 0..20 {
            step(&mut runner, &mut seq, &[id]);
        }
        runner.evict(&mut seq).unwrap();
        all.push(step(&mut runner, &mut seq, &[9]));
    }
    assert!(all.iter().all(|bits| *bits == all[0]));
}

/// 16K tokens of a 35B model (60 layers, 8 KV heads, heads of 128) under the usual policy, all memory counted, in half precision.
#[test]
fn a_35b_model_stays_below_2_gb_at_16k_tokens() {
    const CHUNK: usize = 512;
    const SLACK: usize = 256;
    let shape = AttentionShape { heads: 64, kv_heads: 8, k_dim: 128, v_dim: 128 };
    let attention = AttentionSpec {
        shape,
        window: None,
        scale: 1.0,
        q_scale: 1.0,
        soft_cap: None,
        rope: None,
        gated: false,
        borrows: None,
        v_from_k: false,
    };
    let spec = ModelSpec {
        arch: "shape".into(),
        layers: 60,
        embd: 5120,
        vocab: 152_064,
        trained_context: 32_768,
        context: 16_384,
        attention: vec![attention; 60],
        recurrent: Vec::new(),
        per_layer: 0,
        ff: 17_408,
        moe: None,
        ropes: Vec::new(),
    };
    let products: Vec<pannier::model::Product> =
        [(5120, pannier::model::Role::Qkv), (17_408, pannier::model::Role::Down)]
            .into_iter()
            .map(|(cols, role)| pannier::model::Product { role, cols, quantised: true })
            .collect();
    let precision = PrecisionTable::DEFAULT;
    let plan = ScratchPlan {
        spec: &spec,
        products: &products,
        precision: &precision,
        chunk: CHUNK,
        threads: 4,
        chooses: false,
    };
    let accountant = Accountant::new(Some(2_000_000_000));
    let _scratch = accountant.reserve(pannier::memory::Category::Scratch, plan.bytes()).unwrap();

    let policy = KvPolicy::HEAVY_HITTERS;
    let options = KvOptions { policy, evict: EvictWhen::Above(SLACK), ..KvOptions::default() };
    let mut cache = KvCache::new(&spec.kv(KvTypes::F16), options, &accountant).unwrap();
    let mut heat = Heat::new(cache.watched_heads(), shape.heads, &accountant).unwrap();
    let mut seq = cache.new_sequence();
    let mut most = 0;
    while seq.len() < spec.context {
        // As the runner does it, without the arithmetic.
        if cache.slots(&seq) + CHUNK > policy.keeps().unwrap() + SLACK {
            cache.evict(&mut seq, policy, Some(&mut heat)).unwrap();
        }
        let (len, slots) = (seq.len(), cache.slots(&seq));
        heat.begin(len, slots, CHUNK).unwrap();
        cache.prepare(&mut seq, CHUNK).unwrap();
        cache.commit(&mut seq, CHUNK);
        heat.commit(len, slots, CHUNK);
        most = most.max(cache.slots(&seq));
    }
    assert_eq!(seq.len(), 16_384);
    assert!(most <= 1540 + SLACK + CHUNK, "{most}");
    assert!(accountant.peak() < 2_000_000_000, "{}", accountant.peak());
    // Without a policy the keys and values alone would not fit.
    let whole = 16_384 * spec.kv(KvTypes::F16).iter().map(KvGeometry::bytes_per_token).sum::<u64>();
    assert!(whole > 4_000_000_000, "{whole}");
}

/// Element types are where they were asked for: the first and the last layer keep int8 instead of int4.
#[test]
fn a_real_model_takes_the_bytes_of_its_types() {
    let model = open(&real("SmolLM2-135M-Instruct.Q4_1.gguf"));
    let spec = model.spec();
    let measure = |types| {
        let accountant = Accountant::new(None);
        let mut cache = KvCache::new(&spec.kv(types), KvOptions::default(), &accountant).unwrap();
        let mut seq = cache.new_sequence();
        // Enough for the last chunks of pages, a megabyte for each kind of page, not to count.
        cache.prepare(&mut seq, 16_384).unwrap();
        accountant.used() as f64 / 16_384.0
    };
    let f16 = measure(KvTypes::F16);
    let everywhere = KvTypes { edges: 0, ..KvTypes::Q4 };
    for (types, most) in [(KvTypes::Q8, 0.53), (KvTypes::K8V4, 0.42), (KvTypes::Q4, 0.31), (everywhere, 0.29)]
    {
        let bytes = measure(types);
        let formula: u64 = spec.kv(types).iter().map(KvGeometry::bytes_per_token).sum();
        assert!(bytes >= formula as f64 && bytes <= 1.02 * formula as f64, "{types}: {bytes} {formula}");
        assert!(bytes <= most * f16, "{types}: {}", bytes / f16);
    }
    // Behind a long text fresh keys are nothing, but while a text is read in one step they are all of it: the formula.
    let formula = |types| spec.kv(types).iter().map(KvGeometry::bytes_per_token).sum::<u64>() as f64;
    assert!(formula(CHANNEL) <= 0.29 * formula(KvTypes::F16));
    let kinds: Vec<KvType> = spec.kv(KvTypes::Q4).iter().map(|layer| layer.k).collect();
    assert_eq!((kinds[0], kinds[1], kinds[29]), (KvType::Q8Rotated, KvType::Q4Rotated, KvType::Q8Rotated));
}
