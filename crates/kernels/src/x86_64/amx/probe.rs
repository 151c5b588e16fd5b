//! What the tile registers multiply at most.

use crate::isa::Amx;
use crate::limits;
use crate::packed::matrices::{LINES, Lines, MATRIX_ROWS, Matrices};
use crate::packed::tile::LINE;
use std::arch::asm;

/// Products of matrices that are in registers, on four sums that do not wait for each other.
pub fn multiply(amx: Amx, products: &mut u64) {
    let _open = amx.open::<64>(MATRIX_ROWS);
    let bytes = Lines([[5; LINE]; LINES]);
    let rounds = |rounds: u64| {
        // SAFETY: an `Amx` exists only where detection found AMX, and the registers are configured; sixteen lines are readable.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "tileloadd tmm4, [{bytes} + {line}]",
                "tileloadd tmm6, [{bytes} + {line}]",
                "2:",
                "tdpbsud tmm0, tmm4, tmm6",
                "tdpbsud tmm1, tmm4, tmm6",
                "tdpbsud tmm2, tmm4, tmm6",
                "tdpbsud tmm3, tmm4, tmm6",
                "dec {rounds}",
                "jnz 2b",
                rounds = inout(reg) rounds.max(1) => _,
                bytes = in(reg) bytes.0.as_ptr(),
                line = in(reg) LINE,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, out("tmm4") _, out("tmm6") _,
                options(readonly, nostack),
            );
        }
    };
    limits::multiply_matrices(4 * 16 * 16 * 64, rounds, products);
}
