//! Sixteen lanes in plain Rust: runs anywhere, and is the oracle that the other instruction sets must equal bit for bit.

pub mod lanes;
pub mod matrices;
pub mod probe;
pub mod tile;
