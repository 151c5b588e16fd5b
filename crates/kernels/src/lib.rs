//! Slices in, slices out: the numeric kernels. No word of models, files or configurations is known here.
//!
//! Float kernels are written once, over sixteen virtual [`lanes`], and compiled for each instruction set by
//! [`dispatch`]; the folders [`scalar`], `x86_64` and `aarch64` hold what differs. Every kernel computes a row
//! the same way whatever rows, threads or tiles surround it, and the same bits come out on every instruction set.

pub mod attention;
pub mod cores;
pub mod dispatch;
mod elementwise;
pub mod isa;
pub mod lanes;
pub mod limits;
pub mod math;
pub mod matmul;
pub mod memory;
mod norm;
pub mod packed;
pub mod pool;
pub mod rope;
pub mod rows;
pub mod scalar;
mod vmath;

#[cfg(target_arch = "aarch64")]
pub mod aarch64;
#[cfg(target_arch = "x86_64")]
pub mod x86_64;
