//! The glimmer command.
fn main() {}
