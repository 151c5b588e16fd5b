//! Checkpoints opened, read, and refused.

#[path = "checkpoint/corpus.rs"]
mod corpus;
#[path = "checkpoint/fields.rs"]
mod fields;
#[path = "checkpoint/gguf.rs"]
mod gguf;
#[path = "checkpoint/gguf_faults.rs"]
mod gguf_faults;
#[path = "support/gguf.rs"]
mod gguf_writer;
#[path = "support/hostile.rs"]
mod hostile;
#[path = "checkpoint/hostile_corpus.rs"]
mod hostile_corpus;
#[path = "checkpoint/projector.rs"]
mod projector;
#[path = "checkpoint/read.rs"]
mod read;
#[path = "checkpoint/refuse.rs"]
mod refuse;
#[path = "checkpoint/rows.rs"]
mod rows;
