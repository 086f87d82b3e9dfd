//! Where the bytes of a vector's rows are: apart, as GGUF has them, or interleaved.
//!
//! ```text
//! apart         row 0: unit, unit, …   row 1: unit, unit, …                a unit is the block of a format (`Unpack::BYTES`)
//! interleaved   16 rows: unit, unit, …                                     each of 16 x BYTES bytes:
//!               bytes 0..4 of row 0, of row 1, … of row 15, bytes 4..8 of row 0, …, then the lone halves of rows 0 to 15
//! ```
//!
//! A unit whose bytes are no multiple of 4 has a half float at one end (`Unpack::LONE_HALF`), which is taken out; the other bytes are its quads.
//! Interleaved rows need no transposition, and are one stream instead of sixteen, which prefetchers follow and which touches fewer pages at a
//! time. Their products have the bits of rows apart: lanes get the same bytes.

use std::marker::PhantomData;

use super::Strip;
use super::simd::{Simd, Unpack};
use super::strip::Band;

/// Rows that lie interleaved.
pub(crate) const INTERLEAVED: usize = 16;

/// The bytes of `V::ROWS` rows, from a unit on.
///
/// # Safety
/// Every function needs a CPU that has the instruction set, and the bytes that it names to be readable in each row. All are `inline(always)`.
#[allow(clippy::missing_safety_doc, reason = "stated once, above")]
pub(crate) trait Source<V: Simd>: Copy {
    /// The rows lie together.
    const ONE_STREAM: bool;
    /// The rows of a band, in both planes.
    unsafe fn of_band(strip: &Strip<'_>, band: &Band) -> (Self, Self);
    /// Goes on by so many bytes of each row, whole units.
    fn advance(&mut self, bytes: usize);
    /// Where the bytes of the unit begin.
    fn first(&self) -> *const u8;

    /// The half float at `offset` of each row.
    unsafe fn rows_half(&self, offset: usize) -> V::F;
    /// 4, 8, 16 bytes at `offset` of each row, four to a vector.
    unsafe fn rows4(&self, offset: usize) -> V::I;
    unsafe fn rows8(&self, offset: usize) -> [V::I; 2];
    unsafe fn rows16(&self, offset: usize) -> [V::I; 4];
    /// 16 or 32 bytes of weights, as [`Simd::weights16`] has them.
    unsafe fn weights16(&self, offset: usize) -> [V::I; 4];
    unsafe fn weights32(&self, offset: usize) -> [V::I; 8];
}

/// Rows apart: `V::ROWS` of them, a fixed distance from each other. `q[i]` is row `4 i`: addresses then need few registers.
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    q: [*const u8; 4],
    stride: usize,
}

impl Rows {
    #[inline(always)]
    pub fn new(first: *const u8, stride: usize) -> Self {
        let at = |i: usize| first.wrapping_add(4 * i * stride);
        Rows { q: [at(0), at(1), at(2), at(3)], stride }
    }

    /// Byte `offset` of row `r`.
    #[inline(always)]
    pub fn at(&self, r: usize, offset: usize) -> *const u8 {
        self.q[r / 4].wrapping_add(r % 4 * self.stride).wrapping_add(offset)
    }
}

// SAFETY of the blocks below: the trait's contract.
#[allow(clippy::undocumented_unsafe_blocks, reason = "stated once, above")]
impl<V: Simd> Source<V> for Rows {
    const ONE_STREAM: bool = false;
    #[inline(always)]
    unsafe fn of_band(s: &Strip<'_>, b: &Band) -> (Rows, Rows) {
        let (low, fine) = s.w.planes_from(b.base);
        (
            Rows::new(low.as_ptr(), b.stride * s.w.row_bytes()),
            Rows::new(fine.as_ptr(), b.stride * s.w.fine_row_bytes()),
        )
    }
    #[inline(always)]
    fn advance(&mut self, bytes: usize) {
        for q in &mut self.q {
            *q = q.wrapping_add(bytes);
        }
    }
    #[inline(always)]
    fn first(&self) -> *const u8 {
        self.q[0]
    }
    #[inline(always)]
    unsafe fn rows_half(&self, offset: usize) -> V::F {
        unsafe { V::rows_half(self, offset) }
    }
    #[inline(always)]
    unsafe fn rows4(&self, offset: usize) -> V::I {
        unsafe { V::rows4(self, offset) }
    }
    #[inline(always)]
    unsafe fn rows8(&self, offset: usize) -> [V::I; 2] {
        unsafe { V::rows8(self, offset) }
    }
    #[inline(always)]
    unsafe fn rows16(&self, offset: usize) -> [V::I; 4] {
        unsafe { V::rows16(self, offset) }
    }
    #[inline(always)]
    unsafe fn weights16(&self, offset: usize) -> [V::I; 4] {
        unsafe { V::weights16(self, offset) }
    }
    #[inline(always)]
    unsafe fn weights32(&self, offset: usize) -> [V::I; 8] {
        unsafe { V::weights32(self, offset) }
    }
}

/// Interleaved rows of format F.
pub(crate) struct Interleaved<F> {
    /// The quads of the first of the rows.
    quads: *const u8,
    /// Its lone half.
    halves: *const u8,
    format: PhantomData<F>,
}

impl<F> Clone for Interleaved<F> {
    #[inline(always)]
    fn clone(&self) -> Self {
        *self
    }
}

impl<F> Copy for Interleaved<F> {}

impl<F: Unpack> Interleaved<F> {
    /// Bytes of a unit that are quads.
    const QUADS: usize = F::BYTES - F::BYTES % 4;
    /// The first of them.
    const FIRST: usize = if matches!(F::LONE_HALF, Some(0)) { 2 } else { 0 };
    const CHECK: () = assert!(match F::LONE_HALF {
        None => F::BYTES % 4 == 0 && F::FINE == 0,
        Some(half) => F::BYTES % 4 == 2 && F::FINE == 0 && (half == 0 || half == F::BYTES - 2),
    });

    /// The quad that begins at `offset`, one of the unit's.
    #[inline(always)]
    unsafe fn quad<V: Simd>(&self, offset: usize) -> V::I {
        debug_assert!((offset - Self::FIRST).is_multiple_of(4) && offset - Self::FIRST < Self::QUADS);
        // SAFETY: the caller's promise; the unit has this quad.
        unsafe { V::load(self.quads.wrapping_add((offset - Self::FIRST) * INTERLEAVED)) }
    }

    /// Any four bytes from an even offset on.
    #[inline(always)]
    unsafe fn four<V: Simd>(&self, offset: usize) -> V::I {
        // SAFETY: the caller's promise; all that is read is in the unit.
        unsafe {
            if offset % 4 == Self::FIRST % 4 {
                return self.quad::<V>(offset);
            }
            let low = if F::LONE_HALF == Some(offset) {
                V::load_words(self.halves)
            } else {
                V::shr(self.quad::<V>(offset - 2), 16)
            };
            let high = if F::LONE_HALF == Some(offset + 2) {
                V::load_words(self.halves)
            } else {
                self.quad::<V>(offset + 2)
            };
            V::or(low, V::shl(high, 16))
        }
    }
}

// SAFETY of the blocks below: the trait's contract.
#[allow(clippy::undocumented_unsafe_blocks, reason = "stated once, above")]
impl<V: Simd, F: Unpack> Source<V> for Interleaved<F> {
    const ONE_STREAM: bool = true;
    #[inline(always)]
    unsafe fn of_band(s: &Strip<'_>, b: &Band) -> (Self, Self) {
        const { Self::CHECK };
        // A matrix of interleaved rows has a multiple of 16, so bands are whole.
        let (of_sixteen, lane) = (b.base - b.base % INTERLEAVED, b.base % INTERLEAVED);
        let unit = s.w.planes_from(of_sixteen).0.as_ptr();
        let source = Interleaved {
            quads: unit.wrapping_add(4 * lane),
            halves: unit.wrapping_add(Self::QUADS * INTERLEAVED + 2 * lane),
            format: PhantomData,
        };
        (source, source)
    }
    #[inline(always)]
    fn advance(&mut self, bytes: usize) {
        self.quads = self.quads.wrapping_add(bytes * INTERLEAVED);
        self.halves = self.halves.wrapping_add(bytes * INTERLEAVED);
    }
    #[inline(always)]
    fn first(&self) -> *const u8 {
        self.quads
    }
    #[inline(always)]
    unsafe fn rows_half(&self, offset: usize) -> V::F {
        unsafe {
            if F::LONE_HALF == Some(offset) {
                return V::load_halves(self.halves);
            }
            V::half(self.four::<V>(offset))
        }
    }
    #[inline(always)]
    unsafe fn rows4(&self, offset: usize) -> V::I {
        unsafe { self.four::<V>(offset) }
    }
    #[inline(always)]
    unsafe fn rows8(&self, offset: usize) -> [V::I; 2] {
        unsafe { [self.four::<V>(offset), self.four::<V>(offset + 4)] }
    }
    #[inline(always)]
    unsafe fn rows16(&self, offset: usize) -> [V::I; 4] {
        let four = |i: usize| unsafe { self.four::<V>(offset + 4 * i) };
        [four(0), four(1), four(2), four(3)]
    }
    #[inline(always)]
    unsafe fn weights16(&self, offset: usize) -> [V::I; 4] {
        unsafe { V::order16(Source::<V>::rows16(self, offset)) }
    }
    #[inline(always)]
    unsafe fn weights32(&self, offset: usize) -> [V::I; 8] {
        unsafe {
            let [a, b, c, d] = Source::<V>::weights16(self, offset);
            let [e, f, g, h] = Source::<V>::weights16(self, offset + 16);
            [a, b, c, d, e, f, g, h]
        }
    }
}

/// Interleaves sixteen rows of units of `unit` bytes, `lone` the place of a half that is no part of a quad. Both slices have the same length.
pub(crate) fn interleave(unit: usize, lone: Option<usize>, rows: &[u8], out: &mut [u8]) {
    each_piece(unit, lone, rows.len() / INTERLEAVED, |row_at, at, len| {
        let row_bytes = rows.len() / INTERLEAVED;
        for r in 0..INTERLEAVED {
            out[at + r * len..][..len].copy_from_slice(&rows[r * row_bytes + row_at..][..len]);
        }
    });
}

/// Row `r` of sixteen interleaved ones.
pub(crate) fn row_of(unit: usize, lone: Option<usize>, sixteen: &[u8], r: usize) -> Vec<u8> {
    let mut row = vec![0; sixteen.len() / INTERLEAVED];
    each_piece(unit, lone, row.len(), |row_at, at, len| {
        row[row_at..][..len].copy_from_slice(&sixteen[at + r * len..][..len]);
    });
    row
}

/// The pieces of a row: where they are in it, where that of row 0 is among sixteen interleaved rows, and their length.
fn each_piece(
    unit: usize,
    lone: Option<usize>,
    row_bytes: usize,
    mut piece: impl FnMut(usize, usize, usize),
) {
    let (quads, first) = (unit - unit % 4, if lone == Some(0) { 2 } else { 0 });
    for start in (0..row_bytes).step_by(unit) {
        for at in (0..quads).step_by(4) {
            piece(start + first + at, (start + at) * INTERLEAVED, 4);
        }
        if let Some(lone) = lone {
            piece(start + lone, (start + quads) * INTERLEAVED, 2);
        }
    }
}
