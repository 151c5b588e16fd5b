//! What stands beside the weights: configurations, metadata, a tokenizer that is none.

use super::{Shape, StoredAs, Synth};
use crate::gguf::{self, Named};
use glimmer_checkpoint::tokenizer::{Role, Vocabulary};
use glimmer_checkpoint::write::gguf::Header;
use glimmer_encoding::{Encoding, FloatType};
use glimmer_model::kv_cache::Span;
use serde_json::{Value, json};

/// The control tokens that a checkpoint names.
pub struct Specials {
    pub bos: u32,
    pub eos: u32,
    pub eot: u32,
    pub pad: u32,
    pub mask: u32,
    /// All of them, by id.
    pub all: Vec<(u32, &'static str)>,
}

const NAMES: [&str; 10] = [
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|start|>",
    "<|message|>",
    "<|eom|>",
    "<|eot|>",
    "<|patch|>",
    "<|video|>",
    "<|pad|>",
    "<|mask|>",
];

/// Merged tokens behind the bytes, and the merges that make them.
const MERGED: [(&str, &str, &str); 5] =
    [("he", "h", "e"), ("th", "t", "h"), ("the", "th", "e"), ("in", "i", "n"), ("er", "e", "r")];

impl Synth {
    pub(super) fn specials(&self) -> Specials {
        let ids: [u32; 10] = match self.shape {
            // As published.
            Shape::Full => [200_000, 200_001, 200_022, 200_023, 200_007, 200_008, 200_092, 200_091, 200_018, 201_818],
            Shape::Mid => std::array::from_fn(|i| 32_000 - 10 + i as u32),
            Shape::Tiny => std::array::from_fn(|i| 4096 - 10 + i as u32),
        };
        let [bos, eos, _, _, _, eot, _, _, pad, mask] = ids;
        let mut all: Vec<_> = ids.into_iter().zip(NAMES).collect();
        all.sort();
        Specials { bos, eos, eot, pad, mask, all }
    }

    /// Every token by id: the bytes, a few words, control tokens, and fillers.
    fn tokens(&self, vocab_size: usize) -> Vec<String> {
        // Bytes that print stand for themselves, the others for characters from 256 on.
        let prints = |b: u32| (33..127).contains(&b) || (161..173).contains(&b) || (174..256).contains(&b);
        let mut others = 256..;
        let mut tokens: Vec<String> = (0..256u32)
            .filter_map(|b| if prints(b) { Some(b) } else { others.next() })
            .filter_map(char::from_u32)
            .map(String::from)
            .collect();
        tokens.extend(MERGED.map(|(token, ..)| token.to_string()));
        tokens.extend((tokens.len()..vocab_size).map(|id| format!("w{id}")));
        for (id, name) in self.specials().all {
            tokens[id as usize] = name.into();
        }
        tokens
    }

    /// The small files of a directory.
    pub(super) fn side_files(&self) -> Vec<(&'static str, Vec<u8>)> {
        let text = |value: Value| format!("{value:#}\n").into_bytes();
        if self.drafter {
            return vec![("config.json", text(self.drafter_json()))];
        }
        let specials = self.specials();
        let generation = json!({
            "bos_token_id": specials.bos,
            "do_sample": true,
            "eos_token_id": [specials.eos, specials.eot],
            "pad_token_id": specials.pad,
            "temperature": 1.0,
            "top_k": 64,
            "top_p": 0.95,
        });
        let tokenizer = json!({
            "bos_token": NAMES[0],
            "eos_token": NAMES[1],
            "pad_token": NAMES[8],
            "tokenizer_class": "PreTrainedTokenizerFast",
        });
        vec![
            ("config.json", text(self.target_json())),
            ("generation_config.json", text(generation)),
            ("tokenizer.json", self.vocabulary().to_json()),
            ("tokenizer_config.json", text(tokenizer)),
        ]
    }

    fn target_json(&self) -> Value {
        let text = self.text_config();
        let kind = |span| if span == Span::Full { "full_attention" } else { "sliding_attention" };
        let mut config = json!({
            "architectures": ["MuseGlimmerForConditionalGeneration"],
            "dtype": self.dtype(),
            "model_type": "muse_glimmer",
            "text_config": {
                "bos_token_id": text.bos_token_id,
                "eos_token_id": text.eos_token_id,
                "final_logit_softcapping": text.final_logit_softcapping,
                "head_dim": text.head_dim,
                "hidden_activation": "silu",
                "hidden_size": text.hidden_size,
                "intermediate_size": text.intermediate_size,
                "layer_rope_theta": text.layers.iter().map(|l| l.rope_theta.unwrap_or(0.0)).collect::<Vec<_>>(),
                "layer_types": text.layers.iter().map(|l| kind(l.span)).collect::<Vec<_>>(),
                "max_position_embeddings": text.max_position_embeddings,
                "model_type": "muse_glimmer_text",
                "num_attention_heads": text.num_attention_heads,
                "num_hidden_layers": text.layers.len(),
                "num_key_value_heads": text.num_key_value_heads,
                "output_multiplier": text.output_multiplier,
                "post_norm_eps": 1e-8,
                "qk_scale_factor": 3.87,
                "rms_norm_eps": 1e-5,
                "rope_parameters": { "rope_theta": super::THETA, "rope_type": "default" },
                "sliding_window": self.drafter_config().sliding_window,
                "tie_word_embeddings": false,
                "vocab_size": text.vocab_size,
            },
            "tie_word_embeddings": false,
        });
        self.quantization(&mut config);
        config
    }

    fn drafter_json(&self) -> Value {
        let config = self.drafter_config();
        let mut json = json!({
            "architectures": ["MuseGlimmerAssistantModel"],
            "block_size": config.block_size,
            "dtype": self.dtype(),
            "head_dim": config.head_dim,
            "hidden_act": "silu",
            "hidden_size": config.hidden_size,
            "intermediate_size": config.intermediate_size,
            "layer_types": vec!["sliding_attention"; config.num_hidden_layers],
            "mask_token_id": config.mask_token_id,
            "max_position_embeddings": self.text_config().max_position_embeddings,
            "model_type": "muse_glimmer_assistant",
            "num_attention_heads": config.num_attention_heads,
            "num_hidden_layers": config.num_hidden_layers,
            "num_key_value_heads": config.num_key_value_heads,
            "rms_norm_eps": 1e-5,
            "rope_parameters": { "rope_theta": config.rope_theta, "rope_type": "default" },
            "sliding_window": config.sliding_window,
            "target_layer_ids": config.target_layer_ids,
        });
        self.quantization(&mut json);
        json
    }

    fn dtype(&self) -> &'static str {
        match self.encoding.0 {
            Encoding::Dense(FloatType::F32) => "float32",
            Encoding::Dense(FloatType::F16) => "float16",
            _ => "bfloat16",
        }
    }

    /// What MLX says about quantized modules, under both names that it has for it.
    fn quantization(&self, config: &mut Value) {
        let (bits, group, mode) = match self.encoding.0 {
            Encoding::Affine { bits, group, .. } => (bits, group, "affine"),
            Encoding::MxFp4 => (4, 32, "mxfp4"),
            Encoding::MxFp8 => (8, 32, "mxfp8"),
            Encoding::NvFp4 => (4, 16, "nvfp4"),
            Encoding::Dense(_) | Encoding::Ggml(_) => return,
        };
        let settings = json!({ "group_size": group, "bits": bits, "mode": mode });
        config["quantization"] = settings.clone();
        config["quantization_config"] = settings;
    }

    fn vocabulary(&self) -> Vocabulary {
        let specials = self.specials();
        let role = |id: usize| match specials.all.iter().any(|(special, _)| *special as usize == id) {
            true => Role::Control,
            false => Role::Ordinary,
        };
        let tokens = self.tokens(self.text_config().vocab_size);
        Vocabulary {
            tokens: tokens.into_iter().enumerate().map(|(id, text)| (text, role(id))).collect(),
            merges: MERGED.map(|(_, left, right)| [left.to_string(), right.to_string()]).to_vec(),
            prefix: Some(specials.bos),
            ignore_merges: false,
        }
    }

    /// The header of a GGUF file, without tensors.
    pub(super) fn gguf_metadata(&self) -> Header {
        let (text, StoredAs(body)) = (self.text_config(), self.encoding);
        let mut header = match self.drafter {
            true => gguf::drafter(
                format!("synthetic-dflash-{body}"),
                body,
                false,
                &self.drafter_config(),
                text.max_position_embeddings,
                Some(text.vocab_size),
            ),
            false => gguf::target(format!("synthetic-muse-glimmer-{body}"), body, false, &text),
        };
        let Specials { bos, eos, eot, pad, .. } = self.specials();
        let named = Named { bos: Some(bos), eos: Some(eos), eot: Some(eot), pad: Some(pad) };
        gguf::tokenizer(&mut header, Some(self.vocabulary()), named);
        header
    }
}
