//! Prefixes that some sequence has computed, for the next one that begins with the same tokens.
//!
//! ```text
//! node     32 tokens and the pages of all layers that hold them; its parent holds the 32 tokens before
//! hash     of (hash of the parent, the 32 tokens): one look-up per page, and the tokens themselves are compared too
//! root     what stands for the parent of the first page: another number for each view of the weights, whose prefixes are never mixed
//! publish  a sequence's full pages become nodes; the pages are shared, nothing is copied
//! find     the longest path whose tokens a prompt begins with
//! forget   the leaf that was not used for longest; a node that others stand on is never one
//! ```
//!
//! A cache belongs to one loaded model with its element types and rotations, so they need not be in the hash; saved files, which
//! outlive it, carry them (`saved.rs`). Full pages are never written again, so what is shared stays what it was.

use std::any::Any;
use std::collections::HashMap;

use pannier_kernels::PAGE_TOKENS;

/// What a layer with a state had after the tokens of a node.
pub type Checkpoint = Box<dyn Any + Send>;

type Tokens = [u32; PAGE_TOKENS];

#[derive(Debug)]
struct Node {
    hash: u64,
    parent: Option<usize>,
    /// Of what computed the tokens, see [`PrefixCache::root`].
    root: u64,
    tokens: Tokens,
    /// One page of each layer.
    pages: Box<[u32]>,
    checkpoint: Option<Checkpoint>,
    children: usize,
    used: u64,
}

/// A tree of prefixes.
#[derive(Debug, Default)]
pub(super) struct PrefixCache {
    nodes: Vec<Option<Node>>,
    by_hash: HashMap<u64, usize>,
    clock: u64,
    count: usize,
    /// What computes now: prefixes of another are not found.
    pub root: u64,
}

/// FNV-1a over the parent's hash and the tokens. Collisions cost a miss, never a wrong hit.
fn chained(parent: u64, tokens: &Tokens) -> u64 {
    let bytes = parent.to_le_bytes().into_iter().chain(tokens.iter().flat_map(|token| token.to_le_bytes()));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

impl PrefixCache {
    /// Nodes.
    pub fn len(&self) -> usize {
        self.count
    }

    fn node(&self, index: usize) -> Option<&Node> {
        self.nodes.get(index).and_then(Option::as_ref)
    }

    fn node_mut(&mut self, index: usize) -> Option<&mut Node> {
        self.nodes.get_mut(index).and_then(Option::as_mut)
    }

    fn child(&self, parent: Option<usize>, tokens: &Tokens) -> Option<usize> {
        let index = *self.by_hash.get(&self.hash(parent, tokens))?;
        let node = self.node(index)?;
        (node.parent == parent && node.root == self.root && node.tokens == *tokens).then_some(index)
    }

    fn hash(&self, parent: Option<usize>, tokens: &Tokens) -> u64 {
        chained(parent.and_then(|parent| self.node(parent)).map_or(self.root, |node| node.hash), tokens)
    }

    /// The nodes that `tokens` begins with, root first.
    pub fn path(&mut self, tokens: &[u32]) -> Vec<usize> {
        self.clock += 1;
        let clock = self.clock;
        let mut path: Vec<usize> = Vec::new();
        for page in tokens.as_chunks::<PAGE_TOKENS>().0 {
            let Some(next) = self.child(path.last().copied(), page) else { break };
            if let Some(node) = self.node_mut(next) {
                node.used = clock;
            }
            path.push(next);
        }
        path
    }

    /// Whether this node was not forgotten.
    pub fn is_there(&self, index: usize) -> bool {
        self.node(index).is_some()
    }

    /// A node's pages.
    pub fn pages(&self, index: usize) -> &[u32] {
        self.node(index).map_or(&[], |node| &node.pages)
    }

    /// A node's checkpoint.
    pub fn checkpoint(&self, index: usize) -> Option<&(dyn Any + Send)> {
        self.node(index)?.checkpoint.as_deref()
    }

    /// Gives a node a checkpoint, if it has none.
    pub fn set_checkpoint(&mut self, index: usize, checkpoint: Checkpoint) {
        if let Some(node) = self.node_mut(index) {
            node.checkpoint.get_or_insert(checkpoint);
        }
    }

    /// Adds a child that is not there yet; `None` if another node has its hash.
    pub fn add(&mut self, parent: Option<usize>, tokens: &Tokens, pages: Box<[u32]>) -> Option<usize> {
        let hash = self.hash(parent, tokens);
        if self.by_hash.contains_key(&hash) {
            return None;
        }
        let (root, used) = (self.root, self.clock);
        let node = Node { hash, parent, root, tokens: *tokens, pages, checkpoint: None, children: 0, used };
        let index = match self.nodes.iter().position(Option::is_none) {
            Some(index) => index,
            None => {
                self.nodes.push(None);
                self.nodes.len() - 1
            }
        };
        if let Some(slot) = self.nodes.get_mut(index) {
            *slot = Some(node);
        }
        self.by_hash.insert(hash, index);
        self.count += 1;
        if let Some(parent) = parent.and_then(|parent| self.node_mut(parent)) {
            parent.children += 1;
        }
        Some(index)
    }

    /// Takes the leaf out that was not used for longest, and gives its pages.
    pub fn forget_leaf(&mut self) -> Option<Box<[u32]>> {
        let leaf = self
            .nodes
            .iter()
            .enumerate()
            .filter_map(|(index, node)| {
                node.as_ref().filter(|node| node.children == 0).map(|n| (n.used, index))
            })
            .min()
            .map(|(_, index)| index)?;
        let node = self.nodes.get_mut(leaf)?.take()?;
        self.by_hash.remove(&node.hash);
        self.count -= 1;
        if let Some(parent) = node.parent.and_then(|parent| self.node_mut(parent)) {
            parent.children -= 1;
        }
        Some(node.pages)
    }
}
