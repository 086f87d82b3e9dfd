//! Recorded routing: which experts a model chose, token by token. Read and written as CSV, in the form that the field's
//! recorders use, so that traces can be exchanged:
//!
//! ```text
//! # model=… arch=qwen3moe n_layer=48 n_expert=128 n_expert_used=6
//! # layer=0 expert_bytes=3059712 dense_bytes=11953152
//! turn,phase,step,layer,slot,expert,weight,residency,expert_bytes
//! 0,0,0,0,0,49,0.221297,0,3059712
//! ```
//!
//! Phase 0 is prefill, 1 decode. Ours add, as comments that others skip, what the router gave the chosen experts and those that came near:
//!
//! ```text
//! # near layer=0 7:0.031 99:0.029 …
//! ```

use std::fmt::Write as _;

/// Why a trace cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the trace: {what}")]
pub struct TraceError {
    /// The line, from 1; 0 for the whole.
    pub line: usize,
    /// What is wrong with it.
    pub what: String,
}

/// A recorded run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RouteTrace {
    /// The model's architecture, if it was recorded.
    pub arch: String,
    /// Layers with experts.
    pub layers: usize,
    /// Experts per layer.
    pub experts: usize,
    /// Experts used per token and layer.
    pub used: usize,
    /// Bytes of one expert, per layer.
    pub expert_bytes: Vec<u64>,
    /// All routing decisions, in order.
    pub visits: Vec<RouteVisit>,
}

/// One token at one layer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RouteVisit {
    /// Counts prompts.
    pub turn: u32,
    /// Whether the token was generated (else read).
    pub decode: bool,
    /// Counts tokens of the phase.
    pub step: u32,
    /// The layer.
    pub layer: usize,
    /// The chosen experts, by falling probability.
    pub chosen: Vec<u16>,
    /// Their weights.
    pub weights: Vec<f32>,
    /// Router probabilities of the chosen experts and of those that came near; empty where they were not recorded.
    pub near: Vec<(u16, f32)>,
}

/// More layers or experts than this no model has; it bounds what a hostile header can make us allocate.
const MAX_LAYERS: usize = 4096;
const MAX_EXPERTS: usize = 1024;

impl RouteTrace {
    /// Reads a trace.
    ///
    /// # Errors
    /// The first line that does not make sense.
    pub fn parse(text: &str) -> Result<RouteTrace, TraceError> {
        let mut trace = RouteTrace::default();
        let mut near: Option<(usize, Vec<(u16, f32)>)> = None;
        for (index, line) in text.lines().enumerate() {
            let fail = |what: String| TraceError { line: index + 1, what };
            let line = line.trim();
            if let Some(comment) = line.strip_prefix('#') {
                match comment.trim().strip_prefix("near ") {
                    Some(rest) => {
                        near = Some(parse_near(rest).ok_or_else(|| fail("bad list of near experts".into()))?)
                    }
                    None => trace.header(comment).map_err(fail)?,
                }
            } else if !line.is_empty() && !line.starts_with("turn,") {
                trace.row(line, &mut near).map_err(fail)?;
            }
        }
        if trace.visits.is_empty() {
            return Err(TraceError { line: 0, what: "it has no routing decisions".into() });
        }
        Ok(trace)
    }

    fn header(&mut self, comment: &str) -> Result<(), String> {
        let mut layer = None;
        for word in comment.split_whitespace() {
            let Some((key, value)) = word.split_once('=') else { continue };
            let number =
                || value.parse::<u64>().map_err(|_| format!("{key} is {value:?}, expected a number"));
            let small = |most: usize| match number()? {
                n if n >= 1 && n <= most as u64 => Ok(n as usize),
                n => Err(format!("{key} is {n}, expected 1 to {most}")),
            };
            match key {
                "arch" => self.arch = value.chars().take(64).collect(),
                "n_layer" => self.layers = small(MAX_LAYERS)?,
                "n_expert" => self.experts = small(MAX_EXPERTS)?,
                "n_expert_used" => self.used = small(MAX_EXPERTS)?,
                "layer" => layer = Some(number()?),
                "expert_bytes" => {
                    if let Some(slot) =
                        layer.and_then(|l| usize::try_from(l).ok()).filter(|&l| l < self.layers)
                    {
                        self.expert_bytes.resize(self.layers, 0);
                        if let Some(bytes) = self.expert_bytes.get_mut(slot) {
                            *bytes = number()?;
                        }
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn row(&mut self, line: &str, near: &mut Option<(usize, Vec<(u16, f32)>)>) -> Result<(), String> {
        let fields: Vec<&str> = line.split(',').collect();
        let field = |index: usize, name: &str| -> Result<u32, String> {
            let text = fields.get(index).ok_or_else(|| format!("the column {name} is missing"))?;
            text.trim().parse().map_err(|_| format!("{name} is {text:?}, expected a number"))
        };
        let (turn, phase, step) = (field(0, "turn")?, field(1, "phase")?, field(2, "step")?);
        let (layer, expert) = (field(3, "layer")? as usize, field(5, "expert")?);
        if self.layers == 0 || self.experts == 0 {
            return Err("n_layer and n_expert must be given before the first row".into());
        }
        if layer >= self.layers || expert as usize >= self.experts {
            return Err(format!("layer {layer}, expert {expert} of {} x {}", self.layers, self.experts));
        }
        let weight: f32 = fields
            .get(6)
            .and_then(|text| text.trim().parse().ok())
            .filter(|weight: &f32| weight.is_finite())
            .ok_or("weight is no number")?;
        let decode = phase == 1;
        let same = self.visits.last().is_some_and(|last| {
            (last.turn, last.decode, last.step, last.layer) == (turn, decode, step, layer)
                && !last.chosen.contains(&(expert as u16))
        });
        if !same {
            let near = near.take().filter(|(at, _)| *at == layer).map(|(_, near)| near).unwrap_or_default();
            self.visits.push(RouteVisit { turn, decode, step, layer, near, ..RouteVisit::default() });
        }
        if let Some(last) = self.visits.last_mut() {
            last.chosen.push(expert as u16);
            last.weights.push(weight);
            self.used = self.used.max(last.chosen.len());
        }
        Ok(())
    }

    /// The trace as text; [`RouteTrace::parse`] gives it back.
    pub fn to_csv(&self) -> String {
        // Writing to a string does not fail.
        let mut out = String::from("# route_trace v1\n");
        let _ = writeln!(
            out,
            "# arch={} n_layer={} n_expert={} n_expert_used={}",
            self.arch, self.layers, self.experts, self.used
        );
        for (layer, bytes) in self.expert_bytes.iter().enumerate() {
            let _ = writeln!(out, "# layer={layer} expert_bytes={bytes}");
        }
        out.push_str("turn,phase,step,layer,slot,expert,weight,residency,expert_bytes\n");
        for visit in &self.visits {
            visit.write(self.expert_bytes.get(visit.layer).copied().unwrap_or(0), &mut out);
        }
        out
    }
}

impl RouteVisit {
    /// Appends the visit's rows, and the line of what came near, if that is known. `bytes` is the size of an expert of the layer.
    pub fn write(&self, bytes: u64, out: &mut String) {
        if !self.near.is_empty() {
            let _ = write!(out, "# near layer={}", self.layer);
            self.near.iter().for_each(|(expert, p)| {
                let _ = write!(out, " {expert}:{p}");
            });
            out.push('\n');
        }
        let RouteVisit { turn, step, layer, .. } = self;
        let phase = u8::from(self.decode);
        for (slot, (expert, weight)) in self.chosen.iter().zip(&self.weights).enumerate() {
            let _ = writeln!(out, "{turn},{phase},{step},{layer},{slot},{expert},{weight},0,{bytes}");
        }
    }
}

fn parse_near(text: &str) -> Option<(usize, Vec<(u16, f32)>)> {
    let mut words = text.split_whitespace();
    let layer = words.next()?.strip_prefix("layer=")?.parse().ok()?;
    let near = words.map(|word| {
        let (expert, p) = word.split_once(':')?;
        Some((expert.parse().ok()?, p.parse().ok().filter(|p: &f32| p.is_finite() && *p >= 0.0)?))
    });
    Some((layer, near.collect::<Option<_>>()?))
}
