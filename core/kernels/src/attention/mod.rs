//! Attention over KV pages, partition by partition; the score matrix never exists as a whole.
//!
//! What is computed, for the query at position P of one head (this is the order of all operations, on every ISA):
//!
//! ```text
//! q = f16(q)                                           rounded to half precision, like the keys
//! for each partition of 512 positions, ascending, of absolute positions 512 c .. 512 (c + 1):
//!     for each page of 32 positions in it, ascending, with at least one position in first ..= P, that the query reads:
//!         s[t] = dot(q, k[t]) * dk[t] * scale, capped  the sixteen-lane dot; -inf outside first ..= P
//!         m    = max(m, max s)
//!     for each of these pages:
//!         e[t] = exp(s[t] - m)
//!         l    = l + sum e                             lanes t and t + 16 first, then the fixed tree
//!     p[t] = f16(e[t] * (1 / l))                       rounded to half precision
//!     acc  = fma(p[t] * dv[t], v[t], acc) for each t in first ..= P, ascending
//!     merge (m, l, acc) into (M, L, A):  M' = max(M, m), a = exp(M - M'), b = exp(m - M') * l,
//!                                        L = fma(L, a, b), A = fma(A, a, acc * b)
//! with a sink: merge (sink, 1, 0)
//! out = A * (1 / L)
//! ```
//!
//! dk and dv are the scales of int8 keys and values, whose integers k and v are then; other formats have none (`format.rs`). Where keys
//! are rounded per channel of a page, those of the page that P is in are the halves that they are rounded from (`channel.rs`).
//!
//! A query reads all pages, unless a layer is told to read only some: which ones is the head of `choose.rs`.
//!
//! Queries and probabilities are rounded to half precision because the field computes so, with keys and values in half precision: for
//! contexts of one partition the result is the reference engine's up to the order of sums, which golden values hold us to. Probabilities
//! that are relative to their partition stay far from the subnormal halves, however long the context is.
//!
//! Pages and partitions lie at absolute positions, so the bits do not depend on how a prompt was cut into chunks, on how many
//! queries are computed together, or on which thread computes what. Partitions exist so that one decoded token with a long context and
//! few KV heads can use all threads; 512 positions are about 20 us of work,
//! cost 0.4% of memory for the partial results, and the scores of a tile (66 KB) stay in a second-level cache.
//!
//! A *tile* is up to 32 rows, each a (query, head) pair of one KV head, that share every load of K and V. Few rows (decode) read the f16
//! pages directly; many rows (prefill) convert a page once, K transposed, so that lanes are positions and no horizontal sum is needed.

mod channel;
pub(crate) mod channel4;
pub(crate) mod channel8;
mod choose;
mod format;
mod observe;
mod page;
mod quantise;
pub(crate) mod rows;
mod schedule;
mod scratch;
pub(crate) mod stages;
pub(crate) mod summary;
pub(crate) mod work;

pub use channel::FreshKeys;
pub use format::{KvFormat, KvLayout};
pub use observe::ObserveJob;
pub use quantise::hadamard_in_place;
pub use scratch::{AttentionScratch, AttentionShape};

/// Positions in a page. Pages begin at multiples of it.
pub const PAGE_TOKENS: usize = 32;

/// The fewest pages that can be chosen: the first, the newest two, and one of those between.
pub const LEAST_PAGES: usize = choose::LEAST;

/// Positions in a partition of the context.
pub(crate) const PART_TOKENS: usize = 512;

/// The pages that hold a layer's keys and values of one sequence.
///
/// Pages lie in chunks, so that a cache can grow without moving what it has.
#[derive(Clone, Copy, Debug)]
pub struct KvPages<'a> {
    /// Storage of all pages, `chunk_pages` of them in each chunk.
    pub chunks: &'a [Box<[u16]>],
    /// Pages in a chunk.
    pub chunk_pages: usize,
    /// How a page is laid out.
    pub layout: KvLayout,
    /// Distance between pages in a chunk.
    pub page_len: usize,
    /// Entry `i` is the page, counted over all chunks, of positions `32 i .. 32 (i + 1)`.
    pub table: &'a [u32],
    /// Positions below this are gone, and the table entries of pages wholly below it are not looked at.
    pub first_token: usize,
    /// Keys of the newest pages, where keys have scales per channel.
    pub fresh: Option<FreshKeys<'a>>,
    /// A query reads at most so many pages, chosen by their summaries: the layout must have some, the layer no window, and the number be
    /// at least [`LEAST_PAGES`]. `None`: all.
    pub most_pages: Option<usize>,
}

impl<'a> KvPages<'a> {
    /// The page of positions `32 i .. 32 (i + 1)`.
    ///
    /// # Panics
    /// If there is none.
    #[inline]
    pub fn page(&self, i: usize) -> &'a [u16] {
        let page = self.table[i] as usize;
        &self.chunks[page / self.chunk_pages][page % self.chunk_pages * self.page_len..][..self.page_len]
    }
}

/// Queries and what they attend to.
#[derive(Debug)]
pub struct AttentionJob<'a> {
    /// n x heads x k_dim.
    pub q: &'a [f32],
    /// Queries.
    pub n: usize,
    /// Position of query 0. Query `i` attends to positions up to and including `first_pos + i`, all of which are in the pages.
    pub first_pos: usize,
    /// Query heads; heads `g * heads / kv_heads ..` use KV head `g`.
    pub heads: usize,
    /// KV heads.
    pub kv_heads: usize,
    /// Length of a query and a key.
    pub k_dim: usize,
    /// Length of a value.
    pub v_dim: usize,
    /// Keys and values.
    pub kv: KvPages<'a>,
    /// Factor on the scores.
    pub scale: f32,
    /// Scores become `cap * tanh(score / cap)`.
    pub soft_cap: Option<f32>,
    /// Attends only to positions above `position - window`.
    pub window: Option<usize>,
    /// One logit per head that joins the softmax and has no value (gpt-oss).
    pub sinks: Option<&'a [f32]>,
    /// Working memory.
    pub scratch: &'a mut AttentionScratch,
    /// n x heads x v_dim.
    pub out: &'a mut [f32],
}

#[cfg(test)]
mod channel_tests;
#[cfg(test)]
mod choose_tests;
#[cfg(test)]
mod oracle;
#[cfg(test)]
mod test_support;
#[cfg(test)]
mod tests;
