//! From messages to a prompt, and from the model's output back to messages.
//!
//! [`message`] holds what a conversation is made of, [`template`] renders it with the checkpoint's own Jinja template, and
//! [`channels`] follows the framing of what the model writes.

mod bounded;
pub mod channels;
mod json;
mod lex;
mod marker;
pub mod message;
mod operands;
pub mod template;
