//! The table of kernels of each instruction set: the one place for choice.

use crate::attention::{self, Scores, Weigh};
use crate::isa::{self, Isa};
use crate::lanes::{BF16, F16, F32};
use crate::matmul::Columns;
use crate::packed::activations::Rounded;
use crate::packed::layout::Kind;
use crate::packed::tile::TILE_ROWS;
use crate::packed::{self, TileProduct};
use crate::{elementwise, limits, matmul, norm, rope};
use std::mem::MaybeUninit;
use std::ops::Range;

/// The kernels of one instruction set. It can only be had for an instruction set of this machine.
pub struct Kernels {
    isa: Isa,
    table: Table,
}

impl Kernels {
    /// The kernels of `isa`, if this machine has it.
    pub fn of(isa: Isa) -> Option<&'static Kernels> {
        if !Isa::available().contains(&isa) {
            return None;
        }
        let table = match isa {
            Isa::Scalar => const { &plain::TABLE },
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => const { &avx2::TABLE },
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => const { &avx512::TABLE },
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Bf16 => const { &avx512bf16::TABLE },
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => const { &amx::TABLE },
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => const { &neon::TABLE },
            #[cfg(target_arch = "aarch64")]
            Isa::I8mm => const { &i8mm::TABLE },
            #[allow(unreachable_patterns, reason = "the instruction sets of other machines")]
            _ => return None,
        };
        Some(table)
    }

    /// The kernels of the fastest instruction set of this machine.
    pub fn best() -> &'static Kernels {
        Self::of(Isa::best()).unwrap_or(const { &plain::TABLE })
    }

    /// The instruction set.
    pub fn isa(&self) -> Isa {
        self.isa
    }
}

/// Instantiates a table of kernels for each instruction set.
///
/// The outer list names an instruction set, the value that proves it, and the features its code is compiled with; the inner
/// list names a kernel, its arguments, and the generic function that it is.
macro_rules! kernels {
    ($sets:tt { $($(#[$doc:meta])* fn $name:ident($($arg:ident: $type:ty),* $(,)?) = $kernel:expr;)* }) => {
        #[derive(Clone, Copy)]
        struct Table {
            $($name: unsafe fn($($type),*),)*
        }

        impl Kernels {
            $($(#[$doc])* pub(crate) fn $name(&self, $($arg: $type),*) {
                // SAFETY: `Kernels::of` gives a table out only where its instruction set was detected.
                unsafe { (self.table.$name)($($arg),*) }
            })*
        }

        kernels!(@sets $sets { $(fn $name($($arg: $type),*) = $kernel;)* });
    };
    (@sets { $($(#[$cfg:meta])* $module:ident: $isa:expr, $proof:expr $(, $features:literal)?;)* } $list:tt) => {
        $($(#[$cfg])* kernels!(@set $module, $isa, $proof, ($($features)?), $list);)*
    };
    (@set $module:ident, $isa:expr, $proof:expr, $features:tt, { $(fn $name:ident($($arg:ident: $type:ty),*) = $kernel:expr;)* }) => {
        mod $module {
            use super::*;
            $(kernels!(@shim $features $proof, fn $name($($arg: $type),*) = $kernel);)*
            pub(super) const TABLE: Kernels = Kernels { isa: $isa, table: Table { $($name),* } };
        }
    };
    (@shim () $proof:expr, fn $name:ident($($arg:ident: $type:ty),*) = $kernel:expr) => {
        unsafe fn $name($($arg: $type),*) {
            $kernel($proof, $($arg),*)
        }
    };
    (@shim ($features:literal) $proof:expr, fn $name:ident($($arg:ident: $type:ty),*) = $kernel:expr) => {
        /// # Safety
        /// The machine has the features named.
        #[target_feature(enable = $features)]
        unsafe fn $name($($arg: $type),*) {
            // SAFETY: the caller knows that the machine has the features.
            let lanes = unsafe { $proof };
            $kernel(lanes, $($arg),*)
        }
    };
}

kernels! {
    {
        scalar: Isa::Scalar, isa::Scalar;
        #[cfg(target_arch = "x86_64")]
        avx2: Isa::Avx2, isa::Avx2::assume(), "avx2,fma,f16c";
        #[cfg(target_arch = "x86_64")]
        avx512: Isa::Avx512, isa::Avx512::assume(), "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c";
        #[cfg(target_arch = "aarch64")]
        neon: Isa::Neon, isa::Neon::<false>::assume(), "neon,dotprod";
        #[cfg(target_arch = "aarch64")]
        i8mm: Isa::I8mm, isa::Neon::<true>::assume(), "neon,dotprod,i8mm";
    }
    {
        /// A tile of a product with an f32 weight.
        fn matmul_f32(x: &[f32], w: &[f32], k: usize, out: &mut Columns<'_>) = matmul::wide::<_, F32>;
        /// A tile of a product with an f16 weight.
        fn matmul_f16(x: &[f32], w: &[u16], k: usize, out: &mut Columns<'_>) = matmul::wide::<_, F16>;
        /// A tile of a product with a bf16 weight.
        fn matmul_bf16(x: &[f32], w: &[u16], k: usize, out: &mut Columns<'_>) = matmul::wide::<_, BF16>;
        /// A tile of a product of bf16 with bf16.
        fn matmul_pairs(x: &[u16], w: &[u16], k: usize, out: &mut Columns<'_>) = matmul::pairs;
        /// A block of f16 keys or values as f32.
        fn widen_f16(from: &[u16], to: &mut [f32]) = attention::widen::<_, F16>;
        /// A block of bf16 keys or values as f32.
        fn widen_bf16(from: &[u16], to: &mut [f32]) = attention::widen::<_, BF16>;
        /// A block of 8-bit keys or values as f32.
        fn widen_q8(block: &attention::Rounded<'_>, to: &mut [f32]) = attention::widen_codes;
        /// Scores of a row and some blocks of keys.
        fn scores(scores: &Scores<'_>, weights: &mut [f32]) = attention::scores;
        /// Weights of a row and a chunk from its scores.
        fn soften(weights: &mut [f32], seen: Range<usize>, records: &mut [f32]) = attention::soften;
        /// Weighed values of a row and some blocks.
        fn weigh(weigh: &Weigh<'_>, records: &mut [f32]) = attention::weigh;
        /// The merge of two chunks of attention.
        fn merge(merged: &mut [f32], later: &[f32]) = attention::merge;
        /// Root mean square norm of one row.
        fn rms_norm_row(x: &mut [f32], weight: Option<&[f32]>, eps: f32, scale: f32) = norm::rms_norm;
        /// Rotation of one row of heads.
        fn rotate_row(x: &mut [f32], cos: &[f32], sin: &[f32]) = rope::rotate;
        /// Sum of two rows.
        fn add_row(x: &mut [f32], y: &[f32]) = elementwise::add;
        /// Sigmoid gate of one row.
        fn gate_row(x: &mut [f32], gate: &[f32]) = elementwise::gate;
        /// SwiGLU of one row.
        fn swiglu_row(gate: &mut [f32], up: &[f32]) = elementwise::swiglu;
        /// How products of packed weights like rows.
        fn packed_rows(kind: Kind, rows: &mut packed::Rows) = packed::rows;
        /// Tiles of packed weights and one row.
        fn packed_one(product: &TileProduct<'_>, out: &mut [[f32; TILE_ROWS]]) = packed::product::<_, 1>;
        /// Tiles of packed weights and two rows.
        fn packed_two(product: &TileProduct<'_>, out: &mut [[f32; TILE_ROWS]]) = packed::product::<_, 2>;
        /// Tiles of packed weights and three rows.
        fn packed_three(product: &TileProduct<'_>, out: &mut [[f32; TILE_ROWS]]) = packed::product::<_, 3>;
        /// Tiles of packed weights and four rows.
        fn packed_four(product: &TileProduct<'_>, out: &mut [[f32; TILE_ROWS]]) = packed::product::<_, 4>;
        /// Tiles of packed weights and five rows.
        fn packed_five(product: &TileProduct<'_>, out: &mut [[f32; TILE_ROWS]]) = packed::product::<_, 5>;
        /// Tiles of packed weights and six rows.
        fn packed_six(product: &TileProduct<'_>, out: &mut [[f32; TILE_ROWS]]) = packed::product::<_, 6>;
        /// Tiles of packed weights and seven rows.
        fn packed_seven(product: &TileProduct<'_>, out: &mut [[f32; TILE_ROWS]]) = packed::product::<_, 7>;
        /// Tiles of packed weights and eight rows.
        fn packed_eight(product: &TileProduct<'_>, out: &mut [[f32; TILE_ROWS]]) = packed::product::<_, 8>;
        /// Tiles of packed weights and any number of rows.
        fn packed_any(product: &TileProduct<'_>, out: &mut [[f32; TILE_ROWS]]) = packed::product::<_, { packed::ANY }>;
        /// Up to 256 activations in 8 bits.
        fn round(x: &[f32], to: &mut MaybeUninit<Rounded>) = packed::round;
        /// Multiplier and soft cap of one row.
        fn softcap_row(x: &mut [f32], multiplier: f32, cap: f32) = elementwise::softcap;
        /// The sum of words, read as fast as it goes.
        fn read_words(words: &[[u64; 64]], sum: &mut u64) = limits::read;
        /// As many integer products as a tile of arithmetic has.
        fn multiply_integers(products: &mut u64) = limits::multiply_integers;
        /// As many integer products by matrices as a tile of arithmetic has, or none.
        fn multiply_matrices(products: &mut u64) = limits::no_matrices;
        /// As many float products as a tile of arithmetic has.
        fn multiply_floats(products: &mut u64) = limits::multiply_floats;
    }
}

/// Plain Rust, with matrices for several rows: so they are tested on every machine.
mod plain {
    use super::*;

    unsafe fn packed_any(product: &TileProduct<'_>, out: &mut [[f32; TILE_ROWS]]) {
        packed::product_by_matrices(isa::Scalar, product, out);
    }

    unsafe fn packed_rows(kind: Kind, rows: &mut packed::Rows) {
        packed::rows_by_matrices(isa::Scalar, kind, rows);
    }

    pub(super) const TABLE: Kernels =
        Kernels { isa: Isa::Scalar, table: Table { packed_any, packed_rows, ..scalar::TABLE.table } };
}

/// AVX-512 with products of bf16: what differs, and otherwise AVX-512.
#[cfg(target_arch = "x86_64")]
mod avx512bf16 {
    use super::*;

    /// # Safety
    /// The machine has the features named.
    #[target_feature(enable = "avx512f,avx512dq,avx512bf16")]
    unsafe fn matmul_pairs(x: &[u16], w: &[u16], k: usize, out: &mut Columns<'_>) {
        // SAFETY: the caller knows that the machine has the features.
        matmul::tile(unsafe { isa::Avx512Bf16::assume() }, x, w, k, out);
    }

    pub(super) const TABLE: Kernels =
        Kernels { isa: Isa::Avx512Bf16, table: Table { matmul_pairs, ..avx512::TABLE.table } };
}

/// AMX: products with more rows than a few, and otherwise AVX-512 with products of bf16.
#[cfg(target_arch = "x86_64")]
mod amx {
    use super::*;

    /// # Safety
    /// The machine has the features named, and AMX, and the system permits its use.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn packed_any(product: &TileProduct<'_>, out: &mut [[f32; TILE_ROWS]]) {
        // SAFETY: the caller knows that the machine has the features.
        packed::product_by_matrices(unsafe { isa::Amx::assume() }, product, out);
    }

    /// # Safety
    /// As [`packed_any`].
    unsafe fn packed_rows(kind: Kind, rows: &mut packed::Rows) {
        // SAFETY: the caller knows that the machine has the features.
        packed::rows_by_matrices(unsafe { isa::Amx::assume() }, kind, rows);
    }

    /// # Safety
    /// As [`packed_any`].
    unsafe fn multiply_matrices(products: &mut u64) {
        // SAFETY: the caller knows that the machine has the features.
        crate::x86_64::amx::probe::multiply(unsafe { isa::Amx::assume() }, products);
    }

    pub(super) const TABLE: Kernels = Kernels {
        isa: Isa::Amx,
        table: Table { packed_any, packed_rows, multiply_matrices, ..avx512bf16::TABLE.table },
    };
}
