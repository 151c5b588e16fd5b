//! Large buffers of zeros.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

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
unsafe impl Zero for i8 {}
// SAFETY: zero bits are 0.
unsafe impl Zero for u8 {}
// SAFETY: zero bits are 0.
unsafe impl Zero for u64 {}

/// A large array that begins as zeros. Pages are taken from the system as they are first written: on Linux huge ones, where it
/// has them, since reading a model page by page of 4 KiB costs a third of the bandwidth on many machines.
pub struct Buffer<T> {
    start: NonNull<T>,
    len: usize,
}

// SAFETY: the buffer owns its elements, like a `Vec`.
unsafe impl<T: Send> Send for Buffer<T> {}
// SAFETY: shared access gives out shared slices only.
unsafe impl<T: Sync> Sync for Buffer<T> {}

impl<T: Zero> Buffer<T> {
    /// `len` zeros, or `None` where the system has no such memory.
    pub fn zeros(len: usize) -> Option<Self> {
        let bytes = len.checked_mul(size_of::<T>()).filter(|&bytes| bytes <= isize::MAX as usize)?;
        if bytes == 0 {
            return Some(Self { start: NonNull::dangling(), len });
        }
        Some(Self { start: system::zeros(bytes)?.cast(), len })
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        let bytes = self.len * size_of::<T>();
        if bytes > 0 {
            // SAFETY: taken in `zeros`, of as many bytes, and not used after this.
            unsafe { system::free(self.start.cast(), bytes) };
        }
    }
}

impl<T> Deref for Buffer<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: `len` elements were allocated, and are valid by the promise of `Zero` and by what was written since.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above; the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<T> AsRef<[T]> for Buffer<T> {
    fn as_ref(&self) -> &[T] {
        self
    }
}

/// Tells the allocator to keep what is freed for the next time. Activations come and go with every layer; given back to the
/// system each time, their pages would have to be cleared and mapped again, a tenth of the time of a prefill.
pub fn reuse_freed() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        const LARGEST: libc::c_int = 32 << 20; // The most that the C library takes.
        // SAFETY: settings of the allocator, which locks by itself.
        unsafe {
            libc::mallopt(libc::M_MMAP_THRESHOLD, LARGEST);
            libc::mallopt(libc::M_TRIM_THRESHOLD, 8 * LARGEST);
        }
    }
}

#[cfg(unix)]
mod system {
    use std::ptr::{NonNull, null_mut};

    /// Of a huge page; what is smaller gains nothing from one.
    const HUGE: usize = 2 << 20;

    /// How much is mapped for `bytes`, so that a huge page's border lies at its beginning.
    fn mapped(bytes: usize) -> Option<usize> {
        if bytes < HUGE { Some(bytes) } else { bytes.checked_next_multiple_of(HUGE) }
    }

    pub fn zeros(bytes: usize) -> Option<NonNull<u8>> {
        let len = mapped(bytes)?;
        let slack = if bytes < HUGE { 0 } else { HUGE };
        let all = len.checked_add(slack)?;
        // SAFETY: a new anonymous mapping takes nothing from anyone.
        let start = unsafe {
            libc::mmap(
                null_mut(),
                all,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return None;
        }
        let start = start.cast::<u8>();
        if slack == 0 {
            return NonNull::new(start);
        }
        let before = start.align_offset(HUGE);
        // SAFETY: both parts given back lie in the mapping made above, before and behind what is kept.
        unsafe {
            let kept = start.add(before);
            if before > 0 {
                libc::munmap(start.cast(), before);
            }
            if slack > before {
                libc::munmap(kept.add(len).cast(), slack - before);
            }
            // Advice: where the system does not take it, pages are small. So are those of the end, since a huge one there would
            // take memory that nobody asked for.
            #[cfg(target_os = "linux")]
            libc::madvise(kept.cast(), bytes / HUGE * HUGE, libc::MADV_HUGEPAGE);
            NonNull::new(kept)
        }
    }

    /// # Safety
    /// `start` is from [`zeros`] of as many bytes, and not used after.
    pub unsafe fn free(start: NonNull<u8>, bytes: usize) {
        if let Some(len) = mapped(bytes) {
            // SAFETY: the caller's promise.
            unsafe { libc::munmap(start.as_ptr().cast(), len) };
        }
    }
}

#[cfg(not(unix))]
mod system {
    use std::alloc::{Layout, alloc_zeroed, dealloc};
    use std::ptr::NonNull;

    pub fn zeros(bytes: usize) -> Option<NonNull<u8>> {
        // SAFETY: the layout is not of size zero.
        NonNull::new(unsafe { alloc_zeroed(Layout::from_size_align(bytes, 64).ok()?) })
    }

    /// # Safety
    /// `start` is from [`zeros`] of as many bytes, and not used after.
    pub unsafe fn free(start: NonNull<u8>, bytes: usize) {
        if let Ok(layout) = Layout::from_size_align(bytes, 64) {
            // SAFETY: the caller's promise.
            unsafe { dealloc(start.as_ptr(), layout) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zeros_are_zero_and_too_many_are_refused() {
        for len in [1, 100_000, 2_000_000, 1 << 20] {
            let mut buffer = Buffer::<f32>::zeros(len).unwrap();
            assert!(buffer.len() == len && buffer.iter().all(|x| x.to_bits() == 0));
            buffer.fill(1.0);
            assert_eq!(buffer[len - 1], 1.0);
        }
        assert!(Buffer::<u16>::zeros(0).is_some_and(|v| v.is_empty()));
        assert!(Buffer::<f32>::zeros(usize::MAX).is_none());
        assert!(Buffer::<u16>::zeros(isize::MAX as usize / 2).is_none());
    }
}
