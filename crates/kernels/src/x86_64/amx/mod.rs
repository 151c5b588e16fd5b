//! AMX: what AVX-512 has, and products of matrices of bytes.

pub mod matrices;
pub mod probe;
