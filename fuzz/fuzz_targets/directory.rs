//! Directories with a configuration and safetensors.
#![no_main]

#[path = "../../crates/checkpoint/tests/support/hostile.rs"]
mod hostile;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| hostile::directory(bytes));
