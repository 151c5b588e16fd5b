//! Tests of the engine, by what they are about.

mod bundle;
mod by_the_rule;
mod channels;
mod clip;
mod distribution;
mod drafters;
mod encoded;
mod encodings;
mod exactness;
mod faults;
mod formats;
#[path = "../../../checkpoint/tests/support/gguf.rs"]
mod gguf_writer;
mod golden;
mod importance;
mod mapped;
#[cfg(target_os = "linux")]
mod memory;
mod obtain;
mod others;
mod prefix;
mod projector;
mod quantize;
mod quantized;
mod real_tokenizer;
mod sampling;
mod scheduler;
mod score;
#[cfg(target_os = "linux")]
mod soak;
mod speculation;
mod step;
mod stops;
mod support;
mod suspicion;
mod synth;
mod synthetic;
mod template;
mod tokenizer;
mod trees;
