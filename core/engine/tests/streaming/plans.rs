use crate::tiny;
use pannier::Error;
use pannier::kv::{KvCache, KvOptions, KvPolicy, KvTypes};
use pannier::memory::{Accountant, Category};
use pannier::model::ModelOptions;
use pannier::plan::{self, DeviceProfile, Plan, PlanWish};

#[test]
fn a_budget_that_cannot_work_is_refused_with_what_would() {
    let folder = tempfile::tempdir().unwrap();
    let path = tiny::model(folder.path());
    let plan = tiny::plan(&path, 2 << 20);
    assert!(!plan.fits);
    let error = plan.check().unwrap_err();
    let Error::DoesNotFit { plan } = &error else { panic!("{error}") };
    assert!(error.to_string().contains("least budget"), "{error}");
    assert!(!plan.notes.is_empty());
}

#[test]
fn the_least_budget_that_a_refusal_names_fits_and_a_little_less_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = tiny::model(folder.path());
    let (mut low, mut high) = (1u64 << 20, 1u64 << 30);
    while high - low > 4096 {
        let middle = (low + high) / 2;
        if tiny::plan(&path, middle).fits { high = middle } else { low = middle }
    }
    let plan = tiny::plan(&path, high);
    assert!(plan.fits && plan.peak_bytes <= high, "{plan:?}");
    assert!(!plan.residency.mapped && plan.residency.streamed_bytes > 0);
    assert!(tiny::plan(&path, 1 << 30).residency.mapped);
}

/// Fresh keys, which exist for a whole chunk while it is computed, are promised too.
#[test]
fn keys_per_channel_stay_within_what_the_plan_promises() {
    let folder = tempfile::tempdir().unwrap();
    let model = tiny::blueprint(&tiny::model(folder.path()));
    for (types, chunk) in [(KvTypes::Q4_CHANNEL, 16), (KvTypes { edges: 0, ..KvTypes::Q4_CHANNEL }, 100)] {
        let kv = KvOptions { types, ..KvOptions::default() };
        let wish =
            PlanWish { budget: Some(64 << 20), chunk: Some(chunk), threads: 1, kv, ..PlanWish::default() };
        let plan = Plan::new(&model, &DeviceProfile::unknown(), &wish).unwrap();
        let accountant = Accountant::new(Some(plan.kv_bytes));
        let mut cache = KvCache::new(&model.spec().kv(types), kv, &accountant).unwrap();
        let mut seq = cache.new_sequence();
        while seq.len() < model.spec().context {
            let n = chunk.min(model.spec().context - seq.len());
            cache.prepare(&mut seq, n).unwrap();
            cache.commit(&mut seq, n);
        }
        assert_eq!(accountant.peak(), plan.kv_bytes, "{types}");
    }
    // What cannot be done is refused before anything is loaded.
    let gguf = std::sync::Arc::new(pannier_gguf::Gguf::open(folder.path().join("tiny.gguf")).unwrap());
    let kv =
        KvOptions { types: KvTypes::Q4_CHANNEL, policy: KvPolicy::HEAVY_HITTERS, ..KvOptions::default() };
    let refused = plan::prepare(&gguf, &ModelOptions::default(), &PlanWish { kv, ..PlanWish::default() });
    assert!(matches!(refused, Err(Error::Unsupported { .. })));
}

/// Summaries are promised, and a long context costs what is read of it.
#[test]
fn chosen_pages_take_the_memory_of_their_summaries_and_the_time_of_what_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let model = tiny::blueprint(&tiny::model(folder.path()));
    let plan = |policy| {
        let kv = KvOptions { policy, ..KvOptions::default() };
        let wish =
            PlanWish { budget: Some(64 << 20), chunk: Some(32), threads: 1, kv, ..PlanWish::default() };
        (kv, Plan::new(&model, &DeviceProfile::unknown(), &wish).unwrap())
    };
    let (_, all) = plan(KvPolicy::KeepAll);
    let (kv, chosen) = plan(KvPolicy::Pages { tokens: 128 });
    let accountant = Accountant::new(Some(chosen.kv_bytes));
    let mut cache = KvCache::new(&model.spec().kv(kv.types), kv, &accountant).unwrap();
    let mut seq = cache.new_sequence();
    cache.prepare(&mut seq, model.spec().context).unwrap();
    assert_eq!(accountant.peak(), chosen.kv_bytes);
    // Of so short a context the cache is one chunk of about a mebibyte, in which fewer of the longer pages fit: only the exact figure counts.
    assert!(chosen.scratch_bytes > all.scratch_bytes);
    // A summary is a 32nd of a page of keys and values of one length.
    let (near, far) = (chosen.time.attending(128), chosen.time.attending(128 * 100));
    let step = all.time.attending(1);
    let close = |a: f64, b: f64| (a - b).abs() <= 1e-9 * b;
    assert!(close(near, 128.0 * step * (1.0 + 1.0 / 32.0)), "{near} {step}");
    assert!(close(far, 128.0 * step * (1.0 + 100.0 / 32.0)), "{far} {step}");
    assert!(chosen.decode_tok_s_at(4096) > all.decode_tok_s_at(4096));
}

#[test]
fn a_larger_budget_never_reads_more() {
    let folder = tempfile::tempdir().unwrap();
    let path = tiny::model(folder.path());
    let mut before = u64::MAX;
    for budget in (8..16u64).map(|mib| mib << 20) {
        let plan = tiny::plan(&path, budget);
        if plan.fits {
            assert!(plan.peak_bytes <= budget);
            let slack = plan.residency.buffer_bytes;
            assert!(plan.streamed_bytes_per_token <= before.saturating_add(slack), "{budget}");
            before = plan.streamed_bytes_per_token;
        }
    }
    assert!(before < u64::MAX);
}

#[test]
fn what_another_model_reserved_is_not_taken_for_ones_own() {
    let folder = tempfile::tempdir().unwrap();
    let plan = tiny::plan(&tiny::model(folder.path()), 32 << 20);
    let accountant = Accountant::new(Some(256 << 20));
    let other = accountant.reserve(Category::Other, 100 << 20).unwrap();
    let rest = plan.reserve_rest(&accountant, 0).unwrap();
    assert_eq!(rest.bytes(), plan.other_bytes);
    drop(rest);
    // Of its own, a part may be taken already.
    let half = plan.other_bytes / 2;
    assert_eq!(plan.reserve_rest(&accountant, half).unwrap().bytes(), plan.other_bytes - half);
    assert_eq!(plan.reserve_rest(&accountant, 1 << 40).unwrap().bytes(), 0);
    assert_eq!(accountant.used(), other.bytes());
}

#[test]
fn phones_have_plausible_numbers_and_names() {
    let phones: Vec<DeviceProfile> = DeviceProfile::phones().collect();
    assert!(phones.len() >= 12);
    for phone in phones {
        assert!(phone.free < phone.ram && phone.ram >= 6 << 30, "{}", phone.name);
        assert!(phone.flash_bps < phone.dram_bps && phone.decode_bps < phone.dram_bps, "{}", phone.name);
        assert_eq!(DeviceProfile::by_name(&phone.name), Some(phone));
    }
}

#[test]
fn this_machine_can_be_measured() {
    let folder = tempfile::tempdir().unwrap();
    let path = tiny::model(folder.path());
    let device = DeviceProfile::measure(&pannier_kernels::Serial, Some(&tiny::blueprint(&path))).unwrap();
    assert!(
        device.decode_bps > 1e7 && device.dram_bps > 1e8 && device.gflops > 0.1 && device.flash_bps > 1e5,
        "{device:?}"
    );
    assert!(device.attention.iter().all(|rate| rate.bps > 1e6) && !device.attention.is_empty(), "{device:?}");
    assert!((0.0..1e-6).contains(&device.flash_cost_s), "{device:?}");
    let plan = Plan::new(&tiny::blueprint(&path), &device, &PlanWish::default()).unwrap();
    assert!(plan.fits && plan.decode_tok_s > 1.0, "{plan:?}");
}
