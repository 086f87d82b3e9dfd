//! How activations are rounded for each kind of product: one table.

use super::spec::ModelSpec;
use pannier_kernels::Precision;

/// What a weight matrix is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Role {
    /// Queries, keys and values.
    Qkv,
    /// Attention output.
    AttentionOutput,
    /// Gate and up of the feed-forward block.
    GateUp,
    /// Down of the feed-forward block.
    Down,
    /// The output head.
    Head,
    /// Which experts a token goes to.
    Router,
}

/// A precision for each role, for quantised weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PrecisionTable {
    /// For [`Role::Qkv`].
    pub qkv: Precision,
    /// For [`Role::AttentionOutput`].
    pub attention_output: Precision,
    /// For [`Role::GateUp`].
    pub gate_up: Precision,
    /// For [`Role::Down`].
    pub down: Precision,
    /// For [`Role::Head`].
    pub head: Precision,
    /// For [`Role::Router`].
    pub router: Precision,
}

impl PrecisionTable {
    /// What a model runs with.
    ///
    /// Where experts take the place of the feed-forward block, attention has a third of the products of a token (Qwen3-30B-A3B) and more, and is not
    /// cheap any longer: with Q16 its products took a fifth of a prompt's time, as much as those of the experts in Q4_K. So Q8 there, which still has less error than the activations that
    /// the field multiplies such weights with.
    pub fn of(spec: &ModelSpec) -> PrecisionTable {
        match spec.moe {
            None => PrecisionTable::DEFAULT,
            Some(_) => PrecisionTable {
                qkv: Precision::Q8,
                attention_output: Precision::Q8,
                ..PrecisionTable::DEFAULT
            },
        }
    }

    /// What dense models run with.
    ///
    /// Q16 wherever it is cheap: products of attention are a tenth of a dense model, the head is computed for sampled rows only, and a
    /// router is tiny, where an error may send a token to another expert. The feed-forward block has nearly all products, so doubling
    /// them there would nearly double prefill. `examples/golden_table --all` prints the errors of every choice: it has three
    /// fifths to three quarters of the error of Q8 everywhere.
    pub const DEFAULT: PrecisionTable = PrecisionTable {
        qkv: Precision::Q16,
        attention_output: Precision::Q16,
        gate_up: Precision::Q8,
        down: Precision::Q8,
        head: Precision::Q16,
        router: Precision::Q16,
    };

    /// The same for all.
    pub const fn all(precision: Precision) -> PrecisionTable {
        PrecisionTable {
            qkv: precision,
            attention_output: precision,
            gate_up: precision,
            down: precision,
            head: precision,
            router: precision,
        }
    }

    /// The precision of a role.
    pub fn get(&self, role: Role) -> Precision {
        match role {
            Role::Qkv => self.qkv,
            Role::AttentionOutput => self.attention_output,
            Role::GateUp => self.gate_up,
            Role::Down => self.down,
            Role::Head => self.head,
            Role::Router => self.router,
        }
    }
}
