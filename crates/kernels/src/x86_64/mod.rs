//! Intel and AMD.

pub mod avx2;
pub mod avx512;
