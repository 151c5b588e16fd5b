//! From what was named to what is opened: models of the hub are here then, and bundles are taken apart.

use crate::hub::{Pulling, Repository};
use crate::{EngineError, EngineOptions};

/// The width of a round that a pair bundle recommends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PairWidth {
    /// Rows.
    pub rows: usize,
    /// The field that says so, as messages name it.
    pub field: String,
}

impl EngineOptions {
    /// Has target and drafter here, as [`Source::obtain`](crate::Source::obtain) does, and puts the parts of a pair bundle in its
    /// place: for a target its target and, if `draft` says so and no other was named, its drafter; for a drafter its drafter.
    /// Gives the width that the bundle recommends, where its drafter is the one that is used.
    ///
    /// # Errors
    /// For a model that cannot be had, and a bundle that cannot be honoured.
    pub fn obtain(
        &mut self,
        draft: bool,
        watch: &mut dyn FnMut(&Repository, Pulling<'_>),
    ) -> Result<Option<PairWidth>, EngineError> {
        self.target.obtain(watch)?;
        let mut width = None;
        if let Some(drafter) = &mut self.drafter {
            drafter.obtain(watch)?;
            if let Some(pair) = drafter.pair()? {
                *drafter = drafter.part(pair.drafter);
            }
        }
        if let Some(pair) = self.target.pair()? {
            if draft && self.drafter.is_none() {
                self.drafter = Some(self.target.part(pair.drafter));
                let field = format!("{}: field `benchmark.best_block_size`", pair.manifest);
                width = pair.width.map(|rows| PairWidth { rows, field });
            }
            self.target = self.target.part(pair.target);
        }
        Ok(width)
    }
}
