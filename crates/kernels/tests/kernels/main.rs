//! Every kernel of every instruction set of this machine: against an f64 oracle, against itself under other partitions, bit for bit
//! against the scalar kernels, and with inputs flush against unreadable pages.

mod attention;
mod matmul;
mod matrices;
mod packed;
mod rows;
mod support;
mod tile;
