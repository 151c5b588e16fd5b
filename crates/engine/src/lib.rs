//! engine

#![forbid(unsafe_code)]
pub mod chat;
pub mod sampling;
pub mod stops;
pub mod tokenizer;
