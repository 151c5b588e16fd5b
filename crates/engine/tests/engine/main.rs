//! Tests of the engine, by what they are about.

mod channels;
mod clip;
mod distribution;
mod exactness;
mod faults;
mod golden;
mod quantized;
mod sampling;
mod step;
mod stops;
mod support;
mod synth;
mod template;
mod tokenizer;
