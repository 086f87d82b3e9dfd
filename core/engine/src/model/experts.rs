//! The routed feed-forward block, as handles to weights.
//!
//! Its own unit holds the router and the shared expert; every routed expert is a unit of its own, gate, up and down together,
//! so that a store can keep some of them and read others.

use super::blocks::{Ffn, Linear};
use super::builder::{Builder, RouterRef};
use super::precision::Role;
use super::spec::MoeSpec;
use crate::Result;
use crate::residency::{UnitId, UnitKind, VectorRef};

/// A feed-forward block of experts.
#[derive(Debug)]
pub struct Moe {
    /// Where the router and the shared expert are.
    pub unit: UnitId,
    /// Sizes, and the router's rules.
    pub spec: MoeSpec,
    pub(super) layer: usize,
    pub(super) router: Linear,
    /// Added to the probabilities for the choice only.
    pub(super) choice_bias: Option<VectorRef>,
    /// A factor on the result of each expert.
    pub(super) scales: Option<VectorRef>,
    pub(super) experts: Vec<Expert>,
    pub(super) shared: Option<Shared>,
    /// Some gate or up of the block is F16, so the block's input is rounded to halves: for all experts at once, because which of them
    /// are computed together depends on which are in memory.
    pub(super) halves: bool,
}

/// A routed expert.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expert {
    pub unit: UnitId,
    pub gate: Linear,
    pub up: Linear,
    pub down: Linear,
}

/// An expert that every token uses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shared {
    pub ffn: Ffn,
    /// The sigmoid of its product with the token is the weight; without it, the weight is 1.
    pub gate: Option<VectorRef>,
}

impl Moe {
    /// The tensors `ffn_gate_inp` (the router), `ffn_gate_exps`, `ffn_up_exps` (or `ffn_gate_up_exps` with both, gate first) and
    /// `ffn_down_exps`, and their biases where the file has them. In files of early converters each expert has tensors of its
    /// own, `ffn_gate.N` and so on.
    ///
    /// # Errors
    /// See [`Builder::matrix`].
    pub fn load(b: &mut Builder<'_>, layer: usize, embd: usize, spec: MoeSpec) -> Result<Moe> {
        let unit = b.unit(UnitKind::Ffn { layer });
        Moe::load_into(b, unit, layer, embd, spec)
    }

    /// The same with the router in a unit that holds other tensors too.
    ///
    /// # Errors
    /// See [`Builder::matrix`].
    pub fn load_into(
        b: &mut Builder<'_>,
        unit: UnitId,
        layer: usize,
        embd: usize,
        spec: MoeSpec,
    ) -> Result<Moe> {
        let name = |part: &str| format!("blk.{layer}.ffn_{part}");
        let router = Linear::load(b, unit, &name("gate_inp"), spec.experts, embd, Role::Router)?;
        let experts = if b.has(&name("gate.0.weight")) {
            each_alone(b, layer, embd, spec)?
        } else {
            stacked(b, layer, embd, spec)?
        };
        let mut halves = false;
        for expert in &experts {
            halves |= expert.gate.takes_halves(b)? || expert.up.takes_halves(b)?;
        }
        let units = experts.iter().map(|expert| expert.unit).collect();
        b.add_router(RouterRef { layer, unit, router, used: spec.used, experts: units });
        Ok(Moe { unit, spec, layer, router, choice_bias: None, scales: None, experts, shared: None, halves })
    }

    /// With a shared expert of width `ff`: `ffn_gate_shexp`, `ffn_up_shexp`, `ffn_down_shexp`, and its gate `ffn_gate_inp_shexp`
    /// if the file has one.
    ///
    /// # Errors
    /// See [`Builder::matrix`].
    pub fn with_shared(mut self, b: &mut Builder<'_>, embd: usize, ff: usize) -> Result<Moe> {
        let ffn = Ffn::load_into(b, self.unit, (self.layer, "_shexp"), embd, ff)?;
        let gate = b.maybe_vector(&format!("blk.{}.ffn_gate_inp_shexp.weight", self.layer), embd)?;
        self.halves |= ffn.gate.takes_halves(b)? || ffn.up.takes_halves(b)?;
        self.shared = Some(Shared { ffn, gate });
        Ok(self)
    }

    /// With a factor on each expert's result, `ffn_down_exps.scale`, if the file has it.
    ///
    /// # Errors
    /// See [`Builder::vector`].
    pub fn with_scales(mut self, b: &mut Builder<'_>) -> Result<Moe> {
        let name = format!("blk.{}.ffn_down_exps.scale", self.layer);
        self.scales = b.maybe_vector(&name, self.spec.experts)?;
        Ok(self)
    }

    /// With a bias that takes part in the choice but not in the weights: `exp_probs_b`.
    ///
    /// # Errors
    /// See [`Builder::vector`].
    pub fn with_choice_bias(mut self, b: &mut Builder<'_>) -> Result<Moe> {
        let name = format!("blk.{}.exp_probs_b", self.layer);
        // Early converters wrote no suffix.
        let name = if b.has(&name) { name } else { format!("{name}.bias") };
        self.choice_bias = b.maybe_vector(&name, self.spec.experts)?;
        Ok(self)
    }
}

fn stacked(b: &mut Builder<'_>, layer: usize, embd: usize, spec: MoeSpec) -> Result<Vec<Expert>> {
    let MoeSpec { experts, ff, .. } = spec;
    let name = |part: &str, what: &str| format!("blk.{layer}.ffn_{part}_exps.{what}");
    let fused = b.has(&name("gate_up", "weight"));
    let (gate, up) = if fused {
        (b.stack(&name("gate_up", "weight"), 2 * ff, embd, experts)?, None)
    } else {
        let gate = b.stack(&name("gate", "weight"), ff, embd, experts)?;
        (gate, Some(b.stack(&name("up", "weight"), ff, embd, experts)?))
    };
    let down = b.stack(&name("down", "weight"), embd, ff, experts)?;
    let mut bias = |part: &str, len: usize| {
        let name = name(part, "bias");
        if b.has(&name) { b.small(&name, &[len, experts]).map(Some) } else { Ok(None) }
    };
    let gate_bias = if fused { bias("gate_up", 2 * ff)? } else { bias("gate", ff)? };
    let (up_bias, down_bias) = (bias("up", ff)?, bias("down", embd)?);
    (0..experts)
        .map(|expert| {
            let unit = b.unit(UnitKind::Expert { layer, expert });
            let first = b.layer_of(unit, &gate, expert, Role::GateUp)?;
            let at = |bias: Option<VectorRef>, len: usize| bias.map(|bias| (bias, expert * len));
            let (gate, up) = match &up {
                Some(up) => {
                    let up = b.layer_of(unit, up, expert, Role::GateUp)?;
                    (Linear::of(first, ff, at(gate_bias, ff)), Linear::of(up, ff, at(up_bias, ff)))
                }
                None => {
                    let both = Linear::of(first, 2 * ff, at(gate_bias, 2 * ff));
                    (both.part(0, ff), both.part(ff, ff))
                }
            };
            let down = b.layer_of(unit, &down, expert, Role::Down)?;
            let down = Linear::of(down, embd, at(down_bias, embd));
            let [gate, up, down] = [gate, up, down].map(|linear| linear.in_stack(expert, experts));
            Ok(Expert { unit, gate, up, down })
        })
        .collect()
}

fn each_alone(b: &mut Builder<'_>, layer: usize, embd: usize, spec: MoeSpec) -> Result<Vec<Expert>> {
    (0..spec.experts)
        .map(|expert| {
            let unit = b.unit(UnitKind::Expert { layer, expert });
            let name = |part: &str| format!("blk.{layer}.ffn_{part}.{expert}");
            Ok(Expert {
                unit,
                gate: Linear::load(b, unit, &name("gate"), spec.ff, embd, Role::GateUp)?,
                up: Linear::load(b, unit, &name("up"), spec.ff, embd, Role::GateUp)?,
                down: Linear::load(b, unit, &name("down"), embd, spec.ff, Role::Down)?,
            })
        })
        .collect()
}
