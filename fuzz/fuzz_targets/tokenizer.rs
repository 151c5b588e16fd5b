//! `tokenizer.json`, and text in its ids and back.
#![no_main]

#[path = "../../crates/engine/tests/support/hostile.rs"]
mod hostile;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hostile::tokenizer(bytes));
