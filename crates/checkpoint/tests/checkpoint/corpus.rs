//! Malformed checkpoints, each right but for one fault, and what the message about it has to say.
//!
//! Depends on nothing but std and `serde_json`, so that tests of other crates include this file by its path.

#![allow(dead_code, unused_imports)] // Not everyone who includes it needs all of it.

mod damaged_directories;
mod damaged_modules;
mod damaged_weights;
mod edit;
mod valid;

pub use valid::*;

use edit::tensors;
use std::path::Path;

/// A checkpoint that has to be refused.
pub struct Case {
    /// Unique, and fit for a file name.
    pub name: &'static str,
    /// Lays it out in a directory, which is empty.
    pub write: fn(&Path),
    /// What the message has to contain: the file, the subject, the telling values.
    pub expect: &'static [&'static str],
}

/// Checkpoints that cannot be opened.
pub fn cases() -> Vec<Case> {
    [damaged_weights::cases(), damaged_directories::cases(), damaged_modules::cases()].into_iter().flatten().collect()
}

/// Checkpoints that open, and have other tensors than [`specs`] says.
pub fn unaccounted() -> Vec<Case> {
    cases_of(&[
        (
            "lacks_a_tensor",
            |d| tensors(d, |t| drop(t.remove(0))),
            &["model.safetensors: tensor `lm_head.weight`: expected shape [256, 32], found none"],
        ),
        (
            "lacks_three",
            |d| tensors(d, |t| t.retain(|(n, _)| !n.contains("layers.0.mlp.fc1.") && n != NORM)),
            &[NORM, "expected shape [32]", "2 more are missing"],
        ),
        (
            "has_an_unknown_tensor",
            |d| tensors(d, |t| t.push(("model.extra.bias".into(), vec![4]))),
            &["model.safetensors", "`model.extra.bias`", "only tensors of the model", "bf16 of shape [4]"],
        ),
        (
            "has_two_unknown",
            |d| tensors(d, |t| t.extend([("x".into(), vec![4]), ("y\n".into(), vec![1])])),
            &["tensor `x`", "1 more is unknown"],
        ),
        (
            "has_another_shape",
            |d| tensors(d, |t| t[0].1 = vec![32, 256]),
            &["model.safetensors", "`lm_head.weight`", "shape [256, 32]", "found [32, 256]"],
        ),
        ("has_a_dimension_more", |d| tensors(d, |t| t[0].1 = vec![256, 32, 1]), &["`lm_head.weight`", "[256, 32, 1]"]),
        (
            "has_an_empty_tensor",
            |d| tensors(d, |t| t[0].1 = vec![0, 32]),
            &["`lm_head.weight`", "shape [256, 32]", "found [0, 32]"],
        ),
    ])
}

const HEAD: &str = "lm_head.weight";
const EMBED: &str = "model.language_model.embed_tokens.weight";
const NORM: &str = "model.language_model.norm.weight";

type Row = (&'static str, fn(&Path), &'static [&'static str]);

fn cases_of(rows: &[Row]) -> Vec<Case> {
    rows.iter().map(|&(name, write, expect)| Case { name, write, expect }).collect()
}
