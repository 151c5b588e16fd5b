//! [`Matrices`] by the tile registers: sixteen lines of 64 bytes each.
//!
//! The instructions are written as assembly, which needs no feature of the compiler. Registers 0 to 3 take sums, 4 and 5 activations, 6 and 7
//! weights. No other code of this program uses them, and none that is compiled without AMX can.

use crate::isa::{Amx, Avx512};
use crate::packed::activations::Rounded;
use crate::packed::matrices::{Lines, MATRIX_ROWS, Matrices, Matrix, Sums};
use crate::packed::tile::{LINE, TILE_ROWS};
use std::arch::asm;
use std::arch::x86_64::*;
use std::cell::Cell;
use std::marker::PhantomData;

/// What `ldtilecfg` reads.
#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    bytes: [u16; 16],
    rows: [u8; 16],
}

thread_local! {
    /// Rows of activations and inputs that this thread's registers are configured for.
    static CONFIGURED: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

/// This thread's registers were configured. They stay so when it is gone: configuring takes as long as multiplying a block, and Linux gives the
/// registers back where a processor has nothing to do. Every product asks whether they are still configured for what it needs.
#[derive(Debug)]
pub struct Open {
    here: PhantomData<*const ()>,
}

impl Open {
    /// # Panics
    /// If the registers are configured for others.
    #[inline(always)]
    fn check(&self, rows: usize, inputs: usize) {
        if CONFIGURED.get() != (rows, inputs) {
            other(rows, inputs);
        }
    }
}

/// Out of the way of those who check.
#[cold]
#[inline(never)]
fn other(rows: usize, inputs: usize) -> ! {
    panic!("matrices of {rows} rows and {inputs} inputs, where registers are configured for {:?}", CONFIGURED.get())
}

/// Eight inputs of the rows of either half as four of each row, twice.
///
/// # Safety
/// The machine has AVX-512 F.
#[inline(always)]
unsafe fn pair(a: __m512i, b: __m512i) -> [__m512i; 2] {
    // SAFETY: the caller's promise.
    unsafe {
        let (a, b) = (_mm512_castsi512_ps(a), _mm512_castsi512_ps(b));
        let (first, second) = (_mm512_shuffle_ps::<0x88>(a, b), _mm512_shuffle_ps::<0xdd>(a, b));
        [_mm512_castps_si512(first), _mm512_castps_si512(second)]
    }
}

// SAFETY of every block below: an `Amx` exists only where detection found AVX-512 F, BW and AMX; the pointers come from references to
// as much as is read or written.
impl Matrices for Amx {
    type Tile = Avx512;
    type Open = Open;

    const FROM: usize = 9;
    const FROM_PLAIN: usize = 5;

    #[inline(always)]
    fn tile(self) -> Avx512 {
        self.lanes()
    }
    #[inline(always)]
    fn lines(self, codes: [__m512i; 8]) -> [__m512i; 8] {
        let [a, b, c, d, e, f, g, h] = codes;
        // SAFETY: see above.
        unsafe {
            let ([a, b], [c, d], [e, f], [g, h]) = (pair(a, b), pair(c, d), pair(e, f), pair(g, h));
            [a, b, c, d, e, f, g, h]
        }
    }
    #[inline(always)]
    fn times(self, line: __m512i, factor: __m512i) -> [__m512i; 2] {
        // SAFETY: see above.
        unsafe {
            // Neither product of a pair of bytes has more than a byte: 31 * 7.
            let (low, high) = (_mm512_and_si512(factor, _mm512_set1_epi16(7)), _mm512_srli_epi16::<3>(factor));
            [_mm512_mullo_epi16(line, low), _mm512_mullo_epi16(line, high)]
        }
    }
    #[inline(always)]
    fn times_centred(self, line: __m512i, factor: __m512i) -> [__m512i; 2] {
        // SAFETY: see above.
        unsafe {
            let (byte, centre) = (_mm512_set1_epi16(0xff), _mm512_set1_epi16(32));
            let even = _mm512_sub_epi16(_mm512_and_si512(line, byte), centre);
            let odd = _mm512_sub_epi16(_mm512_srli_epi16::<8>(line), centre);
            let (even, odd) = (_mm512_mullo_epi16(even, factor), _mm512_mullo_epi16(odd, factor));
            let low = _mm512_or_si512(_mm512_and_si512(even, byte), _mm512_slli_epi16::<8>(odd));
            let high = _mm512_or_si512(_mm512_srli_epi16::<8>(even), _mm512_andnot_si512(byte, odd));
            [low, high]
        }
    }
    #[inline(always)]
    fn put(self, line: __m512i, to: &mut [u8; LINE]) {
        // SAFETY: see above; 64 bytes are writable.
        unsafe { _mm512_storeu_si512(to.as_mut_ptr().cast(), line) }
    }
    #[inline(always)]
    fn joined<const SHIFT: u32>(self, low: &[i32; TILE_ROWS], high: &[i32; TILE_ROWS]) -> __m512i {
        // SAFETY: see above; 64 bytes of either are readable.
        unsafe {
            let high = _mm512_loadu_si512(high.as_ptr().cast());
            _mm512_add_epi32(_mm512_loadu_si512(low.as_ptr().cast()), _mm512_slli_epi32::<SHIFT>(high))
        }
    }
    #[inline(always)]
    fn int(self, sums: &[i32; TILE_ROWS]) -> __m512i {
        // SAFETY: see above; 64 bytes are readable.
        unsafe { _mm512_loadu_si512(sums.as_ptr().cast()) }
    }
    #[inline(always)]
    fn open<const INPUTS: usize>(self, rows: usize) -> Open {
        const { assert!(INPUTS == 16 || INPUTS == 32 || INPUTS == 64) };
        assert!((1..=MATRIX_ROWS).contains(&rows), "matrices of {rows} rows");
        if CONFIGURED.get() != (rows, INPUTS) {
            let (m, k) = (rows as u8, INPUTS as u16);
            let config = Config {
                palette: 1,
                start_row: 0,
                reserved: [0; 14],
                bytes: [64, 64, 64, 64, k, k, 64, 64, 0, 0, 0, 0, 0, 0, 0, 0],
                rows: [m, m, m, m, m, m, INPUTS as u8 / 4, INPUTS as u8 / 4, 0, 0, 0, 0, 0, 0, 0, 0],
            };
            // SAFETY: see above; the configuration is one of palette 1, sizes being at most 16 rows of 64 bytes.
            unsafe {
                asm!(
                    "ldtilecfg [{}]",
                    in(reg) &config,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                    options(nostack, preserves_flags, readonly),
                );
            }
            CONFIGURED.set((rows, INPUTS));
        }
        Open { here: PhantomData }
    }
}

impl Matrix<Amx> for Open {
    #[inline(always)]
    fn multiply<const SIGNED: bool, const QUARTER: usize>(
        &self,
        x: &[Rounded],
        low: &Lines,
        high: &Lines,
        sums: &mut [Sums; 2],
    ) {
        const { assert!(QUARTER < 4) };
        self.check(x.len(), 64);
        macro_rules! quarter {
            ($before:literal, $high:literal, $after:literal) => {
                // SAFETY: see above. Rows of activations are as many as are configured, and 256 bytes of codes begin each, of which 64 are read; so
                // are sixteen lines of 64 in either array; sums are sixteen lines, of which as many as rows are written. Between quarters
                // registers 0 and 1 keep their sums: only the code of this file uses them.
                unsafe {
                    asm!(
                        $before,
                        "tileloadd tmm4, [{x} + {row}]",
                        "tileloadd tmm6, [{low} + {line}]",
                        "tdpbsud tmm0, tmm4, tmm6",
                        "tileloadd tmm7, [{high} + {line}]",
                        concat!($high, " tmm1, tmm4, tmm7"),
                        $after,
                        x = in(reg) x.as_ptr().cast::<i8>().wrapping_add(64 * QUARTER),
                        row = in(reg) size_of::<Rounded>(),
                        low = in(reg) low.0.as_ptr().wrapping_add(16 * QUARTER),
                        high = in(reg) high.0.as_ptr().wrapping_add(16 * QUARTER),
                        sums = in(reg) sums.as_mut_ptr(),
                        line = in(reg) LINE,
                        out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm6") _, out("tmm7") _,
                        options(nostack, preserves_flags),
                    );
                }
            };
            ($high:literal) => {
                match QUARTER {
                    0 => quarter!("tilezero tmm0\ntilezero tmm1", $high, "/* {sums} */"),
                    1 | 2 => quarter!("", $high, "/* {sums} */"),
                    _ => quarter!(
                        "",
                        $high,
                        "tilestored [{sums} + {line}], tmm0\ntilestored [{sums} + {line} + 1024], tmm1"
                    ),
                }
            };
        }
        if SIGNED { quarter!("tdpbssd") } else { quarter!("tdpbsud") }
    }

    #[inline(always)]
    fn multiply_groups<const GROUP: usize, const QUARTER: usize>(
        &self,
        x: &[Rounded],
        lines: &Lines,
        sums: &mut [Sums],
    ) {
        const { assert!(QUARTER < 4) };
        self.check(x.len(), GROUP.min(64));
        macro_rules! group {
            ($group:expr, $($more:literal),*) => {{
                let group = $group;
                // SAFETY: as above, for GROUP of the 256 codes and as many lines.
                unsafe {
                    asm!(
                        "tilezero tmm0",
                        "tileloadd tmm4, [{x} + {row}]",
                        "tileloadd tmm6, [{lines} + {line}]",
                        "tdpbsud tmm0, tmm4, tmm6",
                        $($more,)*
                        "tilestored [{sums} + {line}], tmm0",
                        x = in(reg) x.as_ptr().cast::<i8>().wrapping_add(GROUP * group),
                        row = in(reg) size_of::<Rounded>(),
                        lines = in(reg) lines.0.as_ptr().wrapping_add(GROUP / 4 * group),
                        sums = in(reg) &mut sums[group],
                        line = in(reg) LINE,
                        out("tmm0") _, out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                        options(nostack, preserves_flags),
                    );
                }
            }};
        }
        match GROUP {
            128 if QUARTER.is_multiple_of(2) => {}
            128 => group!(
                QUARTER / 2,
                "tileloadd tmm5, [{x} + {row} + 64]",
                "tileloadd tmm7, [{lines} + {line} + 1024]",
                "tdpbsud tmm0, tmm5, tmm7"
            ),
            _ => {
                for group in 0..64 / GROUP {
                    group!(64 / GROUP * QUARTER + group,);
                }
            }
        }
    }
}
