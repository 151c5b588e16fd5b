//! Memory of activations, kept for those that come next.

use glimmer_kernels::memory::Buffer;
use std::alloc::{Layout, handle_alloc_error};
use std::collections::VecDeque;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How many elements wait at most: about what a layer of the largest model has at once in a chunk of a long prompt.
const ELEMENTS: usize = 64 << 20;
/// Elements of the smallest buffer, a page.
const SMALLEST: usize = 1024;

/// Buffers that have become free. Each layer needs the sizes that the one before it needed: what it takes from here is in the
/// cache, is not cleared, and costs no call of the system. Buffers have powers of two of elements, of which those not asked for take no memory
/// before they are written, so that there are never more of a size than were needed at once.
#[derive(Clone, Default)]
pub(super) struct Stock(Arc<Mutex<Free>>);

#[derive(Default)]
struct Free {
    /// The first was free first.
    buffers: VecDeque<Buffer<f32>>,
    elements: usize,
}

/// Elements that return to their stock when they are no longer needed. They begin at a line of the cache.
pub(super) struct Floats {
    buffer: Buffer<f32>,
    len: usize,
    stock: Stock,
}

impl Stock {
    /// `len` elements, whatever they are.
    pub fn take(&self, len: usize) -> Floats {
        let capacity = len.max(SMALLEST).checked_next_power_of_two().unwrap_or(usize::MAX);
        let mut free = self.free();
        // The last to come is the likeliest to be in the cache.
        let found = free.buffers.iter().rposition(|buffer| buffer.len() == capacity);
        let found = found.and_then(|at| free.buffers.remove(at));
        free.elements -= found.as_ref().map_or(0, |buffer| buffer.len());
        drop(free);
        let buffer =
            found.or_else(|| Buffer::zeros(capacity)).unwrap_or_else(|| match Layout::array::<f32>(capacity) {
                Ok(layout) => handle_alloc_error(layout),
                Err(_) => panic!("{len} elements of activations"),
            });
        Floats { buffer, len, stock: self.clone() }
    }

    /// The same elements.
    pub fn copy(&self, elements: &[f32]) -> Floats {
        let mut floats = self.take(elements.len());
        floats.copy_from_slice(elements);
        floats
    }

    fn free(&self) -> MutexGuard<'_, Free> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Floats {
    fn drop(&mut self) {
        if let Some(nothing) = Buffer::zeros(0) {
            let buffer = std::mem::replace(&mut self.buffer, nothing);
            if buffer.len() > ELEMENTS {
                return;
            }
            // Given back to the system behind the lock.
            let mut given = Vec::new();
            let mut free = self.stock.free();
            free.elements += buffer.len();
            free.buffers.push_back(buffer);
            while free.elements > ELEMENTS
                && let Some(first) = free.buffers.pop_front()
            {
                free.elements -= first.len();
                given.push(first);
            }
            drop(free);
        }
    }
}

impl Clone for Floats {
    fn clone(&self) -> Self {
        self.stock.copy(self)
    }
}

impl fmt::Debug for Floats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

impl Deref for Floats {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        &self.buffer[..self.len]
    }
}

impl DerefMut for Floats {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.buffer[..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_free_is_taken_again() {
        let stock = Stock::default();
        let mut floats = stock.take(1025);
        floats.fill(7.0);
        let second = stock.take(2048);
        drop(floats);
        assert_eq!(stock.take(1024)[..], [0.0; 1024]);
        assert_eq!(stock.take(4096)[..], [0.0; 4096]);
        let mut again = stock.take(1026);
        assert_eq!(again[..], [[7.0; 1025].as_slice(), &[0.0]].concat());
        again.fill(1.0);
        assert_eq!(again.clone()[..], again[..]);
        assert_eq!(stock.copy(&[2.0; 9])[..], [2.0; 9]);
        assert!(stock.take(0).is_empty());
        assert_eq!(second[..], [0.0; 2048]);
    }

    #[test]
    fn little_is_kept() {
        let stock = Stock::default();
        let kept = || stock.free().buffers.iter().map(|buffer| buffer.len()).collect::<Vec<_>>();
        drop(stock.take(ELEMENTS + 1));
        assert!(kept().is_empty());
        drop([stock.take(ELEMENTS / 2), stock.take(5), stock.take(ELEMENTS / 4)]);
        assert_eq!(kept(), [ELEMENTS / 2, SMALLEST, ELEMENTS / 4]);
        drop(stock.take(ELEMENTS + 1));
        drop([stock.take(ELEMENTS / 4), stock.take(ELEMENTS / 4)]);
        assert_eq!(kept(), [SMALLEST, ELEMENTS / 4, ELEMENTS / 4]);
        assert_eq!(stock.free().elements, SMALLEST + ELEMENTS / 2);
    }
}
