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

impl Role {
    /// Whether F16 weights of this role multiply with activations rounded to half precision, as the field does it.
    pub fn takes_halves(self) -> bool {
        self != Role::Head
    }
}

/// A precision for each role.
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
    /// What models run with.
    ///
    /// The inputs of these three are not normed (attention output, gated activations) or act on the logits without a norm in between,
    /// so their rounding hurts most: Q16 there nearly halves the error of a token's log-probability, and elsewhere it gains
    /// next to nothing. `examples/golden_table` prints the errors for every choice.
    pub const DEFAULT: PrecisionTable = PrecisionTable {
        qkv: Precision::Q8,
        attention_output: Precision::Q16,
        gate_up: Precision::Q8,
        down: Precision::Q16,
        head: Precision::Q16,
        // Few products, and a rounding error may send a token to another expert.
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

impl Default for PrecisionTable {
    fn default() -> Self {
        Self::DEFAULT
    }
}
