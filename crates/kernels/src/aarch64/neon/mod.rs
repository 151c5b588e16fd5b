//! NEON: sixteen lanes are four registers.

pub mod lanes;
pub mod probe;
pub mod tile;
