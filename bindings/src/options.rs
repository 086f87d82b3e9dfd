//! What an app may choose between memory, speed and quality: the KV cache, and the precision of weights.

use pannier::session::{Overflow, ViewReason, WeightPrecision};
use pannier::{KvOptions, KvTypes, Speculation, View};

/// One line for each set of element types that apps may choose: its name here, and the engine's.
macro_rules! kv_types {
    ($($(#[$about:meta])* $name:ident = $types:expr;)*) => {
        /// Which element types keys and values have.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, uniffi::Enum)]
        pub enum KvType {
            $($(#[$about])* $name,)*
        }

        const KV_TYPES: &[(KvType, KvTypes)] = &[$((KvType::$name, $types)),*];
    };
}

kv_types! {
    /// Halves: nothing is lost.
    F16 = KvTypes::F16;
    /// Both in 8 bits: about half of the memory.
    Q8 = KvTypes::Q8;
    /// As `Q8`, but keys are rounded per channel of a page: answers are nearer to those of halves. Cannot forget.
    Q8Channel = KvTypes::Q8_CHANNEL;
    /// Keys in 8 bits, values in 4.
    K8V4 = KvTypes::K8V4;
    /// Both in 4 bits, of the first and last layer in 8: about a quarter of the memory.
    Q4 = KvTypes::Q4;
    /// As `Q4`, but keys are rounded per channel of a page: answers are nearer to those of halves. Cannot forget.
    Q4Channel = KvTypes::Q4_CHANNEL;
}

impl KvType {
    fn into_engine(self) -> KvTypes {
        KV_TYPES.iter().find(|(name, _)| *name == self).map(|(_, types)| *types).unwrap_or_default()
    }

    /// `None` for types that apps cannot choose.
    pub(crate) fn convert(types: KvTypes) -> Option<Self> {
        KV_TYPES.iter().find(|(_, known)| *known == types).map(|(name, _)| *name)
    }
}

/// What the KV cache may forget. Counts are positions, which are tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, uniffi::Enum)]
pub enum KvPolicy {
    /// Nothing.
    KeepAll,
    /// All but the last so many.
    Window {
        /// How many.
        recent: u32,
    },
    /// All but the first few and the last so many.
    Sinks {
        /// How many of the first.
        sinks: u32,
        /// How many of the last.
        recent: u32,
    },
    /// All but the first few, the last so many, and those between that got most attention.
    HeavyHitters {
        /// How many of the first.
        sinks: u32,
        /// How many of the last.
        recent: u32,
        /// How many of those between.
        top: u32,
    },
    /// Nothing, but each new token reads only so many others.
    Pages {
        /// How many, in whole pages of 32.
        tokens: u32,
    },
}

impl From<KvPolicy> for pannier::KvPolicy {
    fn from(policy: KvPolicy) -> Self {
        match policy {
            KvPolicy::KeepAll => Self::KeepAll,
            KvPolicy::Window { recent } => Self::Window { recent: recent as usize },
            KvPolicy::Sinks { sinks, recent } => {
                Self::Sinks { sinks: sinks as usize, recent: recent as usize }
            }
            KvPolicy::HeavyHitters { sinks, recent, top } => {
                Self::HeavyHitters { sinks: sinks as usize, recent: recent as usize, top: top as usize }
            }
            KvPolicy::Pages { tokens } => Self::Pages { tokens: tokens as usize },
        }
    }
}

/// When a policy acts by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, uniffi::Enum)]
pub enum EvictWhen {
    /// Only when the app asks, or when memory is critically scarce.
    Asked,
    /// Also whenever a conversation holds this many positions more than the policy keeps.
    Above {
        /// How many more.
        slack: u32,
    },
}

impl From<EvictWhen> for pannier::EvictWhen {
    fn from(when: EvictWhen) -> Self {
        match when {
            EvictWhen::Asked => Self::Asked,
            EvictWhen::Above { slack } => Self::Above(slack as usize),
        }
    }
}

/// The KV cache of a model. What is absent is the engine's default.
#[derive(Debug, Clone, Default, uniffi::Record)]
pub struct KvConfig {
    /// Element types; absent: halves.
    #[uniffi(default = None)]
    pub kv_type: Option<KvType>,
    /// What may be forgotten; absent: nothing.
    #[uniffi(default = None)]
    pub policy: Option<KvPolicy>,
    /// When; absent: when asked.
    #[uniffi(default = None)]
    pub evict: Option<EvictWhen>,
    /// The most bytes for beginnings of prompts that no conversation uses just now; 0 keeps none.
    #[uniffi(default = None)]
    pub prefix_bytes: Option<u64>,
}

impl KvConfig {
    pub(crate) fn options(&self) -> KvOptions {
        let d = KvOptions::default();
        KvOptions {
            types: self.kv_type.map_or(d.types, KvType::into_engine),
            policy: self.policy.map_or(d.policy, Into::into),
            evict: self.evict.map_or(d.evict, Into::into),
            prefix_bytes: self.prefix_bytes.unwrap_or(d.prefix_bytes),
            ..d
        }
    }
}

/// What an eviction did, in each layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, uniffi::Record)]
pub struct EvictionReport {
    /// Positions that are gone.
    pub gone: u64,
    /// Positions that stay.
    pub kept: u64,
}

/// Which view of a file in nested precision is to answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, uniffi::Enum)]
pub enum PrecisionChoice {
    /// The low plane alone.
    Low,
    /// Both planes.
    Full,
    /// Decided for each request.
    Auto,
}

impl From<PrecisionChoice> for WeightPrecision {
    fn from(choice: PrecisionChoice) -> Self {
        match choice {
            PrecisionChoice::Low => Self::Low,
            PrecisionChoice::Full => Self::Full,
            PrecisionChoice::Auto => Self::Auto,
        }
    }
}

/// Which view of the weights has answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, uniffi::Enum)]
pub enum WeightView {
    /// The low plane alone.
    Low,
    /// All there is.
    Full,
}

impl From<View> for WeightView {
    fn from(view: View) -> Self {
        match view {
            View::Low => Self::Low,
            View::Full => Self::Full,
        }
    }
}

/// Why a view was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, uniffi::Enum)]
pub enum WeightViewReason {
    /// The prompt is short.
    ShortPrompt,
    /// The prompt is long.
    LongPrompt,
    /// The low view was sure of its first words.
    Sure,
    /// The low view was unsure of its first words.
    Unsure,
    /// There is no other view.
    OnlyOne,
    /// Something that this version has no word for.
    Other,
}

impl From<ViewReason> for WeightViewReason {
    fn from(reason: ViewReason) -> Self {
        match reason {
            ViewReason::ShortPrompt => Self::ShortPrompt,
            ViewReason::LongPrompt => Self::LongPrompt,
            ViewReason::Sure => Self::Sure,
            ViewReason::Unsure => Self::Unsure,
            ViewReason::OnlyOne => Self::OnlyOne,
            _ => Self::Other,
        }
    }
}

/// Where guessed tokens come from. The answer does not depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, uniffi::Enum)]
pub enum SpeculationChoice {
    /// Nowhere: one token per pass.
    Off,
    /// From whatever there is and pays at the moment.
    Auto,
    /// From earlier text that ended in the same tokens.
    Ngram,
    /// From the draft model that the model was loaded with.
    Draft,
}

impl From<SpeculationChoice> for Speculation {
    fn from(choice: SpeculationChoice) -> Self {
        match choice {
            SpeculationChoice::Off => Self::Off,
            SpeculationChoice::Auto => Self::Auto,
            SpeculationChoice::Ngram => Self::Ngram,
            SpeculationChoice::Draft => Self::Draft,
        }
    }
}

/// What happens when the next turn does not fit into the context.
#[derive(Debug, Clone, Copy, PartialEq, Eq, uniffi::Enum)]
pub enum ContextOverflow {
    /// The turn fails.
    Fail,
    /// The oldest turns leave the history.
    DropOldest {
        /// Tokens that are left for the answer.
        reserve: u32,
    },
}

impl From<ContextOverflow> for Overflow {
    fn from(overflow: ContextOverflow) -> Self {
        match overflow {
            ContextOverflow::Fail => Self::Fail,
            ContextOverflow::DropOldest { reserve } => Self::DropOldest { reserve: reserve as usize },
        }
    }
}
