//! Instruction sets. Add one: its files, and its line in `build`.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx2_vec;
// Android on x86-64 is emulators and a few tablets: none of these is worth a megabyte in every app.
#[cfg(all(target_arch = "x86_64", not(target_os = "android")))]
mod avx512;
#[cfg(all(target_arch = "x86_64", not(target_os = "android")))]
mod avx512_vec;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(target_arch = "aarch64")]
mod neon_mmla;
#[cfg(target_arch = "aarch64")]
mod neon_vec;
pub(crate) mod scalar;
mod scalar_vec;

use std::sync::OnceLock;

use crate::act::RowOut;
use crate::formats::{self, Format};
use crate::matmul::{Precision, Strip};
use crate::vecops::VecTable;

/// An instruction set that kernels exist for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Isa {
    /// Plain Rust: the oracle.
    Scalar,
    /// AVX2, FMA, F16C.
    Avx2,
    /// AVX-512 F, BW, DQ, VL, VNNI, and GFNI.
    Avx512,
    /// Armv8.0 NEON.
    Neon,
    /// NEON with the dot product instructions of Armv8.2.
    NeonDotprod,
    /// NEON with the 8-bit matrix instructions of Armv8.6.
    NeonI8mm,
}

/// Computes a strip of rows of a product for all tokens.
pub(crate) type StripFn = unsafe fn(&Strip<'_>);

/// Matrix kernels of one instruction set.
pub(crate) struct MatTable {
    /// Rows the kernels work on at a time. Strips begin at multiples of it.
    pub band: usize,
    /// The kernel for a format. Asked once per format, when the table is built.
    pub strip: fn(&'static Format, Precision) -> StripFn,
    /// Quantises a row to 8 bits.
    pub quantise8: unsafe fn(&[f32], &RowOut),
    /// Quantises a row to 16 bits.
    pub quantise16: unsafe fn(&[f32], &RowOut),
}

/// The kernels of one instruction set: a table of functions, built once.
pub struct Kernels {
    isa: Isa,
    pub(crate) mat: &'static MatTable,
    pub(crate) vec: &'static VecTable,
    /// `[format][precision]`
    pub(crate) strips: [[StripFn; 2]; formats::COUNT],
}

impl std::fmt::Debug for Kernels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Kernels").field("isa", &self.isa).finish_non_exhaustive()
    }
}

/// All tables that this machine can run, slowest first.
fn build() -> Vec<Kernels> {
    #[allow(unused_mut)]
    let mut all = vec![Kernels::new(Isa::Scalar, &scalar::TABLE, &scalar_vec::TABLE)];
    #[cfg(target_arch = "x86_64")]
    {
        let avx2 = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        if avx2 {
            all.push(Kernels::new(Isa::Avx2, &avx2::TABLE, &avx2_vec::TABLE));
        }
        #[cfg(not(target_os = "android"))]
        let avx512 = avx2
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni")
            && is_x86_feature_detected!("gfni");
        #[cfg(not(target_os = "android"))]
        if avx512 {
            all.push(Kernels::new(Isa::Avx512, &avx512::TABLE, &avx512_vec::TABLE));
        }
    }
    #[cfg(target_arch = "aarch64")]
    {
        use std::arch::is_aarch64_feature_detected;
        all.push(Kernels::new(Isa::Neon, &neon::BASE, &neon_vec::TABLE));
        let dotprod = is_aarch64_feature_detected!("dotprod");
        if dotprod {
            all.push(Kernels::new(Isa::NeonDotprod, &neon::DOTPROD, &neon_vec::TABLE));
        }
        // Its kernels for one column use `sdot`.
        if dotprod && is_aarch64_feature_detected!("i8mm") {
            all.push(Kernels::new(Isa::NeonI8mm, &neon::I8MM, &neon_vec::TABLE));
        }
    }
    all
}

fn tables() -> &'static [Kernels] {
    static TABLES: OnceLock<Vec<Kernels>> = OnceLock::new();
    TABLES.get_or_init(build)
}

impl Kernels {
    fn new(isa: Isa, mat: &'static MatTable, vec: &'static VecTable) -> Self {
        let strips = std::array::from_fn(|i| {
            let f = &formats::formats()[i];
            [(mat.strip)(f, Precision::Q8), (mat.strip)(f, Precision::Q16)]
        });
        Kernels { isa, mat, vec, strips }
    }

    /// The fastest kernels that this machine can run.
    pub fn detect() -> &'static Kernels {
        let tables = tables();
        &tables[tables.len() - 1]
    }

    /// All kernels that this machine can run, the scalar oracle first and the fastest last.
    pub fn available() -> Vec<&'static Kernels> {
        tables().iter().collect()
    }

    /// The kernels for an instruction set, if this machine has it.
    pub fn by_isa(isa: Isa) -> Option<&'static Kernels> {
        tables().iter().find(|k| k.isa == isa)
    }

    /// The instruction set.
    pub fn isa(&self) -> Isa {
        self.isa
    }
}
