//! Directories of safetensors: as MLX reads them, and as Hugging Face has them.

use super::{Change, Content, Exception, Format, Item, Job, Progress, is_quantized, module};
use crate::EngineError;
use glimmer_checkpoint::TensorInfo;
use glimmer_checkpoint::write::safetensors::{Header, mlx_lm_name, mlx_vlm_name};
use glimmer_checkpoint::write::write_file;
use glimmer_encoding::{Encoding, FloatType};
use serde_json::{Map, Value, json};
use std::ops::Range;
use std::path::Path;

/// Bytes of a file, about: as much as the MLX tools put into one.
const SHARD: u64 = 5_000_000_000;

/// What is copied as it is.
const SIDE_FILES: [&str; 8] = [
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "processor_config.json",
];

/// Every tensor: matrices by the recipe, others as they are. Norms of a GGUF file are f32 beside matrices that are not, as it
/// has no others; here they are of 16 bits again, so that activations are.
pub fn items<'a>(job: &Job<'a>, exceptions: &mut Vec<Exception>) -> Vec<Item<'a>> {
    let tensors = job.checkpoint.tensors();
    let wide = |encoding| encoding == Encoding::Dense(FloatType::F32);
    let all_wide = tensors.iter().any(|info| is_quantized(info) && wide(info.encoding));
    let plain = |encoding| match (job.recipe.format, encoding) {
        (Format::Hf, _) => job.recipe.encoding,
        (_, Encoding::Dense(_)) if all_wide || !wide(encoding) => encoding,
        _ => Encoding::Dense(job.float),
    };
    let item = |info: &'a TensorInfo| Item {
        name: info.name.clone(),
        shape: info.shape.clone(),
        encoding: if is_quantized(info) { job.encoding_of(info, exceptions) } else { plain(info.encoding) },
        content: Content::Tensor(info, Change::None),
    };
    tensors.iter().map(item).collect()
}

/// Writes all files; false where it was ended early.
pub fn write(job: &Job<'_>, items: &[Item<'_>], to: &Path, progress: Progress<'_>) -> Result<bool, EngineError> {
    let text = |value: Value| format!("{value:#}\n").into_bytes();
    write_file(&to.join("config.json"), &text(config(job, items)))?;
    for name in SIDE_FILES {
        if let Some(bytes) = job.checkpoint.file(name)? {
            write_file(&to.join(name), &bytes)?;
        }
    }
    let sizes: Vec<u64> = items.iter().map(Item::bytes).collect();
    let (total, shards) = (sizes.iter().sum(), shards(&sizes, SHARD));
    let mut map = Map::new();
    let mut done = 0;
    for (i, shard) in shards.iter().enumerate() {
        let name = match shards.len() {
            1 => "model.safetensors".to_string(),
            count => format!("model-{:05}-of-{count:05}.safetensors", i + 1),
        };
        let mut header = Header::default();
        for item in &items[shard.clone()] {
            add(job, &mut header, item);
        }
        map.extend(header.names().map(|tensor| (tensor.to_string(), name.clone().into())));
        let mut data = header.create(&to.join(&name))?;
        for item in &items[shard.clone()] {
            let mut step = |bytes| {
                done += bytes;
                progress(done, total)
            };
            if !job.transcoder.write(item, &mut data, &mut step)? {
                return Ok(false);
            }
        }
        data.finish()?;
    }
    if shards.len() > 1 {
        let index = json!({ "metadata": { "total_size": total }, "weight_map": map });
        write_file(&to.join("model.safetensors.index.json"), &text(index))?;
    }
    Ok(true)
}

/// Ranges of tensors that together have at most `limit` bytes, or are one.
fn shards(sizes: &[u64], limit: u64) -> Vec<Range<usize>> {
    let (mut all, mut start, mut sum) = (Vec::new(), 0, 0);
    for (i, &size) in sizes.iter().enumerate() {
        if i > start && sum + size > limit {
            all.push(start..i);
            (start, sum) = (i, 0);
        }
        sum += size;
    }
    all.push(start..sizes.len());
    all
}

fn add(job: &Job<'_>, header: &mut Header, item: &Item<'_>) {
    let name = name(job, &item.name);
    let parts = match (name.strip_suffix(".weight"), item.encoding) {
        (None, Encoding::Dense(float)) => header.dense(name, float, &item.shape).map(|_| ()),
        (stem, encoding) => header.tensor(stem.unwrap_or(&name), encoding, &item.shape).map(|_| ()),
    };
    parts.expect("an encoding was chosen that the container has");
}

/// A tensor or a module as the files call it. Drafters have one name everywhere.
fn name(job: &Job<'_>, canonical: &str) -> String {
    match (job.recipe.format, job.model) {
        (Format::Mlx, super::Model::Target(_)) => mlx_vlm_name(canonical),
        _ => canonical.into(),
    }
}

fn config(job: &Job<'_>, items: &[Item<'_>]) -> Value {
    let mut config = job.checkpoint.config().clone();
    config.remove("quantization");
    config.remove("quantization_config");
    if config.get("model_type").is_some_and(|kind| kind == "muse_glimmer_text") {
        // What reads a directory looks for the architecture by the name that has images as well, and for control tokens at the top.
        let mut top = Map::new();
        top.insert("architectures".into(), json!(["MuseGlimmerForConditionalGeneration"]));
        top.insert("model_type".into(), "muse_glimmer".into());
        for key in ["bos_token_id", "eos_token_id"] {
            if let Some(ids) = config.get(key) {
                top.insert(key.into(), ids.clone());
            }
        }
        top.insert("text_config".into(), config.into());
        config = top;
    }
    let dense = match (job.recipe.format, job.recipe.encoding) {
        (Format::Hf, Encoding::Dense(float)) => float,
        _ => job.float,
    };
    let dtype = match dense {
        FloatType::F32 => "float32",
        FloatType::F16 => "float16",
        FloatType::BF16 => "bfloat16",
    };
    config.insert("dtype".into(), dtype.into());
    if let Some(text) = config.get_mut("text_config").and_then(Value::as_object_mut).filter(|t| t.contains_key("dtype"))
    {
        text.insert("dtype".into(), dtype.into());
    }
    if let Some(quantization) = quantization(job, items) {
        config.insert("quantization".into(), quantization.clone());
        config.insert("quantization_config".into(), quantization);
    }
    config.into()
}

/// What MLX is told about modules: the settings of all, and of those that have others, `false` where they have none. Each of those is
/// there by the name that mlx-vlm knows it by and by that of mlx-lm, which look them up without translating.
fn quantization(job: &Job<'_>, items: &[Item<'_>]) -> Option<Value> {
    let matrices = || {
        let of_matrix = |item: &&Item<'_>| matches!(item.content, Content::Tensor(info, _) if is_quantized(info));
        items.iter().filter(of_matrix).map(|item| (module(&item.name), settings(item.encoding)))
    };
    matrices().find(|(_, settings)| settings.is_some())?;
    let all = settings(job.recipe.encoding).unwrap_or_else(|| json!({ "group_size": 64, "bits": 4, "mode": "affine" }));
    let mut out = all.clone();
    for (module, settings) in matrices() {
        let settings = settings.unwrap_or(Value::Bool(false));
        if settings != all {
            out[name(job, module)] = settings.clone();
            out[mlx_lm_name(module)] = settings;
        }
    }
    Some(out)
}

fn settings(encoding: Encoding) -> Option<Value> {
    let (group, bits, mode) = match encoding {
        Encoding::Affine { bits, group, .. } => (group, bits, "affine"),
        Encoding::MxFp4 => (32, 4, "mxfp4"),
        Encoding::MxFp8 => (32, 8, "mxfp8"),
        Encoding::NvFp4 => (16, 4, "nvfp4"),
        Encoding::Dense(_) | Encoding::Ggml(_) => return None,
    };
    Some(json!({ "group_size": group, "bits": bits, "mode": mode }))
}

#[cfg(test)]
mod tests {
    #[test]
    fn shards_are_full_and_no_fuller() {
        assert_eq!(super::shards(&[3, 3, 3, 9, 1, 1], 6), [0..2, 2..3, 3..4, 4..6]);
        assert_eq!(super::shards(&[1, 2], 6).len(), 1);
    }
}
