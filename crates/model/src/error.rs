//! Why a model cannot be loaded.

use glimmer_backend::BackendError;
use thiserror::Error;

/// A checkpoint is not a model that this crate can run. One line: file, tensor or field, expected, found.
#[derive(Debug, Error)]
pub enum ModelError {
    /// The checkpoint is malformed, incomplete, or holds what nothing knows.
    #[error(transparent)]
    Checkpoint(#[from] glimmer_checkpoint::Error),
    /// The backend cannot hold it.
    #[error("{what}: {cause}")]
    Backend {
        /// The tensor, or the cache.
        what: String,
        /// What the backend said.
        cause: BackendError,
    },
    /// A drafter and a target do not belong together.
    #[error("{drafter} does not fit the target {target}: {what}: expected {expected}, found {found}")]
    Misfit {
        /// The drafter.
        drafter: String,
        /// The target.
        target: String,
        /// The field.
        what: String,
        /// What the target needs.
        expected: String,
        /// What the drafter has.
        found: String,
    },
}
