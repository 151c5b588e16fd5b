//! What a drafter remembers of the verified sequence: keys and values of its layers, by absolute position.

use glimmer_backend::{Backend, BackendError, KvSpec, KvType, KvTypes};
use std::ops::Range;

/// Context keys and values of every drafter layer.
///
/// A ring of reach + block positions: new context rows are appended in place, and the rows of the block being drafted lie
/// behind them until the next context rows overwrite them. Nothing is ever copied or shifted.
pub struct Context<B: Backend> {
    stores: Vec<B::KvStore>,
    /// How many positions back a block row sees context rows.
    reach: usize,
    capacity: usize,
    /// First position of the context; later than 0 where a long prompt's beginning was left out.
    start: usize,
    /// One past the last position of the context.
    end: usize,
    /// One past the highest position that was ever written, block rows included.
    written: usize,
}

impl<B: Backend> Context<B> {
    pub(super) fn new(
        backend: &B,
        layers: usize,
        reach: usize,
        block: usize,
        heads: usize,
        head_dim: usize,
    ) -> Result<Self, BackendError> {
        let capacity = reach + block;
        let spec = KvSpec { heads, head_dim, positions: capacity, types: KvTypes::both(KvType::F32) };
        let stores = (0..layers).map(|_| backend.kv_store(spec)).collect::<Result<_, _>>()?;
        Ok(Self { stores, reach, capacity, start: 0, end: 0, written: 0 })
    }

    /// Positions that fit.
    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// One past the last position of the context: where the next block's anchor is.
    pub fn end(&self) -> usize {
        self.end
    }

    /// Positions of the context that are held.
    pub fn held(&self) -> Range<usize> {
        self.start.max(self.written.saturating_sub(self.capacity)).min(self.end)..self.end
    }

    /// Forgets everything.
    pub fn reset(&mut self) {
        self.restart(0);
    }

    /// Forgets positions from `len` on.
    pub fn truncate(&mut self, len: usize) {
        let held = self.held();
        if len <= held.start {
            // What the ring still holds lies behind the cut: the context begins anew there.
            self.restart(len.min(self.end));
        } else {
            self.end = self.end.min(len);
        }
    }

    /// Begins anew at a position, with nothing held.
    fn restart(&mut self, position: usize) {
        (self.start, self.end, self.written) = (position, position, position);
    }

    /// Makes room for context rows at `position`; a gap before it empties the context.
    pub(super) fn extend(&mut self, position: usize, rows: usize) {
        if position != self.end {
            self.restart(position);
        }
        self.end = position + rows;
        self.written = self.written.max(self.end);
    }

    pub(super) fn write(&mut self, b: &B, layer: usize, position: usize, k: &B::Tensor, v: &B::Tensor) {
        b.kv_write(&mut self.stores[layer], position, k, v);
    }

    /// What each of `rows` block rows sees: the context at most `reach` positions back, and the whole block.
    pub(super) fn visible(&mut self, rows: usize) -> Vec<Range<usize>> {
        let block_end = self.end + rows;
        self.written = self.written.max(block_end);
        let oldest = self.held().start;
        (self.end..block_end).map(|row| oldest.max(row.saturating_sub(self.reach)).min(self.end)..block_end).collect()
    }

    pub(super) fn attend(&self, b: &B, layer: usize, q: &B::Tensor, visible: &[Range<usize>], scale: f32) -> B::Tensor {
        b.attend(q, &self.stores[layer], visible, scale)
    }
}
