//! GGUF files of targets that no fixture has: of any size, in encodings whose blocks are long.

use crate::gguf_writer::{Entry, Gguf, Meta};
use glimmer_checkpoint::write::gguf::kind;
use glimmer_encoding::{Encoding, FloatType, encode_rows};

/// The sizes of a target.
pub struct Shape {
    pub layers: usize,
    pub hidden: usize,
    pub intermediate: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub vocab: usize,
}

const F32: Encoding = Encoding::Dense(FloatType::F32);

/// A target with weights of no meaning. `encoding` chooses that of each matrix, by a number that counts them.
///
/// Few of the rows of a matrix are different ones, so that large files are made quickly.
pub fn target(shape: &Shape, encoding: impl Fn(usize) -> Encoding) -> Gguf {
    let Shape { layers, hidden, intermediate, heads, kv_heads, head_dim, vocab } = *shape;
    let mut out = Gguf::new("muse-glimmer");
    for (key, n) in [
        ("vocab_size", vocab),
        ("context_length", 512),
        ("block_count", layers),
        ("embedding_length", hidden),
        ("feed_forward_length", intermediate),
        ("attention.head_count", heads),
        ("attention.head_count_kv", kv_heads),
        ("attention.key_length", head_dim),
        ("attention.sliding_window", 32),
    ] {
        out.set(&format!("muse-glimmer.{key}"), Meta::U32(n as u32));
    }
    let flags = (0..layers).map(|layer| layer % 2 == 0).collect();
    out.set("muse-glimmer.attention.sliding_window_pattern", Meta::Bools(flags));
    out.set("tokenizer.ggml.eos_token_id", Meta::U32(0));
    let (q, kv, mut count) = (heads * head_dim, kv_heads * head_dim, 0);
    let mut matrix = |out: &mut Gguf, name: &str, rows: usize, cols: usize| {
        let encoding = encoding(count);
        count += 1;
        let different = rows.min(97);
        let values = noise(count as u64, different * cols, (3.0 / cols as f32).sqrt());
        let encoded = encode_rows(encoding, &values, different, cols).unwrap().codes;
        let data = encoded.iter().copied().cycle().take(encoded.len() / different * rows).collect();
        let dims = vec![cols as u64, rows as u64];
        out.tensors.push(Entry { name: name.into(), dims, kind: kind(encoding).unwrap(), offset: None, data });
    };
    matrix(&mut out, "token_embd.weight", vocab, hidden);
    matrix(&mut out, "output.weight", vocab, hidden);
    out.tensor("output_norm.weight", &[hidden], F32, &vec![1.0; hidden]);
    for layer in 0..layers {
        for (part, rows, cols) in [
            ("attn_q", q, hidden),
            ("attn_k", kv, hidden),
            ("attn_v", kv, hidden),
            ("attn_gate", q, hidden),
            ("attn_output", hidden, q),
            ("ffn_gate", intermediate, hidden),
            ("ffn_up", intermediate, hidden),
            ("ffn_down", hidden, intermediate),
        ] {
            matrix(&mut out, &format!("blk.{layer}.{part}.weight"), rows, cols);
        }
        for (part, len, value) in [
            ("attn_norm", hidden, 1.0),
            ("post_attention_norm", hidden, 1.0),
            ("ffn_norm", hidden, 1.0),
            ("post_ffw_norm", hidden, 1.0),
            ("attn_q_norm", head_dim, 2.0),
            ("attn_k_norm", head_dim, 1.0),
        ] {
            out.tensor(&format!("blk.{layer}.{part}.weight"), &[len], F32, &vec![value; len]);
        }
    }
    out
}

/// Values between -scale and scale.
fn noise(seed: u64, len: usize, scale: f32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..len).map(|_| scale * next()).collect()
}
