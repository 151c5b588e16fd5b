//! Slices in, slices out: the numeric kernels.

pub mod math;
