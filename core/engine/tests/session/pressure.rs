//! Memory pressure in the middle of an answer.

use std::ops::ControlFlow;
use std::sync::Arc;

use pannier::memory::{MemoryPressure, MemoryProbe, MemoryReading, ThermalLevel};
use pannier::session::{GenerationEvent, GenerationOptions, Model, ModelParts, Notice, Prompt};

use crate::fake::{Fake, bytes};

fn answering(cache: Option<u64>) -> Fake {
    Fake { cache, ..Fake::answering(1, bytes("a dozen letters")) }
}

/// The text, and notices with how much text there was before them.
fn run(model: &Arc<Model<Fake>>, mut at: impl FnMut(usize)) -> (String, Vec<(usize, Notice)>) {
    let (mut said, mut notices) = (String::new(), Vec::new());
    let completion =
        model.session().generate(Prompt::Tokens(vec![65]), GenerationOptions::greedy(40), &mut |event| {
            match event {
                GenerationEvent::Text { text, .. } => {
                    said.push_str(text);
                    at(said.len());
                }
                GenerationEvent::Notice(notice) => notices.push((said.len(), notice)),
                _ => {}
            }
            ControlFlow::Continue(())
        });
    assert_eq!(completion.unwrap().text, said);
    (said, notices)
}

#[test]
fn pressure_is_told_once_within_one_token_and_changes_no_text() {
    let model = answering(Some(1000)).with_bytes();
    let (said, notices) = run(&model, |len| match len {
        3 => model.on_memory_pressure(MemoryPressure::Moderate),
        6 => model.on_memory_pressure(MemoryPressure::Critical),
        _ => {}
    });
    assert_eq!(said, "a dozen letters");
    let notice = |level, cache_bytes| Notice::MemoryPressure { level, cache_bytes };
    let expected = [(3, notice(MemoryPressure::Moderate, 500)), (6, notice(MemoryPressure::Critical, 0))];
    assert_eq!(notices, expected);
    // Nothing that could shrink, nothing to tell.
    let model = answering(None).with_bytes();
    let (_, notices) = run(&model, |_| model.on_memory_pressure(MemoryPressure::Critical));
    assert!(notices.is_empty(), "{notices:?}");
}

#[test]
fn heat_is_told_once_within_one_token_and_changes_no_text() {
    let model = answering(None).with_bytes();
    let (said, notices) = run(&model, |len| match len {
        2 => model.on_thermal(ThermalLevel::Critical),
        5 => model.on_thermal(ThermalLevel::Nominal),
        _ => {}
    });
    assert_eq!(said, "a dozen letters");
    let notice = |level, threads| Notice::Heat { level, threads };
    assert_eq!(notices, [(2, notice(ThermalLevel::Critical, 1)), (5, notice(ThermalLevel::Nominal, 8))]);
    // It stays as it is told, over generations.
    model.on_thermal(ThermalLevel::Serious);
    assert_eq!(run(&model, |_| {}).1, [(0, notice(ThermalLevel::Serious, 4))]);
    assert_eq!(run(&model, |_| {}).1, []);
}

/// A system that has little memory left.
struct Scarce;

impl MemoryProbe for Scarce {
    fn read(&self) -> pannier::Result<MemoryReading> {
        Ok(MemoryReading { available: 200 << 20, total: 8 << 30, ..MemoryReading::default() })
    }
}

#[test]
fn scarce_memory_is_seen_without_being_told() {
    let parts = ModelParts { memory: Arc::new(Scarce), ..answering(Some(1000)).parts() };
    let (said, notices) = run(&Model::from_parts(parts), |_| {});
    assert_eq!(said, "a dozen letters");
    assert_eq!(notices, [(0, Notice::MemoryPressure { level: MemoryPressure::Critical, cache_bytes: 0 })]);
}
