//! GGUF, as the converter of llama.cpp writes it.

use super::{Change, Content, Exception, Item, Job, Model, Progress, is_quantized};
use crate::chat::template::ChatTemplate;
use crate::gguf::{self, Named};
use crate::{EngineError, speculative};
use glimmer_checkpoint::tokenizer::Vocabulary;
use glimmer_checkpoint::write::gguf::{Header, Value, drafter_name, target_name};
use glimmer_checkpoint::{Checkpoint, Fields};
use glimmer_encoding::{Encoding, FloatType};
use glimmer_model::muse::{MuseConfig, VisionConfig};
use std::path::Path;

const F32: Encoding = Encoding::Dense(FloatType::F32);

/// Every tensor of the text tower or of a drafter, and those that the format adds: the model's norms of queries and keys have no
/// weights, here they have the scale of the queries, and ones.
pub fn items<'a>(job: &Job<'a>, exceptions: &mut Vec<Exception>) -> Vec<Item<'a>> {
    let mut items: Vec<Item<'_>> = job
        .checkpoint
        .tensors()
        .iter()
        .filter(|info| !VisionConfig::is_vision(&info.name))
        .map(|info| Item {
            name: info.name.clone(),
            shape: info.shape.clone(),
            encoding: if is_quantized(info) { job.encoding_of(info, exceptions) } else { F32 },
            content: Content::Tensor(info, change(job.model, &info.name)),
        })
        .collect();
    if let Model::Target(config) = job.model {
        let text = &config.text;
        for layer in 0..text.layers.len() {
            items.extend([("attn_q_norm", text.qk_scale_factor), ("attn_k_norm", 1.0)].map(|(part, value)| Item {
                name: format!("blk.{layer}.{part}.weight"),
                shape: vec![text.head_dim],
                encoding: F32,
                content: Content::Constant(value),
            }));
        }
    }
    items
}

/// What the converter does to a target's tensor; a drafter's are as they are.
fn change(model: &Model, name: &str) -> Change {
    let Model::Target(config) = model else { return Change::None };
    match name {
        _ if name.ends_with("layernorm.weight") => Change::PlusOne,
        _ if name.ends_with("self_attn.q_proj.weight") || name.ends_with("self_attn.k_proj.weight") => {
            Change::Interleaved { head_dim: config.text.head_dim }
        }
        _ => Change::None,
    }
}

/// Writes the file; false where it was ended early.
pub fn write(
    job: &Job<'_>,
    name: String,
    items: &[Item<'_>],
    to: &Path,
    progress: Progress<'_>,
) -> Result<bool, EngineError> {
    let mut header = metadata(job, name)?;
    for item in items {
        let name = match (&item.content, job.model) {
            (Content::Constant(_), _) => Some(item.name.clone()),
            (_, Model::Target(_)) => target_name(&item.name),
            (_, Model::Drafter(_)) => drafter_name(&item.name),
        };
        let name = name.expect("the tensors were accounted for");
        header.tensor(&name, item.encoding, &item.shape).expect("an encoding was chosen that the container has");
    }
    let total = items.iter().map(Item::bytes).sum();
    let mut data = header.create(to)?;
    let mut done = 0;
    for item in items {
        let mut step = |bytes| {
            done += bytes;
            progress(done, total)
        };
        if !job.transcoder.write(item, &mut data, &mut step)? {
            return Ok(false);
        }
    }
    data.finish()?;
    compare(job, to)?;
    Ok(true)
}

/// Whether the file says the same of the model. The format has no place for some settings, and takes those of the published model.
fn compare(job: &Job<'_>, file: &Path) -> Result<(), EngineError> {
    let checkpoint = glimmer_checkpoint::open(file)?;
    let differ = |found: String, expected: String| match found == expected {
        true => Ok(()),
        false => {
            let (label, format) = (job.checkpoint.label().to_string(), job.recipe.format.name());
            let what = format!("it would be read as {found}, expected {expected}");
            Err(EngineError::Unstorable { label, format, what })
        }
    };
    match job.model {
        Model::Target(config) => {
            let mut found = MuseConfig::from_checkpoint(&checkpoint)?.text;
            // A file names two tokens at most that end a generation, and the first of its tokenizer.
            (found.bos_token_id, found.eos_token_id) = (config.text.bos_token_id, config.text.eos_token_id.clone());
            differ(format!("{found:?}"), format!("{:?}", config.text))
        }
        Model::Drafter(config) => {
            differ(format!("{:?}", speculative::drafter(&checkpoint)?), format!("{:?}", Some(config)))
        }
    }
}

fn metadata(job: &Job<'_>, name: String) -> Result<Header, EngineError> {
    // A drafter has its target's tokenizer.
    let beside = job.tokenizer.as_ref().unwrap_or(job.checkpoint);
    let vocabulary = match beside.file("tokenizer.json")? {
        Some(bytes) => Some(Vocabulary::from_json(&format!("{}/tokenizer.json", beside.label()), &bytes)?),
        None => None,
    };
    let (body, mixed) = (job.recipe.encoding, job.recipe.is_mixed());
    let mut named = Named::default();
    let (mut header, vocabulary) = match job.model {
        Model::Target(config) => {
            let text = &config.text;
            (named.bos, named.eos) = (text.bos_token_id, text.eos_token_id.first().copied());
            named.eot = text.eos_token_id.get(1).copied();
            (gguf::target(name, body, mixed, text), vocabulary.map(|vocabulary| vocabulary.padded(text.vocab_size)))
        }
        Model::Drafter(config) => {
            let fields = job.checkpoint.fields();
            let size = |key| fields.opt_usize(key, 0..=u32::MAX as usize);
            let positions = size("max_position_embeddings")?.unwrap_or(131_072);
            (gguf::drafter(name, body, mixed, config, positions, size("vocab_size")?), vocabulary)
        }
    };
    if let Some(generation) = beside.json("generation_config.json")? {
        let file = format!("{}/generation_config.json", beside.label());
        let fields = Fields::new(&file, &generation);
        let ends = fields.opt_u32_list("eos_token_id", 64)?.unwrap_or_default();
        named.eos = named.eos.or(ends.first().copied());
        named.eot = named.eot.or(ends.into_iter().find(|&id| Some(id) != named.eos));
        named.pad = fields.opt_u32("pad_token_id", 0..=u32::MAX)?;
        sampling(&mut header, &fields)?;
    }
    if let Some(vocabulary) = &vocabulary {
        named.eot = vocabulary.id("<|eot|>").or(named.eot);
    }
    gguf::tokenizer(&mut header, vocabulary, named);
    if let Some(template) = template(beside)? {
        header.set("tokenizer.chat_template", Value::Text(template));
    }
    Ok(header)
}

fn template(checkpoint: &Checkpoint) -> Result<Option<String>, EngineError> {
    let [jinja, config] = ["chat_template.jinja", "tokenizer_config.json"].map(|name| checkpoint.file(name));
    Ok(ChatTemplate::find(jinja?.as_deref(), config?.as_deref())?.map(|(template, _)| template))
}

fn sampling(header: &mut Header, fields: &Fields<'_>) -> Result<(), EngineError> {
    for (field, key) in
        [("temperature", "temp"), ("top_p", "top_p"), ("min_p", "min_p"), ("repetition_penalty", "penalty_repeat")]
    {
        if let Some(value) = fields.opt_f32(field, f32::MIN..=f32::MAX)? {
            header.set(format!("general.sampling.{key}"), Value::F32(value));
        }
    }
    if let Some(k) = fields.opt_u32("top_k", 0..=i32::MAX as u32)? {
        header.set("general.sampling.top_k", Value::U32(k));
    }
    Ok(())
}
