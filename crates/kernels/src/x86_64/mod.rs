//! Intel and AMD.

pub mod amx;
pub mod avx2;
pub mod avx512;
