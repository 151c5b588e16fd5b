//! NEON: sixteen lanes are four registers.

mod dot;
pub mod lanes;
pub mod probe;
pub mod tile;

/// Asks for the cache line at `at`, which need not be there.
#[inline(always)]
fn prefetch(at: *const u8) {
    // SAFETY: a hint; it never faults.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{}]", in(reg) at.addr(), options(nomem, nostack, preserves_flags));
    }
}
