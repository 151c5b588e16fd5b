//! Files of ours, read by the programs of others: `GLIMMER_PYTHON` names an interpreter that has `mlx-lm` with `mlx[cpu]`, and `gguf`.

use crate::support::{Pair, logits, tower};
use glimmer_backend::{CpuBackend, CpuOptions};
use glimmer_checkpoint::open;
use glimmer_checkpoint::write::gguf::target_name;
use glimmer_engine::quantize::{Quantize, Recipe};
use glimmer_engine::{ActivationType, KvType, KvTypes, Source};
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

/// Loads a directory as mlx-lm does, computes in f32, and writes the logits of some ids.
const LOGITS: &str = r#"
import json, sys
from pathlib import Path
import mlx.core as mx
import numpy as np
from mlx.utils import tree_map
from mlx_lm.utils import load_model
model, _ = load_model(Path(sys.argv[1]))
widen = lambda x: x.astype(mx.float32) if mx.issubdtype(x.dtype, mx.floating) else x
model.update(tree_map(widen, model.parameters()))
np.array(model(mx.array([json.loads(sys.argv[2])]))[0].astype(mx.float32)).tofile(sys.argv[3])
"#;

/// Decodes every tensor of a GGUF file, and writes each under its name.
const TENSORS: &str = r#"
import sys
import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize
for tensor in GGUFReader(sys.argv[1]).tensors:
    dequantize(tensor.data, tensor.tensor_type).astype(np.float32).tofile(f"{sys.argv[2]}/{tensor.name}")
"#;

fn python() -> Option<OsString> {
    std::env::var_os("GLIMMER_PYTHON")
}

fn run(python: &OsString, script: &str, args: &[&str]) {
    let run = Command::new(python).arg("-c").arg(script).args(args).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
}

fn floats(file: &Path) -> Vec<f32> {
    let bytes = std::fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect()
}

fn quantize(recipe: &str, to: &Path) {
    let recipe = Recipe::open(recipe).unwrap();
    let job = Quantize { source: Source::Nano, recipe, importance: None, tokenizer: None, threads: Some(2) };
    job.write(to, &mut |_, _| true).unwrap().unwrap();
}

#[test]
fn mlx_computes_the_same_logits() {
    let Some(python) = python() else { return };
    let b = CpuBackend::new(CpuOptions { activations: ActivationType::F32, ..CpuOptions::default() }).unwrap();
    let ids = Pair::Nano.prompts()[0].clone();
    // mlx looks embeddings of mxfp4 up in bf16, and goes on in bf16: no comparison in f32.
    for recipe in ["mlx-4bit", "mlx-4bit-gs32", "mlx-8bit", "ud-q4", "hf-bf16"] {
        let dir = tempfile::tempdir().unwrap();
        let (model, out) = (dir.path().join("model"), dir.path().join("logits"));
        quantize(recipe, &model);
        run(&python, LOGITS, &[model.to_str().unwrap(), &format!("{ids:?}"), out.to_str().unwrap()]);
        let ours = logits(&b, &tower(&b, &Source::Path(model)), &ids, ids.len(), KvTypes::both(KvType::F32));
        let theirs = floats(&out);
        assert_eq!(ours.len(), theirs.len(), "{recipe}");
        let worst = ours.iter().zip(&theirs).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        println!("{recipe}: logits differ by {worst:.1e} at most");
        assert!(worst < 1e-3, "{recipe}: {worst}");
    }
}

#[test]
fn gguf_reads_every_tensor_back() {
    let Some(python) = python() else { return };
    for recipe in ["gguf-bf16", "gguf-q8_0", "gguf-q4_k_m"] {
        let dir = tempfile::tempdir().unwrap();
        let (file, out) = (dir.path().join("nano.gguf"), dir.path().join("tensors"));
        quantize(recipe, &file);
        std::fs::create_dir(&out).unwrap();
        run(&python, TENSORS, &[file.to_str().unwrap(), out.to_str().unwrap()]);
        let ours = open(&file).unwrap();
        let head_dim = ours.fields().opt_usize("head_dim", 1..=1 << 20).unwrap().unwrap();
        for info in ours.tensors() {
            let name = target_name(&info.name).unwrap();
            let (values, theirs) = (ours.read(&info.name).unwrap().view().to_f32(), floats(&out.join(&name)));
            let cols = *info.shape.last().unwrap();
            // What the converter changes, and reading undoes.
            let expected: Vec<f32> = match &name {
                name if info.name.ends_with("layernorm.weight") && name.starts_with("blk.") => {
                    values.iter().map(|w| w + 1.0).collect()
                }
                name if name.ends_with("attn_q.weight") || name.ends_with("attn_k.weight") => {
                    let rows: Vec<&[f32]> = values.chunks_exact(cols).collect();
                    let row = |i: usize| rows[i / head_dim * head_dim + i % 2 * (head_dim / 2) + i % head_dim / 2];
                    (0..rows.len()).flat_map(row).copied().collect()
                }
                _ => values,
            };
            assert!(expected == theirs, "{recipe}: {name}");
        }
    }
}
