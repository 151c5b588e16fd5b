//! Memory of activations, kept for those that come next.

use glimmer_kernels::memory::Buffer;
use std::alloc::{Layout, handle_alloc_error};
use std::collections::VecDeque;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How many buffers wait at most: more than a layer has at once.
const KEPT: usize = 32;
/// How many elements they have together at most: about what a layer of the largest model has at once in a chunk of a long prompt.
const ELEMENTS: usize = 48 << 20;

/// Buffers that have become free. Each layer needs the sizes that the one before it needed: what it takes from here is in the
/// cache, is not cleared, and costs no call of the system.
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
        let mut free = self.free();
        // The last to come is the likeliest to be in the cache. One that is half as large again is left to others.
        let found = free.buffers.iter().rposition(|buffer| (len..=len + len / 2).contains(&buffer.len()));
        let found = found.and_then(|at| free.buffers.remove(at));
        free.elements -= found.as_ref().map_or(0, |buffer| buffer.len());
        drop(free);
        let buffer = found.or_else(|| Buffer::zeros(len)).unwrap_or_else(|| match Layout::array::<f32>(len) {
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
            let mut free = self.stock.free();
            if (1..=ELEMENTS).contains(&buffer.len()) {
                free.elements += buffer.len();
                free.buffers.push_back(buffer);
                while free.buffers.len() > KEPT || free.elements > ELEMENTS {
                    free.elements -= free.buffers.pop_front().map_or(0, |buffer| buffer.len());
                }
            }
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
        let mut floats = stock.take(9);
        floats.fill(7.0);
        let second = stock.take(9);
        drop(floats);
        assert_eq!(stock.take(10)[..], [0.0; 10]);
        assert_eq!(stock.take(5)[..], [0.0; 5]);
        assert_eq!(stock.take(6)[..], [7.0; 6]);
        assert_eq!(stock.copy(&[1.0; 9])[..], [1.0; 9]);
        assert_eq!(stock.take(9).clone()[..], [1.0; 9]);
        assert_eq!(second[..], [0.0; 9]);
    }

    #[test]
    fn little_is_kept() {
        let stock = Stock::default();
        drop(stock.take(ELEMENTS + 1));
        drop(stock.take(0));
        assert!(stock.free().buffers.is_empty());
        // Live together, so that none is taken again.
        drop((1..2 * KEPT).map(|len| stock.take(len)).collect::<Vec<_>>());
        assert!(stock.free().buffers.iter().map(|buffer| buffer.len()).eq(KEPT..2 * KEPT));
        drop([stock.take(ELEMENTS / 2), stock.take(ELEMENTS / 3), stock.take(ELEMENTS / 3)]);
        let free = stock.free();
        assert!(free.buffers.iter().map(|buffer| buffer.len()).eq([ELEMENTS / 3; 2]));
        assert_eq!(free.elements, ELEMENTS / 3 * 2);
    }
}
