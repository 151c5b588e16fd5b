//! Keys and values of one layer, and which of them a row sees: the cache decides how attention runs.

use crate::kv_pages::KvPages;
use glimmer_backend::{Attended, Backend, BackendError, KvSpec, PAGE};
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
/// A sliding cache gives up pages that nobody will see: it keeps its window and some slack, so that as many rows as a pass may have
/// can be taken back afterwards.
pub struct KvCache<B: Backend> {
    pages: KvPages<B>,
    span: Span,
    context: usize,
    widest: usize,
    len: usize,
    /// What the rows of the present pass see.
    visible: Vec<Range<usize>>,
}

/// The positions that a cache cannot go back to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CannotTruncate {
    /// The shortest length that the cache can still be cut to.
    pub shortest: usize,
}

impl<B: Backend> KvCache<B> {
    /// An empty cache for up to `context` positions, of which at most `widest` are added in one pass.
    pub fn new(span: Span, context: usize, widest: usize, spec: KvSpec) -> Self {
        Self { pages: KvPages::new(spec), span, context, widest, len: 0, visible: Vec::new() }
    }

    /// Positions held: the next row is at this position.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Takes the memory for `rows` more positions, and gives up what nobody will see. Nothing else changes, whether it fails or not.
    ///
    /// # Panics
    /// If the rows are more than the cache was made for.
    pub fn reserve(&mut self, backend: &B, rows: usize) -> Result<(), BackendError> {
        let (start, end) = (self.len, self.len + rows);
        assert!(end <= self.context, "{rows} rows at {start} in a cache of {} positions", self.context);
        assert!(self.span == Span::Full || rows <= self.widest, "{rows} rows in a pass of at most {}", self.widest);
        self.pages.forget_before(start - start.min(self.kept()));
        self.pages.reserve(backend, start..end)
    }

    /// Adds rows `rows` of keys and values, for which memory was [reserved](Self::reserve). Row r of them, at position `len() + r`, will
    /// see itself and what its span allows of the earlier ones.
    pub fn write(&mut self, backend: &B, k: &B::Tensor, v: &B::Tensor, rows: Range<usize>) {
        self.pages.write(backend, self.len, k, v, rows.clone());
        let start = self.len;
        self.len += rows.len();
        self.visible.clear();
        self.visible.extend((start..self.len).map(|position| self.span.visible(position)));
    }

    /// What the rows attend to that were written last.
    pub fn attended(&self) -> Attended<'_, B::KvPage> {
        self.pages.attended(&self.visible)
    }

    /// Takes the first `len` positions as given: keys and values of `width` elements a position, drawn from `values`. What the
    /// cache held is lost, and what it would no longer hold is not drawn.
    ///
    /// # Panics
    /// If the cache was made for fewer positions.
    pub fn fill(
        &mut self,
        backend: &B,
        len: usize,
        width: usize,
        values: &mut dyn FnMut() -> f32,
    ) -> Result<(), BackendError> {
        assert!(len <= self.context, "{len} in a cache of {} positions", self.context);
        self.pages.truncate(0);
        let mut position = len - len.min(self.kept());
        self.pages.reserve(backend, position..len)?;
        while position < len {
            let rows = PAGE.min(len - position);
            let mut draw = || backend.tensor(rows, width, (0..rows * width).map(|_| values()).collect());
            let (k, v) = (draw(), draw());
            self.pages.write(backend, position, &k, &v, 0..rows);
            position += rows;
        }
        self.len = len;
        Ok(())
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
        self.pages.truncate(len);
        Ok(())
    }

    /// The shortest length, 0 aside, that [`truncate`](Self::truncate) can cut to.
    pub fn shortest(&self) -> usize {
        match (self.span, self.pages.positions().start) {
            (Span::Full, _) | (_, 0) => 0,
            // The row at `len` sees from `len - window + 1` on.
            (Span::Sliding(window), oldest) => oldest + window - 1,
        }
    }

    /// The pages.
    pub fn pages(&self) -> &KvPages<B> {
        &self.pages
    }

    /// The first page that has to be there for a sequence of `len` positions to go on.
    pub fn first_page(&self, len: usize) -> usize {
        self.span.visible(len).start / PAGE
    }

    /// Takes over the first `len` positions of another sequence: the pages that hold them, from [`first_page`](Self::first_page) on.
    ///
    /// # Panics
    /// If there are more or fewer pages.
    pub fn adopt(&mut self, len: usize, pages: Vec<B::KvPage>) {
        let first = self.first_page(len);
        assert_eq!(first + pages.len(), len.div_ceil(PAGE), "pages of {len} positions");
        self.pages.adopt(first, pages);
        self.len = len;
    }

    /// Positions before the next one that are kept.
    fn kept(&self) -> usize {
        positions_needed(self.span, self.context, self.widest)
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

/// How many pages a cache has at most, by the same measure.
pub fn pages_needed(span: Span, context: usize, widest: usize) -> usize {
    let all = context.div_ceil(PAGE);
    match span {
        Span::Full => all,
        // What is kept and the rows of a pass may begin anywhere in a page.
        Span::Sliding(_) => all.min((positions_needed(span, context, widest) + widest).div_ceil(PAGE) + 1),
    }
}
