//! How much attention each position got: what heavy hitters are chosen by.
//!
//! Watching every query would cost what it is to save. A decoded token is watched if its position is a multiple of 8, and of a prompt
//! only the last 64 queries are: both follow from positions alone, not from how a prompt was cut.
//!
//! What a step adds is kept apart until the next one begins: a step may fail, and tokens that were only guessed may be taken
//! back, which must leave no trace.

use crate::Result;
use crate::memory::{Accountant, Category, Reservation};

/// Of decoded tokens every so many is watched.
pub const WATCH_EVERY: usize = 8;
/// Of a prompt so many of the last queries are.
pub const WATCH_LAST: usize = 64;
/// Steps of more tokens than this are prompts.
pub const SHORT_STEP: usize = 16;

/// Attention that positions of one sequence got, per layer and KV head.
#[derive(Debug)]
pub struct Heat {
    /// KV heads of each layer; 0 for layers that are not evicted.
    heads: Vec<usize>,
    layers: Vec<LayerHeat>,
    /// Queries that were watched.
    queries: f32,
    /// For each slot, how many had been watched before it came; negative for those that survived an eviction.
    born: Vec<f32>,
    /// Positions of the queries whose attention is still apart.
    apart: Vec<usize>,
    /// Working memory: a row of probabilities per query head.
    weights: Vec<f32>,
    query_heads: usize,
    held: Reservation,
    accountant: Accountant,
}

#[derive(Clone, Debug, Default)]
struct LayerHeat {
    /// Per head, a value per slot.
    sum: Vec<Vec<f32>>,
    /// What the last step has added: for each watched query of a short one, all together for a prompt.
    pending: [Vec<Vec<f32>>; QUERIES],
}

/// The most watched queries of a short step.
const QUERIES: usize = SHORT_STEP.div_ceil(WATCH_EVERY);

impl LayerHeat {
    fn all_pending(&mut self) -> impl Iterator<Item = &mut Vec<f32>> {
        self.pending.iter_mut().flatten()
    }

    /// What one query has added counts from now on.
    fn merge(&mut self, query: usize) {
        let Some(pending) = self.pending.get_mut(query) else { return };
        for (sum, pending) in self.sum.iter_mut().zip(pending) {
            for (sum, pending) in sum.iter_mut().zip(&*pending) {
                *sum += pending;
            }
            pending.clear();
        }
    }
}

/// How many earlier queries a survivor's attention counts as.
const CARRIED: f32 = 64.0;

impl Heat {
    /// Of no positions. `heads` are the KV heads of each layer, 0 where nothing is ever evicted; no layer has more than `query_heads`
    /// query heads.
    ///
    /// # Errors
    /// [`crate::Error::OutOfBudget`].
    pub fn new(heads: Vec<usize>, query_heads: usize, accountant: &Accountant) -> Result<Heat> {
        let layers = heads
            .iter()
            .map(|&heads| LayerHeat {
                sum: vec![Vec::new(); heads],
                pending: std::array::from_fn(|_| vec![Vec::new(); heads]),
            })
            .collect();
        let held = accountant.reserve(Category::Kv, 0)?;
        let accountant = accountant.clone();
        Ok(Heat {
            heads,
            layers,
            queries: 0.0,
            born: Vec::new(),
            apart: Vec::new(),
            weights: Vec::new(),
            query_heads,
            held,
            accountant,
        })
    }

    /// A copy.
    ///
    /// # Errors
    /// [`crate::Error::OutOfBudget`].
    pub fn fork(&self) -> Result<Heat> {
        Ok(Heat {
            heads: self.heads.clone(),
            layers: self.layers.clone(),
            queries: self.queries,
            born: self.born.clone(),
            apart: self.apart.clone(),
            weights: Vec::new(),
            query_heads: self.query_heads,
            held: self.accountant.reserve(Category::Kv, self.held.bytes())?,
            accountant: self.accountant.clone(),
        })
    }

    /// The queries of a step that are watched, by index.
    pub fn watched(len: usize, n: usize) -> impl Iterator<Item = usize> + Clone {
        let prompt = n > SHORT_STEP;
        (0..n)
            .filter(move |i| if prompt { i + WATCH_LAST >= n } else { (len + i).is_multiple_of(WATCH_EVERY) })
    }

    /// A step of `n` tokens begins behind `len` tokens in `slots`.
    ///
    /// # Errors
    /// [`crate::Error::OutOfBudget`].
    pub fn begin(&mut self, len: usize, slots: usize, n: usize) -> Result<()> {
        self.settle(len);
        let heads: usize = self.heads.iter().sum();
        let bytes = 4 * ((1 + QUERIES) * heads + self.query_heads + 1) as u64 * (slots + n + 2) as u64;
        if bytes > self.held.bytes() {
            // Half as much again: growing with every token would cost more than the counting.
            let bytes = bytes + bytes / 2;
            self.held.grow(bytes - self.held.bytes())?;
        }
        self.layers.iter_mut().flat_map(LayerHeat::all_pending).for_each(Vec::clear);
        Ok(())
    }

    /// What was apart counts, as far as its queries are among the first `len` tokens.
    fn settle(&mut self, len: usize) {
        for (query, position) in std::mem::take(&mut self.apart).into_iter().enumerate() {
            if position < len {
                self.queries += 1.0;
                self.layers.iter_mut().for_each(|layer| layer.merge(query));
            }
        }
    }

    /// All that the sequence has done counts: it is about to be looked at.
    pub(super) fn settle_all(&mut self) {
        self.settle(usize::MAX);
    }

    /// Where the attention of watched query number `query` of a step of `n` tokens is added (for each KV head of the layer, `slots`
    /// values), and working memory for it.
    pub fn of_layer(
        &mut self,
        layer: usize,
        slots: usize,
        (query, n): (usize, usize),
    ) -> Option<(&mut [Vec<f32>], &mut [f32])> {
        let weights = self.query_heads * (slots + 1);
        if self.weights.len() < weights {
            self.weights.resize(weights, 0.0);
        }
        let query = if n > SHORT_STEP { 0 } else { query };
        let pending = self.layers.get_mut(layer)?.pending.get_mut(query).filter(|heads| !heads.is_empty())?;
        for pending in &mut *pending {
            if pending.len() < slots {
                pending.resize(slots, 0.0);
            }
        }
        Some((pending.as_mut_slice(), self.weights.as_mut_slice()))
    }

    /// The step of `n` tokens behind `len` tokens in `slots` has succeeded. A prompt begins the count anew: its end says best what
    /// matters now.
    pub fn commit(&mut self, len: usize, slots: usize, n: usize) {
        let prompt = n > SHORT_STEP;
        if prompt {
            self.queries = 0.0;
            self.born.iter_mut().for_each(|born| *born = 0.0);
            self.layers.iter_mut().flat_map(|layer| &mut layer.sum).for_each(|sum| sum.fill(0.0));
        }
        self.born.resize(slots, 0.0);
        let mut queries = self.queries;
        let mut watched = Self::watched(len, n).peekable();
        for i in 0..n {
            self.born.push(queries);
            if watched.next_if_eq(&i).is_some() {
                queries += 1.0;
                self.apart.push(len + i);
            }
        }
        for sum in self.layers.iter_mut().flat_map(|layer| &mut layer.sum) {
            sum.resize(slots + n, 0.0);
        }
        if prompt {
            self.queries = queries;
            self.apart.clear();
            self.layers.iter_mut().for_each(|layer| layer.merge(0));
        }
    }

    /// Only the first `len` tokens are left, in `slots`.
    pub fn truncate(&mut self, len: usize, slots: usize) {
        self.settle(len);
        self.born.truncate(slots);
        self.layers.iter_mut().flat_map(|layer| &mut layer.sum).for_each(|sum| sum.truncate(slots));
    }

    /// Attention per watched query that each slot of a head got.
    pub(super) fn rates(&self, layer: usize, head: usize, out: &mut Vec<f32>) {
        out.clear();
        let Some(sum) = self.layers.get(layer).and_then(|layer| layer.sum.get(head)) else { return };
        out.extend(sum.iter().zip(&self.born).map(|(sum, born)| sum / (self.queries - born).max(1.0)));
    }

    /// Of a head's slots only `kept` are left.
    pub(super) fn keep(&mut self, layer: usize, head: usize, rates: &[f32], kept: &[u32]) {
        if let Some(sum) = self.layers.get_mut(layer).and_then(|layer| layer.sum.get_mut(head)) {
            sum.clear();
            sum.extend(kept.iter().map(|&slot| CARRIED * rates.get(slot as usize).copied().unwrap_or(0.0)));
        }
    }

    /// All heads have kept `slots`; their attention counts as that of some earlier queries from now on.
    pub(super) fn kept(&mut self, slots: usize) {
        self.queries = CARRIED;
        self.born.clear();
        self.born.resize(slots, 0.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_queries_are_watched() {
        assert_eq!(Heat::watched(7, 1).count(), 0);
        assert_eq!(Heat::watched(8, 1).collect::<Vec<_>>(), [0]);
        assert_eq!(Heat::watched(30, 16).collect::<Vec<_>>(), [2, 10]);
        assert_eq!(Heat::watched(5, 100).collect::<Vec<_>>(), (36..100).collect::<Vec<_>>());
        assert_eq!(Heat::watched(5, 20).count(), 20);
    }

    #[test]
    fn attention_is_per_query_that_could_look() {
        let accountant = Accountant::new(None);
        let mut heat = Heat::new(vec![1], 1, &accountant).unwrap();
        // Positions 0..=8, one by one: 0 and 8 are watched, and each sees all before it alike.
        let read = |heat: &mut Heat, position: usize| {
            heat.begin(position, position, 1).unwrap();
            if Heat::watched(position, 1).next().is_some() {
                let share = 1.0 / (position + 1) as f32;
                let (heads, _) = heat.of_layer(0, position + 1, (0, 1)).unwrap();
                heads[0].iter_mut().for_each(|sum| *sum += share);
            }
            heat.commit(position, position, 1);
        };
        (0..9).for_each(|position| read(&mut heat, position));
        heat.settle_all();
        let mut rates = Vec::new();
        heat.rates(0, 0, &mut rates);
        let late = 1.0 / 9.0;
        assert_eq!(rates.len(), 9);
        assert!((rates[0] - (1.0 + late) / 2.0).abs() < 1e-6);
        assert!(rates[1..].iter().all(|rate| (rate - late).abs() < 1e-6));
        // A step that fails adds nothing, nor do tokens that are taken back.
        heat.begin(9, 9, 1).unwrap();
        heat.of_layer(0, 10, (0, 1)).unwrap().0[0].fill(9.0);
        (9..16).for_each(|position| read(&mut heat, position));
        heat.begin(16, 16, 4).unwrap();
        heat.of_layer(0, 20, (0, 4)).unwrap().0[0].fill(9.0);
        heat.commit(16, 16, 4);
        heat.truncate(16, 16);
        heat.rates(0, 0, &mut rates);
        assert!(rates.iter().all(|&rate| rate < 1.0) && rates.len() == 16, "{rates:?}");
        // Survivors carry their rates on.
        let all = rates.clone();
        heat.keep(0, 0, &all, &[0, 5]);
        heat.kept(2);
        heat.rates(0, 0, &mut rates);
        assert_eq!(rates, [all[0], all[5]]);
    }
}
