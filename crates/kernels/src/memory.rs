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
unsafe impl Zero for i8 {}

/// `len` zeros, or `None` where the system has no such memory. Pages are taken from the system as they are first written.
pub fn zeros<T: Zero>(len: usize) -> Option<Vec<T>> {
    if len == 0 {
        return Some(Vec::new());
    }
    let layout = Layout::array::<T>(len).ok()?;
    // SAFETY: the layout is not of size zero.
    let start = unsafe { alloc_zeroed(layout) }.cast::<T>();
    // SAFETY: allocated just now with the layout of `len` elements, all of which are valid by the trait's promise.
    (!start.is_null()).then(|| unsafe { Vec::from_raw_parts(start, len, len) })
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
