//! Memory of activations, kept for those that come next.

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How many buffers wait at most: more than a layer has at once.
const KEPT: usize = 32;
/// Elements of a buffer above which it is left to the allocator, so that a long prompt's do not stay.
const LARGEST: usize = 1 << 20;

/// Buffers that have become free. Each layer needs the sizes that the one before it needed: what it takes from here is in the
/// cache, is not cleared, and costs no call of the allocator.
#[derive(Clone, Debug, Default)]
pub(super) struct Stock(Arc<Mutex<VecDeque<Vec<f32>>>>);

/// Elements that return to their stock when they are no longer needed.
#[derive(Clone, Debug)]
pub(super) struct Floats {
    elements: Vec<f32>,
    stock: Stock,
}

impl Stock {
    /// `len` elements, whatever they are.
    pub fn take(&self, len: usize) -> Floats {
        let mut free = self.free();
        // The last to come is the likeliest to be in the cache.
        let found = free.iter().rposition(|elements| elements.len() == len);
        let found = found.and_then(|at| free.remove(at));
        drop(free);
        self.keep(found.unwrap_or_else(|| vec![0.0; len]))
    }

    /// Elements that will be free one day.
    pub fn keep(&self, elements: Vec<f32>) -> Floats {
        Floats { elements, stock: self.clone() }
    }

    fn free(&self) -> MutexGuard<'_, VecDeque<Vec<f32>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Floats {
    fn drop(&mut self) {
        if (1..=LARGEST).contains(&self.elements.len()) {
            let mut free = self.stock.free();
            free.push_back(std::mem::take(&mut self.elements));
            if free.len() > KEPT {
                free.pop_front();
            }
        }
    }
}

impl Deref for Floats {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        &self.elements
    }
}

impl DerefMut for Floats {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.elements
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_free_is_taken_again() {
        let stock = Stock::default();
        let mut floats = stock.take(5);
        floats.fill(7.0);
        let second = stock.take(5);
        drop(floats);
        assert_eq!(stock.take(4)[..], [0.0; 4]);
        assert_eq!(stock.take(5)[..], [7.0; 5]);
        assert_eq!(second[..], [0.0; 5]);
    }

    #[test]
    fn little_is_kept() {
        let stock = Stock::default();
        drop(stock.take(LARGEST + 1));
        drop(stock.take(0));
        assert!(stock.free().is_empty());
        for len in 1..2 * KEPT {
            drop(stock.take(len));
        }
        assert!(stock.free().iter().map(Vec::len).eq(KEPT..2 * KEPT));
    }
}
