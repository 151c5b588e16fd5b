//! Keys and values of one layer, and which of them a row sees: the cache decides how attention runs.

use glimmer_backend::{Backend, BackendError, KvSpec, KvTypes};
use std::ops::Range;

/// Which earlier positions a layer's rows see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// All of them.
    Full,
    /// The last so many, the row's own included.
    Sliding(usize),
}

/// Causal keys and values of one layer, by absolute position.
///
/// A sliding cache is a ring that keeps its window and some slack: a pass of up to `slack + 1` rows never overwrites keys that
/// its own first row sees, and as many rows can be taken back afterwards.
pub struct KvCache<B: Backend> {
    store: B::KvStore,
    span: Span,
    capacity: usize,
    len: usize,
    /// One past the highest position that was ever written: what the ring holds ends there.
    written: usize,
}

/// The positions that a cache cannot go back to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CannotTruncate {
    /// The shortest length that the cache can still be cut to.
    pub shortest: usize,
}

impl<B: Backend> KvCache<B> {
    /// An empty cache for up to `context` positions, of which at most `widest` are added in one pass.
    pub fn new(
        backend: &B,
        span: Span,
        context: usize,
        widest: usize,
        heads: usize,
        head_dim: usize,
        types: KvTypes,
    ) -> Result<Self, BackendError> {
        let capacity = positions_needed(span, context, widest);
        let store = backend.kv_store(KvSpec { heads, head_dim, positions: capacity, types })?;
        Ok(Self { store, span, capacity, len: 0, written: 0 })
    }

    /// Positions held: the next row is at this position.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds rows of keys and values and attends to them and to what came before: row r, at position `len() + r`, sees
    /// itself and what its span allows of the earlier ones.
    ///
    /// # Panics
    /// If the rows are more than the cache was made for.
    pub fn attend(&mut self, backend: &B, q: &B::Tensor, k: &B::Tensor, v: &B::Tensor, scale: f32) -> B::Tensor {
        let (rows, _) = backend.shape(q);
        let start = self.len;
        let fits = match self.span {
            _ if start + rows <= self.capacity => true,
            Span::Full => false,
            Span::Sliding(window) => window + rows <= self.capacity + 1,
        };
        assert!(fits, "{rows} rows at {start} in a cache of {} positions", self.capacity);
        backend.kv_write(&mut self.store, start, k, v);
        self.len += rows;
        self.written = self.written.max(self.len);
        let visible: Vec<Range<usize>> = (start..self.len).map(|position| self.span.visible(position)).collect();
        backend.attend(q, &self.store, &visible, scale)
    }

    /// Takes the first `len` positions as given: keys and values of `width` elements a position, drawn from `values`. What the
    /// cache held is lost, and what it would no longer hold is not drawn.
    ///
    /// # Panics
    /// If a full cache was made for fewer positions.
    pub fn fill(&mut self, backend: &B, len: usize, width: usize, values: &mut dyn FnMut() -> f32) {
        const TOGETHER: usize = 256;
        assert!(self.span != Span::Full || len <= self.capacity, "{len} in a cache of {} positions", self.capacity);
        let mut position = len.saturating_sub(self.capacity);
        while position < len {
            let rows = TOGETHER.min(len - position).min(self.capacity);
            let mut draw = || backend.tensor(rows, width, (0..rows * width).map(|_| values()).collect());
            let (k, v) = (draw(), draw());
            backend.kv_write(&mut self.store, position, &k, &v);
            position += rows;
        }
        (self.len, self.written) = (len, len);
    }

    /// Forgets every position from `len` on, or says that the positions before it which the next row would see are gone.
    ///
    /// # Panics
    /// If `len` is larger than the cache's.
    pub fn truncate(&mut self, len: usize) -> Result<(), CannotTruncate> {
        assert!(len <= self.len, "cut to {len} of {}", self.len);
        let shortest = self.shortest();
        if len < shortest && len > 0 {
            return Err(CannotTruncate { shortest });
        }
        self.len = len;
        if len == 0 {
            self.written = 0;
        }
        Ok(())
    }

    /// The shortest length, 0 aside, that [`truncate`](Self::truncate) can cut to.
    pub fn shortest(&self) -> usize {
        match self.span {
            Span::Full => 0,
            // Positions from `written - capacity` on are held; the row at `len` sees from `len - window + 1` on.
            Span::Sliding(window) => match self.written.checked_sub(self.capacity) {
                None | Some(0) => 0,
                Some(oldest) => oldest + window - 1,
            },
        }
    }
}

impl Span {
    /// The positions that the row at `position` sees.
    pub fn visible(self, position: usize) -> Range<usize> {
        match self {
            Span::Full => 0..position + 1,
            Span::Sliding(window) => (position + 1).saturating_sub(window)..position + 1,
        }
    }
}

/// How many positions a cache keeps so that passes of `widest` rows can be made, and taken back, at any length up to
/// `context`.
pub fn positions_needed(span: Span, context: usize, widest: usize) -> usize {
    match span {
        Span::Full => context,
        Span::Sliding(window) => (window + widest - 1).min(context),
    }
}
