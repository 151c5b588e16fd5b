//! The model against golden data of the reference implementations, and against itself.

mod dflash;
mod dflash2;
mod gguf;
#[path = "../../../checkpoint/tests/support/gguf.rs"]
mod gguf_writer;
mod kv_cache;
mod support;
mod text;
