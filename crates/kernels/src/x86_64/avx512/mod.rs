//! AVX-512: sixteen lanes are one register.

pub mod bf16;
pub mod lanes;
pub mod probe;
pub mod tile;
