//! Muse-Glimmer and its DFlash drafters, written once over any [`Backend`](glimmer_backend::Backend).

#![forbid(unsafe_code)]

pub mod dflash;
mod error;
pub mod kv_cache;
mod layers;
pub mod muse;
pub mod observe;

pub use error::ModelError;
