//! The real binary, from the outside.

mod bench;
mod bench_set;
#[path = "../../../checkpoint/tests/checkpoint/corpus.rs"]
mod corpus;
mod golden;
mod help;
mod hub;
mod inspect;
mod pair;
mod quantize;
mod refused;
#[cfg(unix)]
mod repl;
mod score;
#[cfg(unix)]
mod signals;
mod stand_in;
mod support;
mod suspicion;
mod text;
mod trace;
mod tune;
mod usage;
