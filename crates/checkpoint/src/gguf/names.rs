//! What tensors and types are called in GGUF: one table for each, read in both directions.

use glimmer_encoding::{Encoding, FloatType, GgmlType};

/// The encodings that can be read and written, by the number of their type.
const TYPES: [(u32, Encoding); 26] = [
    (0, Encoding::Dense(FloatType::F32)),
    (1, Encoding::Dense(FloatType::F16)),
    (2, Encoding::Ggml(GgmlType::Q4_0)),
    (3, Encoding::Ggml(GgmlType::Q4_1)),
    (6, Encoding::Ggml(GgmlType::Q5_0)),
    (7, Encoding::Ggml(GgmlType::Q5_1)),
    (8, Encoding::Ggml(GgmlType::Q8_0)),
    (10, Encoding::Ggml(GgmlType::Q2K)),
    (11, Encoding::Ggml(GgmlType::Q3K)),
    (12, Encoding::Ggml(GgmlType::Q4K)),
    (13, Encoding::Ggml(GgmlType::Q5K)),
    (14, Encoding::Ggml(GgmlType::Q6K)),
    (16, Encoding::Ggml(GgmlType::Iq2Xxs)),
    (17, Encoding::Ggml(GgmlType::Iq2Xs)),
    (18, Encoding::Ggml(GgmlType::Iq3Xxs)),
    (19, Encoding::Ggml(GgmlType::Iq1S)),
    (20, Encoding::Ggml(GgmlType::Iq4Nl)),
    (21, Encoding::Ggml(GgmlType::Iq3S)),
    (22, Encoding::Ggml(GgmlType::Iq2S)),
    (23, Encoding::Ggml(GgmlType::Iq4Xs)),
    (29, Encoding::Ggml(GgmlType::Iq1M)),
    (30, Encoding::Dense(FloatType::BF16)),
    (34, Encoding::Ggml(GgmlType::Tq1_0)),
    (35, Encoding::Ggml(GgmlType::Tq2_0)),
    (39, Encoding::Ggml(GgmlType::MxFp4)),
    (40, Encoding::Ggml(GgmlType::NvFp4)),
];

/// Types that cannot be read: those that only products have on their way, those of no weight, and those that ggml has
/// given up. Numbers that are in neither table are a fault.
const REFUSED: [(u32, &str); 16] = [
    (4, "q4_2"),
    (5, "q4_3"),
    (9, "q8_1"),
    (15, "q8_k"),
    (24, "i8"),
    (25, "i16"),
    (26, "i32"),
    (27, "i64"),
    (28, "f64"),
    (31, "q4_0_4_4"),
    (32, "q4_0_4_8"),
    (33, "q4_0_8_8"),
    (36, "iq4_nl_4_4"),
    (37, "iq4_nl_4_8"),
    (38, "iq4_nl_8_8"),
    (41, "q1_0"),
];

/// The number of an encoding's type; `None` for those of other containers.
pub fn kind(encoding: Encoding) -> Option<u32> {
    TYPES.iter().find(|(_, known)| *known == encoding).map(|(kind, _)| *kind)
}

/// The encoding of a type.
pub(super) fn encoding(kind: u32) -> Option<Encoding> {
    TYPES.iter().find(|(known, _)| *known == kind).map(|(_, encoding)| *encoding)
}

/// The name of a type that there is and that has no encoding.
pub(super) fn refused(kind: u32) -> Option<&'static str> {
    REFUSED.iter().find(|(known, _)| *known == kind).map(|(_, name)| *name)
}

/// The names of an architecture's tensors: here, and in Hugging Face's checkpoints.
pub(super) struct Names {
    /// Whole names.
    singles: &'static [(&'static str, &'static str)],
    /// What the names of a layer's tensors begin with there, before its number.
    layers: &'static str,
    /// Parts of a layer; those that all architectures share are [`MATRICES`].
    parts: &'static [(&'static str, &'static str)],
    /// Parts of a layer whose names do not end in `.weight`.
    bare: &'static [(&'static str, &'static str)],
}

const MATRICES: [(&str, &str); 8] = [
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.o_proj"),
    ("attn_gate", "self_attn.gate_proj"),
    ("ffn_gate", "mlp.gate_proj"),
    ("ffn_up", "mlp.up_proj"),
    ("ffn_down", "mlp.down_proj"),
];

/// The target's.
pub(super) const TARGET: Names = Names {
    singles: &[
        ("token_embd.weight", "model.language_model.embed_tokens.weight"),
        ("output_norm.weight", "model.language_model.norm.weight"),
        ("output.weight", "lm_head.weight"),
    ],
    layers: "model.language_model.layers.",
    parts: &[
        ("attn_norm", "input_layernorm"),
        ("post_attention_norm", "post_attention_layernorm"),
        ("ffn_norm", "pre_feedforward_layernorm"),
        ("post_ffw_norm", "post_feedforward_layernorm"),
    ],
    bare: &[],
};

/// A DFlash v1 drafter's, which has no gate; one that is there is found when the tensors are accounted for.
pub(super) const DRAFTER: Names = Names {
    singles: &[
        ("fc.weight", "encoder.fc.weight"),
        ("enc.output_norm.weight", "encoder.output_norm_enc.weight"),
        ("output_norm.weight", "norm.weight"),
    ],
    layers: "layers.",
    parts: &[
        ("attn_norm", "input_layernorm"),
        ("ffn_norm", "post_attention_layernorm"),
        ("attn_q_norm", "self_attn.q_norm"),
        ("attn_k_norm", "self_attn.k_norm"),
    ],
    bare: &[],
};

/// A DFlash 2 drafter's.
pub(super) const DRAFTER2: Names = Names {
    singles: &[
        ("fc.weight", "fc.weight"),
        ("enc.output_norm.weight", "hidden_norm.weight"),
        ("output_norm.weight", "norm.weight"),
        ("selector_predecessor.weight", "candidate_selector.predecessor_codebook"),
        ("selector_successor.weight", "candidate_selector.successor_codebook"),
        ("selector_hidden.weight", "candidate_selector.hidden_projection.weight"),
    ],
    layers: "layers.",
    parts: &[
        ("attn_norm", "input_layernorm"),
        ("ffn_norm", "post_attention_layernorm"),
        ("attn_q_norm", "self_attn.q_norm"),
        ("attn_k_norm", "self_attn.k_norm"),
        ("attn_conv_proj", "attention_conv.kernel_projection"),
        ("ffn_conv_proj", "mlp_conv.kernel_projection"),
    ],
    bare: &[("attn_conv_base", "attention_conv.base_kernel"), ("ffn_conv_base", "mlp_conv.base_kernel")],
};

impl Names {
    /// The name there of what is called `name` here; `None` for unknown ones.
    pub(super) fn canonical(&self, name: &str) -> Option<String> {
        if let Some((_, single)) = self.singles.iter().find(|(here, _)| *here == name) {
            return Some((*single).into());
        }
        let (layer, part) = super::layer(name)?;
        if let Some((_, part)) = self.bare.iter().find(|(here, _)| *here == part) {
            return Some(format!("{}{layer}.{part}", self.layers));
        }
        let part = part.strip_suffix(".weight")?;
        let (_, part) = MATRICES.iter().chain(self.parts).find(|(here, _)| *here == part)?;
        Some(format!("{}{layer}.{part}.weight", self.layers))
    }

    /// The name here of what is called `name` there; `None` for unknown ones.
    fn stored(&self, name: &str) -> Option<String> {
        if let Some((single, _)) = self.singles.iter().find(|(_, there)| *there == name) {
            return Some((*single).into());
        }
        let (layer, part) = name.strip_prefix(self.layers)?.split_once('.')?;
        if let Some((part, _)) = self.bare.iter().find(|(_, there)| *there == part) {
            return Some(format!("blk.{layer}.{part}"));
        }
        let part = part.strip_suffix(".weight")?;
        let (part, _) = MATRICES.iter().chain(self.parts).find(|(_, there)| *there == part)?;
        Some(format!("blk.{layer}.{part}.weight"))
    }
}

/// The name in the file of a target's tensor, by its name in Hugging Face's checkpoints; `None` for unknown ones.
pub fn target_name(name: &str) -> Option<String> {
    TARGET.stored(name)
}

/// The same for a DFlash drafter's, of which no name means different things in the two versions.
pub fn drafter_name(name: &str) -> Option<String> {
    DRAFTER.stored(name).or_else(|| DRAFTER2.stored(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_there_and_back() {
        for names in [TARGET, DRAFTER, DRAFTER2] {
            let parts = MATRICES.iter().chain(names.parts).map(|(here, _)| format!("blk.17.{here}.weight"));
            let bare = names.bare.iter().map(|(here, _)| format!("blk.17.{here}"));
            for here in names.singles.iter().map(|(here, _)| here.to_string()).chain(parts).chain(bare) {
                let there = names.canonical(&here).unwrap();
                assert_eq!(names.stored(&there), Some(here));
            }
        }
        assert_eq!(target_name("model.language_model.layers.3.mlp.up_proj.weight").unwrap(), "blk.3.ffn_up.weight");
        assert_eq!(drafter_name("layers.3.post_attention_layernorm.weight").unwrap(), "blk.3.ffn_norm.weight");
        for (there, here) in [
            ("fc.weight", "fc.weight"),
            ("encoder.fc.weight", "fc.weight"),
            ("candidate_selector.successor_codebook", "selector_successor.weight"),
            ("layers.3.mlp_conv.base_kernel", "blk.3.ffn_conv_base"),
            ("layers.3.attention_conv.kernel_projection.weight", "blk.3.attn_conv_proj.weight"),
        ] {
            assert_eq!(drafter_name(there).as_deref(), Some(here));
        }
        assert_eq!(drafter_name("layers.3.mlp_conv.base_kernel.weight"), None);
        assert!(TYPES.iter().all(|&(number, known)| kind(known) == Some(number) && encoding(number) == Some(known)));
        assert!(GgmlType::ALL.into_iter().all(|known| kind(Encoding::Ggml(known)).is_some()));
        assert!((0..64).all(|number| encoding(number).is_none() || refused(number).is_none()));
    }
}
