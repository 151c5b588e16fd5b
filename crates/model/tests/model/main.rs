//! The model against golden data of the reference implementations, and against itself.

mod dflash;
mod kv_cache;
mod support;
mod text;
