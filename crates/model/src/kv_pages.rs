//! Keys and values of one layer of one sequence, in pages that sequences may share.

use glimmer_backend::{Attended, Backend, BackendError, KvSpec, PAGE};
use std::ops::Range;

/// Keys and values by absolute position: the pages from one on.
pub struct KvPages<B: Backend> {
    spec: KvSpec,
    /// Which page of the sequence the first of `pages` is.
    first: usize,
    pages: Vec<B::KvPage>,
}

impl<B: Backend> KvPages<B> {
    /// No page yet.
    pub fn new(spec: KvSpec) -> Self {
        Self { spec, first: 0, pages: Vec::new() }
    }

    /// The positions that there are pages for.
    pub fn positions(&self) -> Range<usize> {
        self.first * PAGE..(self.first + self.pages.len()) * PAGE
    }

    /// Makes `positions` writable: the pages that hold them become this sequence's own. Where the pages do not reach their beginning,
    /// those that there were are gone afterwards.
    pub fn reserve(&mut self, backend: &B, positions: Range<usize>) -> Result<(), BackendError> {
        let pages = positions.start / PAGE..positions.end.div_ceil(PAGE);
        if !(self.first..=self.first + self.pages.len()).contains(&pages.start) {
            (self.first, self.pages) = (pages.start, Vec::new());
        }
        for page in pages {
            match self.pages.get_mut(page - self.first) {
                Some(page) => backend.kv_own(page)?,
                None => self.pages.push(backend.kv_page(self.spec)?),
            }
        }
        Ok(())
    }

    /// Gives up the pages that end before `position`.
    pub fn forget_before(&mut self, position: usize) {
        let gone = (position / PAGE).saturating_sub(self.first).min(self.pages.len());
        self.pages.drain(..gone);
        self.first += gone;
    }

    /// Gives up the pages that begin at `len` or behind it.
    pub fn truncate(&mut self, len: usize) {
        self.pages.truncate(len.div_ceil(PAGE).saturating_sub(self.first));
        if self.pages.is_empty() {
            self.first = 0;
        }
    }

    /// Stores rows `rows` of keys and values from `position` on.
    ///
    /// # Panics
    /// If these positions were not [reserved](Self::reserve).
    pub fn write(&mut self, backend: &B, position: usize, k: &B::Tensor, v: &B::Tensor, rows: Range<usize>) {
        let mut row = rows.start;
        while row < rows.end {
            let at = position + row - rows.start;
            let end = rows.end.min(row + PAGE - at % PAGE);
            backend.kv_write(&mut self.pages[at / PAGE - self.first], at % PAGE, k, v, row..end);
            row = end;
        }
    }

    /// What rows attend to that see these positions.
    pub fn attended<'a>(&'a self, visible: &'a [Range<usize>]) -> Attended<'a, B::KvPage> {
        Attended { visible, first: self.first, pages: &self.pages }
    }

    /// A page of the sequence, if it is held.
    pub fn page(&self, page: usize) -> Option<&B::KvPage> {
        self.pages.get(page.checked_sub(self.first)?)
    }

    /// Takes over pages of another sequence instead of what there was: that of `first`, and those that follow.
    pub fn adopt(&mut self, first: usize, pages: Vec<B::KvPage>) {
        (self.first, self.pages) = (first, pages);
    }
}
