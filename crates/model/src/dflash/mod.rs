//! Block-diffusion drafters: from states tapped in the target to a block of proposals in one pass.

mod config;
mod context;
mod v1;

pub use config::DFlashConfig;
pub use v1::{DFlashV1, DFlashV1Context};
