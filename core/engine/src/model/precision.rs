//! How activations are rounded for each kind of product: one table.

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

/// Up to here a model runs with Q16 everywhere.
///
/// Fitted to the golden files, not derived: only models made for tests are so small, and with `DEFAULT` the top-1 agreement of two of
/// them (MXFP4, Q3_K_M) is below the reference engine's. It says nothing about larger models in those formats.
const SMALL: u64 = 16 << 20;

impl PrecisionTable {
    /// What models run with.
    ///
    /// The inputs of these three are not normed (attention output, gated activations) or act on the logits without a norm in between,
    /// so their rounding hurts most: Q16 there takes a third off the error of a token's log-probability. `examples/golden_table`
    /// prints the errors for every choice.
    pub const DEFAULT: PrecisionTable = PrecisionTable {
        qkv: Precision::Q8,
        attention_output: Precision::Q16,
        gate_up: Precision::Q8,
        down: Precision::Q16,
        head: Precision::Q16,
        // Few products, and a rounding error may send a token to another expert.
        router: Precision::Q16,
    };

    /// The table for a model whose matrices have so many bytes.
    pub fn for_weights(bytes: u64) -> PrecisionTable {
        if bytes <= SMALL { Self::all(Precision::Q16) } else { Self::DEFAULT }
    }

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
