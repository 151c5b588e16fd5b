//! Large buffers of zeros.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Element types for which zero bits are the number zero.
///
/// # Safety
/// Every pattern of bits is a valid value, there is no padding, and the type has no drop glue.
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

/// Bytes of a cache line, on whose borders parts begin.
const LINE: usize = 64;

/// A large array that begins as zeros. Pages are taken from the system as they are first written: on Linux huge ones, where it
/// has them, since reading a model page by page of 4 KiB costs a third of the bandwidth on many machines.
pub struct Buffer<T> {
    start: NonNull<T>,
    len: usize,
    /// What it is a part of, where it has no memory of its own.
    whole: Option<Arc<Buffer<u8>>>,
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
            return Some(Self { start: NonNull::dangling(), len, whole: None });
        }
        Some(Self { start: system::zeros(bytes)?.cast(), len, whole: None })
    }

    /// `len` zeros of an arena, or alone.
    pub fn zeros_in(arena: Option<&Arena>, len: usize) -> Option<Self> {
        match arena {
            Some(arena) => arena.zeros(len),
            None => Self::zeros(len),
        }
    }
}

impl<T> Drop for Buffer<T> {
    fn drop(&mut self) {
        let bytes = self.len * size_of::<T>();
        if bytes > 0 && self.whole.is_none() {
            // SAFETY: taken in `zeros`, of as many bytes, and not used after this.
            unsafe { system::free(self.start.cast(), bytes) };
        }
    }
}

impl<T> Deref for Buffer<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: `len` elements were allocated, and are valid by the promise of `Zero`.
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

/// Bytes as elements of another type.
///
/// # Panics
/// If they do not begin where such an element may, or end within one.
pub fn elements<T: Zero>(bytes: &[u8]) -> &[T] {
    // SAFETY: every pattern of bits is a value, by the promise of `Zero`.
    let (before, elements, behind) = unsafe { bytes.align_to() };
    assert!(before.is_empty() && behind.is_empty(), "{} bytes as elements of {}", bytes.len(), size_of::<T>());
    elements
}

/// The same, to be written.
///
/// # Panics
/// As [`elements`] does.
pub fn elements_mut<T: Zero>(bytes: &mut [u8]) -> &mut [T] {
    // SAFETY: every pattern of bits is a value, of bytes and of elements, by the promise of `Zero`.
    let (before, elements, behind) = unsafe { bytes.align_to_mut() };
    assert!(before.is_empty() && behind.is_empty(), "elements of {} bytes", size_of::<T>());
    elements
}

/// Buffers that come and go together, as the weights of a model do, one behind the other in large ones: alone, each would end in small
/// pages, and one below the size of a huge page have nothing else. The system has a large one again when the last buffer in it is gone.
#[derive(Default)]
pub struct Arena(Mutex<Slab>);

/// A large buffer that is cut into others.
#[derive(Default)]
struct Slab {
    whole: Weak<Buffer<u8>>,
    /// Where the next one begins.
    next: usize,
}

impl Arena {
    /// `len` zeros, or `None` where the system has no such memory.
    pub fn zeros<T: Zero>(&self, len: usize) -> Option<Buffer<T>> {
        /// Large buffers have a multiple of it. Of what is not used, no page is ever taken.
        const SLAB: usize = 256 << 20;
        const { assert!(align_of::<T>() <= LINE) };
        let bytes = len.checked_mul(size_of::<T>())?.checked_next_multiple_of(LINE)?;
        if bytes == 0 {
            return Buffer::zeros(0);
        }
        let mut slab = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let room = slab.whole.upgrade().filter(|whole| bytes <= whole.len - slab.next);
        let (whole, at) = match room {
            Some(whole) => (whole, slab.next),
            None => {
                let large = bytes.checked_next_multiple_of(SLAB).and_then(Buffer::zeros);
                (Arc::new(large.or_else(|| Buffer::zeros(bytes))?), 0)
            }
        };
        *slab = Slab { whole: Arc::downgrade(&whole), next: at + bytes };
        // Not through a slice, which would be of buffers that others own.
        // SAFETY: `bytes` bytes from there on lie in the large buffer, and are given out once.
        let start = unsafe { whole.start.add(at) };
        Some(Buffer { start: start.cast(), len, whole: Some(whole) })
    }
}

/// Blocks of one size that come and go, cut from large buffers, which they share huge pages in. What is given back is kept for
/// the next; the system has it again when the last block and this are gone.
pub struct Blocks(Arc<Kept>);

struct Kept {
    bytes: usize,
    kept: Mutex<Slabs>,
}

#[derive(Default)]
struct Slabs {
    slabs: Vec<Buffer<u8>>,
    /// Where the next block of the last slab begins.
    next: usize,
    /// Blocks that were given back.
    free: Vec<Start>,
}

/// Where a block begins.
struct Start(NonNull<u8>);

// SAFETY: a block is owned by whoever has its start.
unsafe impl Send for Start {}
// SAFETY: nothing is done with a shared start.
unsafe impl Sync for Start {}

/// A block of [`Blocks`], with anything in it.
pub struct Block {
    start: Start,
    from: Arc<Kept>,
}

impl Blocks {
    /// Blocks of so many bytes.
    pub fn new(bytes: usize) -> Self {
        Self(Arc::new(Kept { bytes: bytes.next_multiple_of(LINE), kept: Mutex::default() }))
    }

    /// A block, or `None` where the system has no memory for it.
    pub fn take(&self) -> Option<Block> {
        /// Of the first buffer and of the largest; each is twice as large as the one before it.
        const SLABS: [usize; 2] = [2 << 20, 64 << 20];
        let mut kept = self.0.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let start = match kept.free.pop() {
            Some(start) => start,
            None => {
                if kept.slabs.last().is_none_or(|slab| kept.next + self.0.bytes > slab.len) {
                    let had = kept.slabs.last().map_or(0, |slab| slab.len);
                    let len = (2 * had).clamp(SLABS[0], SLABS[1]).max(self.0.bytes);
                    let slab = Buffer::zeros(len).or_else(|| Buffer::zeros(self.0.bytes))?;
                    kept.slabs.push(slab);
                    kept.next = 0;
                }
                // Not through a slice, which would be of blocks that others own.
                // SAFETY: `next` and a block behind it lie in the buffer.
                let start = Start(unsafe { kept.slabs.last()?.start.add(kept.next) });
                kept.next += self.0.bytes;
                start
            }
        };
        Some(Block { start, from: Arc::clone(&self.0) })
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let start = Start(self.start.0);
        self.from.kept.lock().unwrap_or_else(PoisonError::into_inner).free.push(start);
    }
}

impl Deref for Block {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the block lies in a buffer that `from` keeps, and is given out once until it comes back.
        unsafe { std::slice::from_raw_parts(self.start.0.as_ptr(), self.from.bytes) }
    }
}

impl DerefMut for Block {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start.0.as_ptr(), self.from.bytes) }
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
        NonNull::new(unsafe { alloc_zeroed(Layout::from_size_align(bytes, super::LINE).ok()?) })
    }

    /// # Safety
    /// `start` is from [`zeros`] of as many bytes, and not used after.
    pub unsafe fn free(start: NonNull<u8>, bytes: usize) {
        if let Ok(layout) = Layout::from_size_align(bytes, super::LINE) {
            // SAFETY: the caller's promise.
            unsafe { dealloc(start.as_ptr(), layout) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_apart_and_come_back() {
        let blocks = Blocks::new(700_000);
        let mut some: Vec<Block> = (0..20).map(|_| blocks.take().unwrap()).collect();
        for (i, block) in some.iter_mut().enumerate() {
            block.fill(i as u8);
        }
        assert!(some.iter().enumerate().all(|(i, block)| block.iter().all(|&byte| byte == i as u8)));
        let starts: Vec<*const u8> = some.iter().map(|block| block.as_ptr()).collect();
        drop(some);
        let again: Vec<Block> = (0..20).map(|_| blocks.take().unwrap()).collect();
        assert!(again.iter().all(|block| starts.contains(&block.as_ptr())));
        drop(blocks);
        assert_eq!(again[0].len(), 700_032);
        assert!(Blocks::new(1 << 60).take().is_none());
    }

    #[test]
    fn an_arena_gives_zeros_that_lie_apart_and_takes_none_back() {
        let arena = Arena::default();
        let mut some: Vec<Buffer<u16>> =
            [5, 0, 3 << 20, 200 << 20, 7, 300 << 20].map(|len| arena.zeros(len).unwrap()).into();
        for (i, buffer) in some.iter_mut().enumerate() {
            assert!(buffer.as_ptr().addr().is_multiple_of(LINE) || buffer.is_empty());
            for at in [0, buffer.len() / 2, buffer.len().saturating_sub(1)] {
                if let Some(x) = buffer.get_mut(at) {
                    assert!(*x == 0 || at == 0);
                    *x = i as u16 + 1;
                }
            }
        }
        let ends = |buffer: &Buffer<u16>| [buffer.first().copied(), buffer.last().copied()];
        assert!(some.iter().enumerate().all(|(i, b)| b.is_empty() || ends(b) == [Some(i as u16 + 1); 2]));
        drop(some);
        assert!(arena.0.lock().unwrap().whole.upgrade().is_none(), "nothing is left");
        assert_eq!(arena.zeros::<f32>(3).unwrap()[..], [0.0; 3]);
        assert!(arena.zeros::<u16>(isize::MAX as usize / 2).is_none());
        assert!(arena.zeros::<u16>(usize::MAX).is_none());
    }

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
