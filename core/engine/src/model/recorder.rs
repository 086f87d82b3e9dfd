//! Records routing while a model runs, as a trace that policies are judged on.
//!
//! Written as it happens: a long conversation makes hundreds of thousands of rows, which a phone should not hold in memory. The form is
//! that of [`RouteTrace`]; before each row group comes what the router gave the chosen experts and those that came near.

use super::loaded::LoadedModel;
use super::routing::{Route, RouteObserver};
use crate::residency::{RouteTrace, RouteVisit, UnitKind};
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};

/// Of what the least chosen expert got, this share is near: below it, an expert is no likelier than any other to be used next.
const NEAR: f32 = 0.02;

/// Writes every choice of a model's routers to `out`.
pub struct RouteRecorder {
    state: Mutex<State>,
}

struct State {
    out: Box<dyn Write + Send>,
    expert_bytes: Vec<u64>,
    /// The prompt that is being read or answered, and its tokens.
    turn: u32,
    prompt: usize,
    begun: bool,
    visit: RouteVisit,
    line: String,
    failed: Option<io::Error>,
}

impl std::fmt::Debug for RouteRecorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RouteRecorder").finish_non_exhaustive()
    }
}

impl RouteRecorder {
    /// Writes the head of the trace. `None` for a model without experts.
    pub fn new(model: &LoadedModel, out: Box<dyn Write + Send>) -> Option<RouteRecorder> {
        let spec = model.spec();
        let moe = spec.moe?;
        let mut expert_bytes = vec![0u64; spec.layers];
        for unit in model.weights().layout().units() {
            if let UnitKind::Expert { layer, .. } = unit.kind
                && let Some(bytes) = expert_bytes.get_mut(layer)
            {
                *bytes = (*bytes).max(unit.bytes());
            }
        }
        let head = RouteTrace {
            arch: spec.arch.clone(),
            layers: spec.layers,
            experts: moe.experts,
            used: moe.used,
            expert_bytes: expert_bytes.clone(),
            visits: Vec::new(),
        };
        let mut state = State {
            out,
            expert_bytes,
            turn: 0,
            prompt: 0,
            begun: false,
            visit: RouteVisit::default(),
            line: String::new(),
            failed: None,
        };
        state.line = head.to_csv();
        state.flush_line();
        Some(RouteRecorder { state: Mutex::new(state) })
    }

    /// A prompt of so many tokens comes: what is at later positions was generated.
    pub fn begin_turn(&self, prompt_tokens: usize) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.begun {
            state.turn += 1;
        }
        (state.begun, state.prompt) = (true, prompt_tokens);
    }

    /// Ends the trace.
    ///
    /// # Errors
    /// The first failure of the writer.
    pub fn finish(&self) -> io::Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match state.failed.take() {
            Some(error) => Err(error),
            None => state.out.flush(),
        }
    }
}

impl State {
    /// A full disk must not end the answer: it is told at the end.
    fn flush_line(&mut self) {
        if self.failed.is_none()
            && let Err(error) = self.out.write_all(self.line.as_bytes())
        {
            self.failed = Some(error);
        }
        self.line.clear();
    }
}

impl RouteObserver for RouteRecorder {
    fn routed(&self, route: &Route<'_>) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = &mut *state;
        let decode = route.position >= state.prompt;
        let step = if decode { route.position - state.prompt } else { route.position };
        let visit = &mut state.visit;
        (visit.turn, visit.decode, visit.layer) = (state.turn, decode, route.layer);
        visit.step = u32::try_from(step).unwrap_or(u32::MAX);
        visit.chosen.clear();
        visit.chosen.extend_from_slice(route.chosen);
        visit.weights.clear();
        visit.weights.extend_from_slice(route.weights);
        let of = |expert: u16| route.probabilities.get(usize::from(expert)).copied().unwrap_or(0.0);
        let cut = route.chosen.iter().fold(f32::INFINITY, |least, &expert| least.min(of(expert)));
        visit.near.clear();
        let all = (0u16..).zip(route.probabilities).map(|(expert, &p)| (expert, p));
        visit.near.extend(
            all.filter(|&(expert, p)| p.is_finite() && (p >= NEAR * cut || route.chosen.contains(&expert))),
        );
        let bytes = state.expert_bytes.get(route.layer).copied().unwrap_or(0);
        state.visit.write(bytes, &mut state.line);
        state.flush_line();
    }
}
