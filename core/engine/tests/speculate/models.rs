//! Real files as models, in memory and streamed.

use pannier::kv::{KvOptions, KvTypes};
use pannier::memory::{Accountant, MemoryProbe, MemoryReading};
use pannier::model::{Blueprint, ModelOptions, Runner, RunnerOptions};
use pannier::pool::Pool;
use pannier::residency::{ResidencyPlan, ResidencyWish, StreamOptions};
use pannier::session::{Completion, GenerationOptions, Model, ModelParts, Session};
use pannier::speculate::{Draft, Proposer, Scripted, Speculation};
use pannier_gguf::Gguf;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

/// Whether to run the long versions.
pub fn full() -> bool {
    std::env::var("PANNIER_TEST").is_ok_and(|value| value == "full")
}

/// A runner; `share`: percent of what copies of all weights would take, or the mapped file.
pub fn runner(path: &Path, share: Option<u64>) -> Runner {
    runner_with(path, share, KvTypes::F16)
}

fn runner_with(path: &Path, share: Option<u64>, types: KvTypes) -> Runner {
    let read = || Blueprint::read(Arc::new(Gguf::open(path).unwrap()), &ModelOptions::default()).unwrap();
    let model = read();
    let plan = |budget| {
        let wish = ResidencyWish { budget, experts_used: model.experts_used() };
        ResidencyPlan::new(model.layout(), &wish).unwrap()
    };
    let all = plan(Some(u64::MAX / 2)).unwrap();
    let residency = match share {
        None => plan(None).unwrap(),
        Some(share) => match plan(Some(all.anonymous_bytes() * share / 100)) {
            Ok(plan) => plan,
            // Tiny models need most of what they have for buffers.
            Err(short) => plan(Some(short.needed)).unwrap(),
        },
    };
    assert_eq!(residency.mapped, share.is_none());
    let accountant = Accountant::new(None);
    let loaded = model.load(residency, &StreamOptions::default(), &accountant).unwrap();
    let kv = KvOptions { types, ..KvOptions::default() };
    let options = RunnerOptions { chunk: 64, kv, ..RunnerOptions::default() };
    Runner::new(Arc::new(loaded), Arc::new(Pool::new(2)), &options, &accountant).unwrap()
}

/// A system with memory to spare, whatever this one has.
pub struct Plenty;

impl MemoryProbe for Plenty {
    fn read(&self) -> pannier::Result<MemoryReading> {
        Ok(MemoryReading { available: 8 << 30, total: 16 << 30, ..MemoryReading::default() })
    }
}

/// A model on token ids, that drafts for itself if asked.
pub fn model(path: &Path, share: Option<u64>, draft: Option<&Path>) -> Arc<Model<Runner>> {
    model_with(path, share, draft, KvTypes::F16)
}

/// [`model`] with these element types, the draft model too.
pub fn model_with(
    path: &Path,
    share: Option<u64>,
    draft: Option<&Path>,
    types: KvTypes,
) -> Arc<Model<Runner>> {
    let draft = draft.map(|draft| Draft::new(runner_with(draft, None, types), 64, None, 0.3));
    let parts = ModelParts::new(runner_with(path, share, types));
    Model::from_parts(ModelParts { draft, prefill_chunk: 64, memory: Arc::new(Plenty), ..parts })
}

pub fn answer(session: &Session, prompt: &[u32], options: GenerationOptions) -> Completion {
    session.generate(prompt, options, &mut |_| ControlFlow::Continue(())).unwrap()
}

/// Guesses of this quality for this text.
pub fn scripted(prompt: &[u32], done: &Completion, vocab: usize, right: f64, seed: u64) -> Speculation {
    let text: Arc<[u32]> = prompt.iter().copied().chain(done.ids()).collect();
    Speculation::Custom(Arc::new(move || -> Box<dyn Proposer> {
        Box::new(Scripted::new(Arc::clone(&text), vocab, right, seed))
    }))
}

/// A prompt that repeats itself here and there.
pub fn prompt(index: usize, vocab: usize) -> Vec<u32> {
    let n = 9 + index * 5 % 23;
    let mut ids: Vec<u32> =
        (0..n).map(|i| ((i * i * 7 + i * (3 + index) + index * 31) % vocab) as u32).collect();
    ids.extend_from_within(n / 3..n / 3 + 5);
    ids
}
