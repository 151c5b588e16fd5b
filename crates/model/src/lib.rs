//! Muse-Glimmer and its DFlash drafters, written once over any [`Backend`](glimmer_backend::Backend).

#![forbid(unsafe_code)]

pub mod dflash;
mod error;
pub mod kv_cache;
pub mod kv_pages;
mod layers;
pub mod muse;
pub mod observe;

pub use error::ModelError;
