//! Tests of the engine, by what they are about.

mod channels;
mod template;
mod tokenizer;
