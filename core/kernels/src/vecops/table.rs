//! The list of vector operations: one line each, from which the table type and the table of every ISA are made.

/// Hands the list to another macro: `name: path = (arguments) -> result`. The function at `path` takes the lanes as its first argument.
macro_rules! vec_ops {
    ($then:path { $($pre:tt)* }) => {
        $then! { ($($pre)*)
            rms_norm: $crate::vecops::norm::rms_norm = (x: &mut [f32], weight: Option<&[f32]>, eps: f32, d: usize) -> ();
            layer_norm: $crate::vecops::norm::layer_norm
                = (x: &mut [f32], weight: Option<&[f32]>, bias: Option<&[f32]>, eps: f32, d: usize) -> ();
            l2_norm: $crate::vecops::norm::l2_norm = (x: &mut [f32], eps: f32, d: usize) -> ();
            dot: $crate::vecops::norm::dot = (a: &[f32], b: &[f32]) -> f32;
            softmax: $crate::vecops::norm::softmax = (x: &mut [f32]) -> ();
            log_sum_exp: $crate::vecops::norm::log_sum_exp = (x: &[f32]) -> f64;
            silu_mul: $crate::vecops::elementwise::silu_mul = (gate: &mut [f32], up: &[f32]) -> ();
            gelu_mul: $crate::vecops::elementwise::gelu_mul = (gate: &mut [f32], up: &[f32]) -> ();
            swiglu_oai: $crate::vecops::elementwise::swiglu_oai
                = (gate: &mut [f32], up: &[f32], alpha: f32, limit: f32) -> ();
            add: $crate::vecops::elementwise::add = (x: &mut [f32], y: &[f32]) -> ();
            mul: $crate::vecops::elementwise::mul = (x: &mut [f32], y: &[f32]) -> ();
            add_scaled: $crate::vecops::elementwise::add_scaled = (x: &mut [f32], y: &[f32], factor: f32) -> ();
            scale: $crate::vecops::elementwise::scale = (x: &mut [f32], factor: f32) -> ();
            soft_cap: $crate::vecops::elementwise::soft_cap = (x: &mut [f32], cap: f32) -> ();
            sigmoid: $crate::vecops::elementwise::sigmoid = (x: &mut [f32]) -> ();
            silu: $crate::vecops::elementwise::silu = (x: &mut [f32]) -> ();
            gelu: $crate::vecops::elementwise::gelu = (x: &mut [f32]) -> ();
            exp: $crate::vecops::elementwise::exp = (x: &mut [f32]) -> ();
            argmax: $crate::vecops::select::argmax = (x: &[f32]) -> Option<usize>;
            top_k: $crate::vecops::select::top_k = (x: &[f32], k: usize, out: &mut Vec<(u32, f32)>) -> ();
            to_f16: $crate::vecops::half::to_f16 = (x: &[f32], out: &mut [u16]) -> ();
            from_f16: $crate::vecops::half::from_f16 = (x: &[u16], out: &mut [f32]) -> ();
            round_f16: $crate::vecops::half::round_f16 = (x: &mut [f32]) -> ();
            conv: $crate::recurrent::steps::conv = (out: &mut [f32], taps: &[&[f32]], weight: &[f32]) -> ();
            delta: $crate::recurrent::steps::delta
                = (state: &mut [f32], step: &$crate::recurrent::steps::Step<'_>, out: &mut [f32]) -> ();
            rope_heads: $crate::rope::rotate::heads = (x: &mut [f32], head_dim: usize, turn: $crate::rope::Turn<'_>) -> ();
            scores_f16: $crate::attention::stages::scores_f16 = (
                block: &$crate::attention::stages::Block<'_, $crate::attention::rows::F16Rows<'_>>,
                work: &mut $crate::attention::work::Work<'_>
            ) -> ();
            scores_q8: $crate::attention::stages::scores_q8 = (
                block: &$crate::attention::stages::Block<'_, $crate::attention::rows::Q8Rows<'_>>,
                work: &mut $crate::attention::work::Work<'_>
            ) -> ();
            scores_q4: $crate::attention::stages::scores_q4 = (
                block: &$crate::attention::stages::Block<'_, $crate::attention::rows::Q4Rows<'_>>,
                work: &mut $crate::attention::work::Work<'_>
            ) -> ();
            scores_q4_channel: $crate::attention::stages::scores_q4_channel = (
                block: &$crate::attention::stages::Block<'_, $crate::attention::channel4::Channel4Rows<'_>>,
                work: &mut $crate::attention::work::Work<'_>
            ) -> ();
            scores_q8_channel: $crate::attention::stages::scores_q8_channel = (
                block: &$crate::attention::stages::Block<'_, $crate::attention::channel8::Channel8Rows<'_>>,
                work: &mut $crate::attention::work::Work<'_>
            ) -> ();
            scores_f32: $crate::attention::stages::scores_f32
                = (row: usize, work: &mut $crate::attention::work::Work<'_>) -> ();
            scale_scores: $crate::attention::stages::scale_scores = (
                scores: $crate::attention::stages::Scores<'_>,
                slots: &std::ops::Range<usize>,
                row: usize,
                work: &mut $crate::attention::work::Work<'_>
            ) -> ();
            soften: $crate::attention::stages::soften
                = (pages: u16, row: usize, work: &mut $crate::attention::work::Work<'_>) -> ();
            values_f16: $crate::attention::stages::values_f16 = (
                block: &$crate::attention::stages::Block<'_, $crate::attention::rows::F16Rows<'_>>,
                work: &mut $crate::attention::work::Work<'_>
            ) -> ();
            values_q8: $crate::attention::stages::values_q8 = (
                block: &$crate::attention::stages::Block<'_, $crate::attention::rows::Q8Rows<'_>>,
                work: &mut $crate::attention::work::Work<'_>
            ) -> ();
            values_q4: $crate::attention::stages::values_q4 = (
                block: &$crate::attention::stages::Block<'_, $crate::attention::rows::Q4Rows<'_>>,
                work: &mut $crate::attention::work::Work<'_>
            ) -> ();
            fold_factors: $crate::attention::stages::fold_factors = (
                factors: &[u16; $crate::PAGE_TOKENS],
                row: usize,
                work: &mut $crate::attention::work::Work<'_>
            ) -> ();
            values_f32: $crate::attention::stages::values_f32
                = (block: &$crate::attention::stages::Block<'_, ()>, work: &mut $crate::attention::work::Work<'_>) -> ();
            convert_keys: $crate::attention::stages::convert_keys = (
                keys: $crate::attention::rows::F16Rows<'_>,
                next: $crate::attention::rows::F16Rows<'_>,
                work: &mut $crate::attention::work::Work<'_>
            ) -> ();
            convert_values: $crate::attention::stages::convert_values = (
                values: $crate::attention::rows::F16Rows<'_>,
                next: $crate::attention::rows::F16Rows<'_>,
                work: &mut $crate::attention::work::Work<'_>
            ) -> ();
            convert_keys_q8: $crate::attention::stages::convert_keys_q8 = (
                keys: $crate::attention::rows::Q8Rows<'_>,
                next: $crate::attention::rows::Q8Rows<'_>,
                work: &mut $crate::attention::work::Work<'_>
            ) -> ();
            convert_keys_q4: $crate::attention::stages::convert_keys_q4 = (
                keys: $crate::attention::rows::Q4Rows<'_>,
                next: $crate::attention::rows::Q4Rows<'_>,
                work: &mut $crate::attention::work::Work<'_>
            ) -> ();
            convert_keys_q4_channel: $crate::attention::stages::convert_keys_q4_channel = (
                keys: $crate::attention::channel4::Channel4Rows<'_>,
                next: $crate::attention::channel4::Channel4Rows<'_>,
                work: &mut $crate::attention::work::Work<'_>
            ) -> ();
            convert_keys_q8_channel: $crate::attention::stages::convert_keys_q8_channel = (
                keys: $crate::attention::channel8::Channel8Rows<'_>,
                next: $crate::attention::channel8::Channel8Rows<'_>,
                work: &mut $crate::attention::work::Work<'_>
            ) -> ();
            convert_values_q8: $crate::attention::stages::convert_values_q8 = (
                values: $crate::attention::rows::Q8Rows<'_>,
                next: $crate::attention::rows::Q8Rows<'_>,
                work: &mut $crate::attention::work::Work<'_>
            ) -> ();
            convert_values_q4: $crate::attention::stages::convert_values_q4 = (
                values: $crate::attention::rows::Q4Rows<'_>,
                next: $crate::attention::rows::Q4Rows<'_>,
                work: &mut $crate::attention::work::Work<'_>
            ) -> ();
            page_bounds: $crate::attention::summary::page_bounds
                = (q: (&[f32], usize), pages: &$crate::attention::summary::Summaries<'_>, out: &mut [f32], stride: usize) -> ();
            merge: $crate::attention::stages::merge = (
                into: &mut $crate::attention::work::State<'_>,
                from: &$crate::attention::work::State<'_>
            ) -> ();
        }
    };
}
pub(crate) use vec_ops;

macro_rules! define_table {
    (() $($name:ident: $path:path = ($($arg:ident: $ty:ty),*) -> $ret:ty;)*) => {
        /// One function pointer per vector operation; each instruction set fills one table.
        ///
        /// Calling an entry is sound on a CPU that has the instruction set of the table.
        pub(crate) struct VecTable {
            $(pub $name: unsafe fn($($ty),*) -> $ret,)*
        }
    };
}
vec_ops!(define_table {});

/// `static TABLE` for one implementation of [`Lanes`](crate::math::Lanes); the attribute enables its target features in every entry.
macro_rules! fill_table {
    ($lanes:ty $(, #[$feature:meta])*) => {
        $crate::vecops::vec_ops!($crate::vecops::fill_entries { $lanes, [$(#[$feature])*] });
    };
}
pub(crate) use fill_table;

macro_rules! fill_entries {
    (($lanes:ty, $features:tt) $($name:ident: $path:path = ($($arg:ident: $ty:ty),*) -> $ret:ty;)*) => {
        pub(crate) static TABLE: $crate::vecops::VecTable = $crate::vecops::VecTable {
            $($name: $crate::vecops::entry!($features $lanes, $name: $path, ($($arg: $ty),*) -> $ret),)*
        };
    };
}
pub(crate) use fill_entries;

/// The generic function at `path`, compiled for one instruction set, under a name that profilers show.
macro_rules! entry {
    ([$(#[$feature:meta])*] $lanes:ty, $name:ident: $path:path, ($($arg:ident: $ty:ty),*) -> $ret:ty) => {{
        $(#[$feature])*
        unsafe fn $name($($arg: $ty),*) -> $ret {
            // SAFETY: whoever calls an entry of this table vouches for the instruction set.
            let lanes = unsafe { <$lanes as $crate::math::Lanes>::assume() };
            $path(lanes, $($arg),*)
        }
        $name
    }};
}
pub(crate) use entry;
