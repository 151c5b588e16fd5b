//! What a drafter remembers of the verified sequence: keys and values of its layers, by absolute position.

use crate::kv_pages::KvPages;
use glimmer_backend::{Attended, Backend, BackendError, KvSpec, PAGE};
use std::ops::Range;

/// Context keys and values of every drafter layer.
///
/// The rows of the block being drafted lie behind the context until the next context rows overwrite them. What is further back than
/// the reach and a block is given up, page by page. Nothing is ever copied or shifted.
pub struct Context<B: Backend> {
    layers: Vec<KvPages<B>>,
    /// How many positions back a block row sees context rows.
    reach: usize,
    block: usize,
    /// First position of the context; later than 0 where a long prompt's beginning was left out.
    start: usize,
    /// One past the last position of the context.
    end: usize,
}

impl<B: Backend> Context<B> {
    pub(super) fn new(layers: usize, reach: usize, block: usize, spec: KvSpec) -> Self {
        Self { layers: (0..layers).map(|_| KvPages::new(spec)).collect(), reach, block, start: 0, end: 0 }
    }

    /// Positions that are kept at least.
    pub(super) fn capacity(&self) -> usize {
        self.reach + self.block
    }

    /// One past the last position of the context: where the next block's anchor is.
    pub fn end(&self) -> usize {
        self.end
    }

    /// Positions of the context that are held.
    pub fn held(&self) -> Range<usize> {
        let pages = self.layers.first().map_or(0..0, |layer| layer.positions());
        self.start.max(pages.start).min(self.end)..self.end
    }

    /// Its layers.
    pub fn layers(&self) -> &[KvPages<B>] {
        &self.layers
    }

    /// Takes over the context of another sequence, which was observed from `start` to `len`: for each layer the page that has
    /// `start`, and those that follow. Without any, the context begins at `len`.
    pub fn adopt(&mut self, len: usize, start: usize, pages: Vec<Vec<B::KvPage>>) {
        self.restart(len);
        if pages.len() == self.layers.len() && start < len {
            self.start = start;
            self.layers.iter_mut().zip(pages).for_each(|(layer, pages)| layer.adopt(start / PAGE, pages));
        }
    }

    /// Forgets everything.
    pub fn reset(&mut self) {
        self.restart(0);
    }

    /// Forgets positions from `len` on.
    pub fn truncate(&mut self, len: usize) {
        let held = self.held();
        if len <= held.start {
            // What is still held lies behind the cut: the context begins anew there.
            self.restart(len.min(self.end));
        } else {
            self.end = self.end.min(len);
            self.layers.iter_mut().for_each(|layer| layer.truncate(len));
        }
    }

    /// Begins anew at a position, with nothing held.
    fn restart(&mut self, position: usize) {
        (self.start, self.end) = (position, position);
        self.layers.iter_mut().for_each(|layer| layer.truncate(0));
    }

    /// Makes room for context rows at `position`; a gap before it empties the context.
    pub(super) fn extend(&mut self, b: &B, position: usize, rows: usize) -> Result<(), BackendError> {
        if position != self.end {
            self.restart(position);
        }
        self.reserve(b, rows)?;
        self.end += rows;
        Ok(())
    }

    /// Makes room for the rows of a block, and says what each of them sees: the context at most `reach` positions back, and the
    /// whole block.
    pub(super) fn block(&mut self, b: &B, rows: usize) -> Result<Vec<Range<usize>>, BackendError> {
        self.reserve(b, rows)?;
        let (oldest, end) = (self.held().start, self.end + rows);
        Ok((self.end..end).map(|row| oldest.max(row.saturating_sub(self.reach)).min(self.end)..end).collect())
    }

    fn reserve(&mut self, b: &B, rows: usize) -> Result<(), BackendError> {
        let (oldest, next) = (self.end.saturating_sub(self.capacity()), self.end..self.end + rows);
        self.layers.iter_mut().try_for_each(|layer| {
            layer.forget_before(oldest);
            layer.reserve(b, next.clone())
        })
    }

    /// Stores rows `rows` of keys and values from `position` on, which there is room for.
    pub(super) fn write(
        &mut self,
        b: &B,
        layer: usize,
        position: usize,
        k: &B::Tensor,
        v: &B::Tensor,
        rows: Range<usize>,
    ) {
        self.layers[layer].write(b, position, k, v, rows);
    }

    /// What rows attend to that see these positions.
    pub(super) fn attended<'a>(&'a self, layer: usize, visible: &'a [Range<usize>]) -> Attended<'a, B::KvPage> {
        self.layers[layer].attended(visible)
    }
}
