//! Block-diffusion drafters: from states tapped in the target to a block of proposals in one pass.

mod config;
mod context;
mod drafter;
mod v2;

pub use config::{DFlash2Config, DFlashConfig};
pub use context::Context as DFlashContext;
pub use drafter::{Block, DFlash, Seen};
pub use v2::Selector;
