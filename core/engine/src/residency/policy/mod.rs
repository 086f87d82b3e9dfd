//! Which experts to keep.
//!
//! A policy gives every expert of a layer a score when the layer's router has chosen; the one with the lowest score, weighted
//! by how soon its layer runs again, has to go. Scores change only for the layer that just ran, so the directory keeps one
//! minimum per layer and a miss costs a look at each layer, not at each slot.

mod belady;
mod lfu;
mod lru;
mod next_visit;
mod random;
mod reuse;

pub use belady::Belady;
pub use lfu::Lfu;
pub use lru::Lru;
pub use next_visit::NextVisitLfu;
pub use random::RandomChoice;
pub use reuse::Reuse;

/// How many layers have experts, and how many each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExpertGrid {
    /// Layers with experts.
    pub layers: usize,
    /// Experts per layer.
    pub experts: usize,
}

/// The router of a layer has chosen.
#[derive(Clone, Copy, Debug)]
pub struct Visit<'a> {
    /// The layer, counted among those with experts.
    pub layer: usize,
    /// The chosen experts, each once.
    pub chosen: &'a [u16],
    /// The router's probability of every expert of the layer, where it is known.
    pub probabilities: Option<&'a [f32]>,
}

/// Decides which experts are worth their memory.
pub trait CachePolicy: Send {
    /// The name in options and reports.
    fn name(&self) -> &'static str;

    /// Learns from a visit and updates the scores of that layer's experts (one per expert). A higher score is kept longer.
    fn visit(&mut self, visit: &Visit<'_>, scores: &mut [f64]);

    /// What a score counts when `distance` layers (0 to `layers`) run before its layer does; positive.
    fn nearness(&self, distance: usize, layers: usize) -> f64 {
        let _ = (distance, layers);
        1.0
    }
}

/// In a cyclic pass the experts of the layers about to run are worth more: twice as much as those of the layer that just ran.
fn sooner_is_dearer(distance: usize, layers: usize) -> f64 {
    2.0 - distance as f64 / layers.max(1) as f64
}

/// One policy that can be asked for by name.
pub struct PolicyEntry {
    /// Its name.
    pub name: &'static str,
    /// Makes one.
    pub build: fn(ExpertGrid) -> Box<dyn CachePolicy>,
}

/// The policies that need not know the future; the first is the default.
pub const POLICIES: &[PolicyEntry] = &[
    PolicyEntry { name: "reuse", build: |grid| Box::new(Reuse::new(grid)) },
    PolicyEntry { name: "nextvisit", build: |_| Box::new(NextVisitLfu) },
    PolicyEntry { name: "lfu", build: |_| Box::new(Lfu) },
    PolicyEntry { name: "lru", build: |_| Box::new(Lru::default()) },
    PolicyEntry { name: "random", build: |_| Box::new(RandomChoice::default()) },
];

/// The policy of this name.
pub fn by_name(name: &str, grid: ExpertGrid) -> Option<Box<dyn CachePolicy>> {
    POLICIES.iter().find(|entry| entry.name == name).map(|entry| (entry.build)(grid))
}
