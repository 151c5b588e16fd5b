//! AVX2 with FMA and F16C: sixteen lanes are two registers.

pub mod lanes;
pub mod probe;
pub mod tile;
