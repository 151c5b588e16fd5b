//! The names that other programs give to the tensors of Muse-Glimmer, and those that Hugging Face gives them.

/// The canonical name of a target's tensor, or of a module that has tensors.
///
/// mlx-vlm puts the text tower under `language_model` whole, and vision parts at the top; mlx-lm has the text tower
/// alone, under `model`. Any other name is left as it is.
pub(crate) fn canonical(name: &str) -> String {
    let vision = ["vision_tower", "vision_adapter", "vision_projection"];
    let below = |prefix: &str, name: &str| name.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('.'));
    if let Some(rest) = name.strip_prefix("language_model.model.") {
        return format!("model.language_model.{rest}");
    }
    if let Some(rest) = name.strip_prefix("language_model.").filter(|rest| *rest == "lm_head" || below("lm_head", rest))
    {
        return rest.into();
    }
    if vision.iter().any(|part| name == *part || below(part, name)) {
        return format!("model.{name}");
    }
    match name.strip_prefix("model.") {
        Some(rest) if ["embed_tokens", "layers", "norm"].iter().any(|part| rest == *part || below(part, rest)) => {
            format!("model.language_model.{rest}")
        }
        _ => name.into(),
    }
}

/// The canonical name of a drafter's tensor: its codebooks are tables of embeddings to those who quantize them, and named like
/// such then.
pub(crate) fn drafter(name: &str) -> String {
    match name.strip_suffix(".weight") {
        Some(codebook) if codebook.ends_with("_codebook") => codebook.into(),
        _ => name.into(),
    }
}

/// The name that mlx-vlm gives to a target's tensor or module, by its canonical one. mlx-lm reads files with these names as
/// well, and leaves out what belongs to images; with the canonical ones it would not.
pub fn mlx_vlm_name(name: &str) -> String {
    match name.strip_prefix("model.") {
        _ if name.starts_with("lm_head") => format!("language_model.{name}"),
        Some(rest) if rest.starts_with("vision_") => rest.into(),
        Some(rest) => match rest.strip_prefix("language_model.") {
            Some(rest) => format!("language_model.model.{rest}"),
            None => name.into(),
        },
        None => name.into(),
    }
}

/// The name that mlx-lm gives to a module of the text tower once it has read it.
pub fn mlx_lm_name(name: &str) -> String {
    name.strip_prefix("model.language_model.").map_or_else(|| name.into(), |rest| format!("model.{rest}"))
}

#[cfg(test)]
mod tests {
    use super::{canonical, drafter, mlx_lm_name, mlx_vlm_name};

    #[test]
    fn names_lead_there_and_back() {
        for name in ["lm_head.weight", "model.language_model.layers.3.mlp.up_proj", "model.language_model.norm.weight"]
        {
            assert_eq!([mlx_vlm_name(name), mlx_lm_name(name)].map(|there| canonical(&there)), [name, name]);
        }
        let vision = "model.vision_tower.ln_pre.bias";
        assert_eq!(
            (mlx_vlm_name(vision).as_str(), canonical("vision_tower.ln_pre.bias").as_str()),
            (&vision[6..], vision)
        );
        assert_eq!(mlx_vlm_name("lm_head"), "language_model.lm_head");
        assert_eq!(mlx_lm_name("model.language_model.embed_tokens"), "model.embed_tokens");
    }

    #[test]
    fn codebooks_are_bare() {
        for (name, expected) in [
            ("candidate_selector.successor_codebook.weight", "candidate_selector.successor_codebook"),
            ("candidate_selector.successor_codebook", "candidate_selector.successor_codebook"),
            ("candidate_selector.hidden_projection.weight", "candidate_selector.hidden_projection.weight"),
            ("fc.weight", "fc.weight"),
        ] {
            assert_eq!(drafter(name), expected);
        }
    }

    #[test]
    fn every_spelling_becomes_that_of_hugging_face() {
        for (name, expected) in [
            ("lm_head.weight", "lm_head.weight"),
            ("language_model.lm_head.scales", "lm_head.scales"),
            ("language_model.lm_head", "lm_head"),
            ("model.norm.weight", "model.language_model.norm.weight"),
            ("model.layers.3.mlp.up_proj", "model.language_model.layers.3.mlp.up_proj"),
            ("language_model.model.embed_tokens.weight", "model.language_model.embed_tokens.weight"),
            ("model.language_model.layers.0.x", "model.language_model.layers.0.x"),
            ("vision_tower.layers.0.attn.proj.bias", "model.vision_tower.layers.0.attn.proj.bias"),
            ("vision_projection.weight", "model.vision_projection.weight"),
            ("vision_projection", "model.vision_projection"),
            ("model.vision_adapter.fc1.weight", "model.vision_adapter.fc1.weight"),
            ("model.extra.bias", "model.extra.bias"),
            ("vision_towers.x", "vision_towers.x"),
            ("language_model.lm_header", "language_model.lm_header"),
        ] {
            assert_eq!(canonical(name), expected);
        }
    }
}
