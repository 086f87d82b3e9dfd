//! The cache of experts, on a file of random matrices: every acquired expert has the bytes of the file.

use pannier::memory::Accountant;
use pannier::residency::{
    Layout, ResidencyPlan, ResidencyWish, StreamOptions, StreamingStore, TensorRef, UnitId, UnitKind,
    UnitTensor, WeightStore, policy,
};
use pannier_gguf::{GgmlType, Gguf, Writer};
use pannier_kernels::format;
use std::path::Path;

const LAYERS: usize = 4;
const EXPERTS: usize = 12;
const USED: usize = 3;
const COLS: u64 = 256;
const ROWS: u64 = 40;

/// A file with the stacks of the field: for each layer all gates, all ups, all downs.
fn file(folder: &Path) -> (Gguf, Layout, Vec<Vec<[TensorRef; 3]>>) {
    let mut writer = Writer::new();
    let names: Vec<String> = (0..LAYERS)
        .flat_map(|layer| ["gate", "up", "down"].map(|part| format!("blk.{layer}.ffn_{part}_exps.weight")))
        .collect();
    for name in &names {
        writer.tensor(name, &[COLS, ROWS, EXPERTS as u64], GgmlType::Q8_0).unwrap();
    }
    let path = folder.join("experts.gguf");
    let mut byte = 1u32;
    writer
        .write_file(&path, |out| -> Result<(), pannier_gguf::Error> {
            for name in &names {
                let data: Vec<u8> = (0..COLS * ROWS * EXPERTS as u64 / 32 * 34)
                    .map(|_| {
                        byte = byte.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        (byte >> 24) as u8
                    })
                    .collect();
                out.write(name, &data)?;
            }
            Ok(())
        })
        .unwrap();
    let gguf = Gguf::open(&path).unwrap();
    let mut layout = Layout::default();
    let mut refs = Vec::new();
    for layer in 0..LAYERS {
        let mut of_layer = Vec::new();
        for expert in 0..EXPERTS {
            let unit = layout.add_unit(UnitKind::Expert { layer, expert });
            of_layer.push(["gate", "up", "down"].map(|part| {
                let info = gguf.tensor(&format!("blk.{layer}.ffn_{part}_exps.weight")).unwrap();
                let bytes = info.bytes / EXPERTS as u64;
                let tensor = UnitTensor {
                    name: format!("{part} {layer} {expert}"),
                    format: format(GgmlType::Q8_0.id()).unwrap(),
                    rows: ROWS as usize,
                    cols: COLS as usize,
                    shard: 0,
                    offset: info.offset + bytes * expert as u64,
                    bytes,
                    fine: None,
                };
                layout.add_matrix(unit, tensor).unwrap()
            }));
        }
        refs.push(of_layer);
    }
    (gguf, layout, refs)
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % n
    }
}

/// Runs many tokens through a cache of a few slots and compares every byte.
fn run(stream: &StreamOptions, slots: u64) -> (f64, u64) {
    let folder = tempfile::tempdir().unwrap();
    let (gguf, layout, refs) = file(folder.path());
    let one = ResidencyPlan::new(&layout, &ResidencyWish { budget: Some(u64::MAX / 2), experts_used: USED });
    let slot_bytes = one.unwrap().unwrap().slot_bytes;
    let budget = slots * slot_bytes;
    let plan = ResidencyPlan::new(&layout, &ResidencyWish { budget: Some(budget), experts_used: USED });
    let plan = plan.unwrap().unwrap();
    assert_eq!(u64::from(plan.slots), slots.min((LAYERS * EXPERTS) as u64));
    let accountant = Accountant::new(Some(budget));
    let store = StreamingStore::new(&gguf, layout.clone(), plan, stream, &accountant).unwrap();
    let unit = |layer: usize, expert: usize| -> UnitId { refs[layer][expert][0].unit() };
    let data = |tensor: TensorRef| -> Vec<u8> {
        let info = &layout.unit(tensor.unit()).unwrap().tensors;
        let slot = refs.iter().flatten().find_map(|three| three.iter().position(|t| *t == tensor)).unwrap();
        let info = &info[slot];
        gguf.shard(0).unwrap().bytes()[info.offset as usize..(info.offset + info.bytes) as usize].to_vec()
    };
    let mut random = Random(5);
    for token in 0..60 {
        store.begin_pass().unwrap();
        if token == 30 {
            // Memory gets scarce, and then plentiful again.
            store.resize_cache(9 * slot_bytes);
        } else if token == 45 {
            store.resize_cache(u64::MAX);
        }
        for layer in 0..LAYERS {
            let mut chosen: Vec<u16> = Vec::new();
            while chosen.len() < USED {
                // Some are favourites.
                let expert = (random.below(EXPERTS) * random.below(EXPERTS) / EXPERTS) as u16;
                if !chosen.contains(&expert) {
                    chosen.push(expert);
                }
            }
            let probabilities: Vec<f32> = (0..EXPERTS).map(|e| 1.0 / (1 + e) as f32).collect();
            store.routed(layer, &chosen, &probabilities);
            let units: Vec<UnitId> = chosen.iter().map(|&e| unit(layer, usize::from(e))).collect();
            store.hint(&units);
            // A prefill pass holds one at a time, a decode step all of them.
            let mut held = Vec::new();
            for &expert in &chosen {
                let guard = store.acquire(unit(layer, usize::from(expert))).unwrap();
                for tensor in refs[layer][usize::from(expert)] {
                    assert_eq!(guard.matrix(tensor).unwrap().bytes(), data(tensor));
                }
                held.push(guard);
                if token % 2 == 0 {
                    held.clear();
                }
            }
        }
        assert!(accountant.used() <= budget);
        if token == 32 {
            assert_eq!(store.cache_bytes(), slots.min(9) * slot_bytes);
            assert_eq!(accountant.used(), slots.min(9) * slot_bytes);
        }
    }
    store.begin_pass().unwrap();
    assert_eq!(store.cache_bytes(), budget.min((LAYERS * EXPERTS) as u64 * slot_bytes));
    let flash = store.flash();
    assert_eq!(flash.expert_uses, (60 * LAYERS * USED) as u64);
    drop(store);
    assert_eq!(accountant.used(), 0);
    (flash.expert_hit_rate().unwrap(), flash.reads / flash.expert_misses.max(1))
}

#[test]
fn every_policy_gives_the_bytes_of_the_file() {
    for entry in policy::POLICIES {
        for prefetch in [true, false] {
            for slots in [8, 20, 48] {
                let stream = StreamOptions { policy: entry.name, prefetch, ..StreamOptions::default() };
                let (hits, reads) = run(&stream, slots);
                assert!(reads <= 3, "three stacks, three reads");
                if slots == 48 {
                    assert!(hits > 0.5, "{} {prefetch}: {hits}", entry.name);
                }
            }
        }
    }
}
