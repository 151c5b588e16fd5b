//! What a checkpoint is, for people and as JSON.

use crate::failure::{Failure, Outcome};
use crate::plan::InspectPlan;
use crate::{models, terminal};
use glimmer_engine::inspect::{CacheSizes, DFlashConfig, Part, Projector, Report, Span, inspect as look};
use glimmer_engine::{EngineOptions, KvTypes, memory};
use serde_json::{Value, json};

/// Does what `inspect` says.
pub fn inspect(mut plan: InspectPlan) -> Outcome {
    models::obtain(&mut plan.options, true)?;
    let report = look(&plan.options)?;
    if matches!(report.part, Part::Drafter(_)) && plan.options != EngineOptions::new(plan.options.target.clone()) {
        let line = format!("{} is a drafter: --draft-model and memory for a context are a target's", report.label);
        return Err(Failure::Runtime(line));
    }
    let available = memory::available();
    match plan.json {
        true => terminal::print(&format!("{:#}\n", to_json(&report, available))),
        false => terminal::print(&table(&report, available)),
    }
}

/// What running it takes, in bytes.
struct Need {
    weights: u64,
    drafter: u64,
    cache: CacheSizes,
}

impl Need {
    fn total(&self) -> u64 {
        self.weights.saturating_add(self.drafter).saturating_add(self.cache.total())
    }

    fn line(&self, types: KvTypes) -> String {
        let cache = &self.cache;
        let parts = format!(
            "weights {}, drafter {} and its context {}, KV cache full {} and sliding {} ({}/{}), passes about {}",
            bytes(self.weights),
            bytes(self.drafter),
            bytes(cache.drafter),
            bytes(cache.full),
            bytes(cache.sliding),
            types.keys,
            types.values,
            bytes(cache.passes)
        );
        format!("{} for a context of {}: {parts}", bytes(self.total()), cache.context)
    }
}

/// The window of the sliding layers, and how many layers of which kind.
fn spans(spans: impl Iterator<Item = Span>) -> (usize, usize, Option<usize>) {
    spans.fold((0, 0, None), |(full, sliding, window), span| match span {
        Span::Full => (full + 1, sliding, window),
        Span::Sliding(window) => (full, sliding + 1, Some(window)),
    })
}

fn table(report: &Report, available: Option<u64>) -> String {
    let mut rows: Vec<(&str, String)> = Vec::new();
    let mut row = |name, value: String| rows.push((name, terminal::on_one_line(&value).into_owned()));
    row("checkpoint", report.label.clone());
    row("architecture", report.architecture.clone());
    let vision = match report.vision_parameters {
        0 => "no vision".into(),
        n => format!("{} text, {} vision", count(report.parameters - n), count(n)),
    };
    row("parameters", format!("{} ({vision})", count(report.parameters)));
    let encodings = report.encodings.iter().map(|(name, n, size)| format!("{name}: {n} tensors, {}", bytes(*size)));
    row("weights", format!("{} ({})", bytes(report.bytes), encodings.collect::<Vec<_>>().join("; ")));
    match &report.part {
        Part::Drafter(config) => {
            row("part", "drafter (`glimmer inspect TARGET --draft-model THIS` says whether it fits)".into());
            row("block size", format!("{} rows, {} proposals", config.block_size, config.block_size - 1));
            row("layers", config.num_hidden_layers.to_string());
            row("window", format!("{} tokens", config.sliding_window));
            row("taps", format!("outputs of the target's layers {:?}", config.target_layer_ids));
            row("mask token", config.mask_token_id.to_string());
            row("hidden size", format!("{}, MLP {}", config.hidden_size, config.intermediate_size));
            let (heads, kv_heads) = (config.num_attention_heads, config.num_key_value_heads);
            row("heads", format!("{heads} for queries, {kv_heads} for keys and values, of {}", config.head_dim));
            if let Some(dflash2) = &config.dflash2 {
                let (taps, group) = (dflash2.conv_kernel_size, dflash2.conv_group_size);
                row("convolutions", format!("of {taps} rows, groups of {group} channels"));
                let (top_k, rank) = (dflash2.selector_top_k, dflash2.selector_rank);
                row("selector", format!("among {top_k} candidates, codes of {rank}"));
            }
        }
        Part::Target {
            text,
            tokenizer,
            chat_template,
            weight_bytes,
            cache,
            cache_types,
            drafter,
            drafter_bytes,
            projector,
        } => {
            row("part", "target".into());
            let (full, sliding, window) = spans(text.layers.iter().map(|layer| layer.span));
            let window = window.map(|window| format!(" with a window of {window}")).unwrap_or_default();
            row("layers", format!("{} ({full} full, {sliding} sliding{window})", text.layers.len()));
            row("hidden size", format!("{}, MLP {}", text.hidden_size, text.intermediate_size));
            let (heads, kv_heads) = (text.num_attention_heads, text.num_key_value_heads);
            row("heads", format!("{heads} for queries, {kv_heads} for keys and values, of {}", text.head_dim));
            row("vocabulary", format!("{} tokens", text.vocab_size));
            row("context limit", format!("{} tokens", text.max_position_embeddings));
            row("tokenizer", yes(*tokenizer).into());
            row("chat template", yes(*chat_template).into());
            if let Some(Projector { label, parameters, bytes: size }) = projector {
                row("vision", format!("{label}: {} parameters, {}", count(*parameters), bytes(*size)));
            }
            if let Some((label, fit)) = drafter {
                row("drafter", label.clone());
                match fit {
                    Ok(config) => {
                        let (block, layers) = (config.block_size, config.num_hidden_layers);
                        let ids = &config.target_layer_ids;
                        row("drafter fits", format!("yes: block of {block}, {layers} layers, taps {ids:?}"));
                    }
                    Err(why) => row("drafter fits", format!("no: {why}")),
                }
            }
            let need = Need { weights: *weight_bytes, drafter: *drafter_bytes, cache: *cache };
            row("memory needed", need.line(*cache_types));
            row(
                "memory available",
                match available {
                    Some(available) if available < need.total() => format!("{}: not enough", bytes(available)),
                    Some(available) => bytes(available),
                    None => "unknown".into(),
                },
            );
        }
    }
    rows.iter().map(|(name, value)| format!("{name:<18}{value}\n")).collect()
}

fn to_json(report: &Report, available: Option<u64>) -> Value {
    let encodings = report
        .encodings
        .iter()
        .map(|(name, tensors, bytes)| json!({ "name": name, "tensors": tensors, "bytes": bytes }));
    let mut all = json!({
        "model": report.label,
        "architecture": report.architecture,
        "part": if matches!(report.part, Part::Drafter(_)) { "drafter" } else { "target" },
        "parameters": report.parameters,
        "text_parameters": report.parameters - report.vision_parameters,
        "vision_parameters": report.vision_parameters,
        "tensors": report.tensors,
        "bytes": report.bytes,
        "encodings": encodings.collect::<Value>(),
    });
    if let Part::Drafter(config) = &report.part {
        all["drafter_config"] = json!({
            "block_size": config.block_size,
            "layers": config.num_hidden_layers,
            "sliding_window": config.sliding_window,
            "target_layer_ids": config.target_layer_ids,
            "mask_token_id": config.mask_token_id,
            "hidden_size": config.hidden_size,
            "intermediate_size": config.intermediate_size,
            "num_attention_heads": config.num_attention_heads,
            "num_key_value_heads": config.num_key_value_heads,
            "head_dim": config.head_dim,
        });
        if let Some(dflash2) = &config.dflash2 {
            all["drafter_config"]["dflash2"] = json!({
                "conv_kernel_size": dflash2.conv_kernel_size,
                "conv_group_size": dflash2.conv_group_size,
                "selector_rank": dflash2.selector_rank,
                "selector_top_k": dflash2.selector_top_k,
            });
        }
    }
    if let Part::Target {
        text,
        tokenizer,
        chat_template,
        weight_bytes,
        cache,
        cache_types,
        drafter,
        drafter_bytes,
        projector,
    } = &report.part
    {
        let (full, sliding, window) = spans(text.layers.iter().map(|layer| layer.span));
        all["text"] = json!({
            "layers": text.layers.len(),
            "full_layers": full,
            "sliding_layers": sliding,
            "sliding_window": window,
            "hidden_size": text.hidden_size,
            "intermediate_size": text.intermediate_size,
            "num_attention_heads": text.num_attention_heads,
            "num_key_value_heads": text.num_key_value_heads,
            "head_dim": text.head_dim,
            "vocab_size": text.vocab_size,
            "max_position_embeddings": text.max_position_embeddings,
        });
        all["tokenizer"] = json!(tokenizer);
        all["chat_template"] = json!(chat_template);
        all["mmproj"] = projector.as_ref().map_or(Value::Null, |Projector { label, parameters, bytes }| {
            json!({ "model": label, "parameters": parameters, "bytes": bytes })
        });
        all["drafter"] = drafter.as_ref().map_or(Value::Null, |(label, fit)| drafter_json(label, fit));
        let need = Need { weights: *weight_bytes, drafter: *drafter_bytes, cache: *cache };
        all["memory"] = json!({
            "context": cache.context,
            "cache_type_k": cache_types.keys.to_string(),
            "cache_type_v": cache_types.values.to_string(),
            "weights_bytes": need.weights,
            "drafter_bytes": need.drafter,
            "cache_full_bytes": cache.full,
            "cache_sliding_bytes": cache.sliding,
            "cache_drafter_bytes": cache.drafter,
            "passes_bytes": cache.passes,
            "total_bytes": need.total(),
            "available_bytes": available,
            "fits": available.map(|available| need.total() <= available),
        });
    }
    all
}

/// A drafter, and whether, or why not, it fits.
fn drafter_json(label: &str, fit: &Result<DFlashConfig, String>) -> Value {
    let config = fit.as_ref().ok();
    json!({
        "model": label,
        "fits": fit.is_ok(),
        "why_not": fit.as_ref().err(),
        "block_size": config.map(|config| config.block_size),
        "layers": config.map(|config| config.num_hidden_layers),
        "sliding_window": config.map(|config| config.sliding_window),
        "target_layer_ids": config.map(|config| &config.target_layer_ids),
        "mask_token_id": config.map(|config| config.mask_token_id),
    })
}

fn yes(yes: bool) -> &'static str {
    if yes { "yes" } else { "no" }
}

/// Three digits are enough to compare.
fn scaled(n: u64, units: [&str; 4]) -> String {
    let mut value = n as f64;
    let mut at = 0;
    while value >= 999.5 && at + 1 < units.len() {
        value /= 1000.0;
        at += 1;
    }
    let digits = match value {
        _ if at == 0 => 0,
        value if value < 9.995 => 2,
        value if value < 99.95 => 1,
        _ => 0,
    };
    format!("{value:.digits$}{}", units[at])
}

fn bytes(n: u64) -> String {
    scaled(n, [" B", " kB", " MB", " GB"])
}

fn count(n: u64) -> String {
    scaled(n, ["", " k", " M", " B"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_three_digits() {
        for (n, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.00 kB"),
            (8_479_056, "8.48 MB"),
            (99_940_000, "99.9 MB"),
            (999_600, "1.00 MB"),
            (56_623_104_000, "56.6 GB"),
            (5_000_000_000_000, "5000 GB"),
        ] {
            assert_eq!(bytes(n), text);
        }
        assert_eq!((count(4_233_024).as_str(), count(12).as_str()), ("4.23 M", "12"));
    }
}
