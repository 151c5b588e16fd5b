//! A loaded model: weights, drafter, tokenizer, template, defaults.

use crate::EngineError;
use crate::chat::channels::Frame;
use crate::chat::message::{Message, ReasoningStrength};
use crate::chat::template::{ChatTemplate, RenderInput};
use crate::inspect::{self, CacheSizes};
use crate::memory;
use crate::prefix::{PrefixCache, PrefixUsage};
use crate::sampling::Sampling;
use crate::session::Session;
use crate::source::Source;
use crate::speculative::{self, Drafter, Experience, NGRAM_BLOCK, Rehearsal, Rehearsed, Script};
use crate::spill::Spill;
use crate::step::Matrices;
use crate::suspicion;
use crate::tokenizer::Tokenizer;
use crate::tune::{self, TuningKey};
use glimmer_backend::{ActivationType, CpuBackend, CpuOptions, Isa, KvType, KvTypes};
use glimmer_checkpoint::{Checkpoint, Fields};
use glimmer_encoding::{Encoding, FloatType};
use glimmer_model::muse::{self, MuseConfig, MuseText, TextConfig};
use sha2::{Digest, Sha256};
use std::iter;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The backend of this build.
pub(crate) type Active = CpuBackend;

/// What an engine is made of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineOptions {
    /// The target.
    pub target: Source,
    /// The drafter, if any.
    pub drafter: Option<Source>,
    /// What followed the same tokens earlier in the sequence is proposed too: by itself, or before the drafter is asked.
    pub ngram: bool,
    /// The drafter's proposals can be replaced by those of a [`Script`]; for measuring.
    pub rehearsed: bool,
    /// The vision tower of a target in GGUF files, which has a file of its own (mmproj).
    pub projector: Option<Source>,
    /// Tokens that prompt and answer may have together; the default is the model's own limit.
    pub context: Option<usize>,
    /// How keys are stored; the default is f32 for nano and f32 checkpoints, otherwise f16.
    pub cache_keys: Option<KvType>,
    /// How values are stored; the default is the same.
    pub cache_values: Option<KvType>,
    /// Tokens of a prompt that are processed in one pass.
    pub prefill_chunk: usize,
    /// Bytes of keys and values that are kept for prompts that begin like earlier ones; 0 keeps none.
    pub prefix_cache: u64,
    /// Where what is no longer kept in memory goes, and all of it at the end.
    pub prefix_files: Option<PrefixFiles>,
    /// Threads; the default is one per core that the process may use.
    pub threads: Option<usize>,
    /// Instruction set; the default is the machine's fastest.
    pub isa: Option<Isa>,
    /// What activations are multiplied as.
    pub activations: ActivationType,
    /// Weights stay in their files, which are mapped into memory: for machines that have not the memory to hold them. Every
    /// product packs them anew, to the same bits. Cutting a file meanwhile crashes the process.
    pub mmap: bool,
}

/// A folder for keys and values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefixFiles {
    /// The folder; each model and setting has one of its own in it.
    pub dir: PathBuf,
    /// Bytes that one of those may have.
    pub limit: u64,
}

impl EngineOptions {
    /// The defaults for a target.
    pub fn new(target: Source) -> Self {
        Self {
            target,
            drafter: None,
            ngram: false,
            rehearsed: false,
            projector: None,
            context: None,
            cache_keys: None,
            cache_values: None,
            prefill_chunk: 512,
            prefix_cache: 0,
            prefix_files: None,
            threads: None,
            isa: None,
            activations: ActivationType::Auto,
            mmap: false,
        }
    }

    /// Opens the target, and maps it if that was asked for.
    pub(crate) fn open_target(&self) -> Result<Checkpoint, EngineError> {
        self.mapped(self.target.open_target()?)
    }

    /// The same of the drafter.
    pub(crate) fn open_drafter(&self) -> Result<Option<Checkpoint>, EngineError> {
        self.drafter.as_ref().map(|drafter| self.mapped(drafter.open_drafter()?)).transpose()
    }

    /// Opens the vision tower beside a target, and accounts for it.
    pub(crate) fn open_projector(&self, text: &TextConfig) -> Result<Option<Checkpoint>, EngineError> {
        let Some(projector) = &self.projector else { return Ok(None) };
        let checkpoint = projector.open_target()?;
        muse::account_projector(&checkpoint, text.hidden_size)?;
        Ok(Some(checkpoint))
    }

    fn mapped(&self, mut checkpoint: Checkpoint) -> Result<Checkpoint, EngineError> {
        if self.mmap {
            checkpoint.map()?;
        }
        Ok(checkpoint)
    }

    /// Bytes of memory that the weights of a checkpoint take.
    pub(crate) fn held_bytes(&self, checkpoint: &Checkpoint) -> u64 {
        if self.mmap { 0 } else { inspect::held_bytes(checkpoint, self.activations) }
    }
}

/// A loaded model. Cheap to clone; sessions share it.
#[derive(Clone)]
pub struct Engine {
    pub(crate) loaded: Arc<Loaded>,
}

/// Everything that sessions share.
pub(crate) struct Loaded {
    pub backend: Active,
    pub target: MuseText<Active>,
    pub drafter: Option<Arc<dyn Drafter<Active>>>,
    pub rehearsal: Option<Arc<Rehearsal>>,
    pub lookup: bool,
    pub experience: Arc<Experience>,
    pub prefix: Mutex<PrefixCache<Active>>,
    /// Of a layer of the target, and of the drafter.
    pub page_bytes: [u64; 2],
    pub tokenizer: Option<Arc<Tokenizer>>,
    pub template: Option<ChatTemplate>,
    pub frame: Option<Frame>,
    pub geometry: Geometry,
    pub settings: Settings,
    pub matrices: Matrices,
    pub tuning_key: Option<TuningKey>,
    pub suspicions: Vec<String>,
    pub defaults: Sampling,
    pub eos: Vec<u32>,
}

/// The settings in effect, as the start line and `--json` name them.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The target.
    pub model: String,
    /// How its weights are stored, and where that differs, how they are held.
    pub encoding: String,
    /// The drafter.
    pub drafter: Option<DrafterSettings>,
    /// Tokens that prompt and answer may have together.
    pub context: usize,
    /// How keys and values are stored.
    pub cache: KvTypes,
    /// What activations are multiplied as.
    pub activations: String,
    /// Tokens of a prompt that are processed in one pass.
    pub prefill_chunk: usize,
    /// Threads.
    pub threads: usize,
    /// Instruction set.
    pub isa: Isa,
    /// Whether weights stay in their files.
    pub mmap: bool,
}

/// The drafter in effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DrafterSettings {
    /// The drafter's checkpoint; `None` where proposals are looked up only.
    pub model: Option<String>,
    /// Its kind, for example `dflash`; `ngram` where proposals are looked up, `hybrid` where they are before it is asked.
    pub kind: &'static str,
    /// The most rows of a round.
    pub block_size: usize,
}

/// How far loading has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadProgress {
    /// Bytes of weights that were read.
    pub done: u64,
    /// All bytes of weights.
    pub total: u64,
}

impl Engine {
    /// Loads target and drafter. Everything that can be refused is refused before weights are read.
    pub fn load(options: &EngineOptions, progress: &mut (dyn FnMut(LoadProgress) + Send)) -> Result<Self, EngineError> {
        let mut checkpoint = options.open_target()?;
        let config = MuseConfig::from_checkpoint(&checkpoint)?;
        muse::account(&checkpoint, &config)?;
        // Nothing is computed with it yet; a wrong one is refused all the same.
        options.open_projector(&config.text)?;
        let cache = cache_types(options, &checkpoint);
        let mut drafter_checkpoint = options.open_drafter()?;
        let bound = match &drafter_checkpoint {
            Some(drafter) => Some(speculative::bind(drafter, &config.text, checkpoint.label())?),
            None => None,
        };
        let geometry = Geometry::new(options, &config.text, bound.as_ref().map_or(1, |bound| bound.block_size()))?;
        let sizes = CacheSizes::of(&config.text, geometry, cache, bound.as_ref());
        let checkpoints = || iter::once(&checkpoint).chain(&drafter_checkpoint);
        let held = checkpoints().map(|checkpoint| options.held_bytes(checkpoint)).sum();
        let total = checkpoints().map(inspect::text_bytes).sum();
        let room = refuse_without_memory(checkpoint.label(), held, sizes)?;
        // Files that are kept as well would push out what others need.
        if room < total {
            iter::once(&mut checkpoint).chain(&mut drafter_checkpoint).for_each(Checkpoint::forget_what_is_read);
        }
        let files = SideFiles::read(&checkpoint, &config)?;

        let (threads, isa, activations) = (options.threads, options.isa, options.activations);
        let backend = CpuBackend::new(CpuOptions { threads, isa, activations })?;
        let named = inspect::activations(&checkpoint, &backend)?;
        if activations == ActivationType::Int8 && named == ActivationType::F32.to_string() {
            return Err(EngineError::NoActivations { label: checkpoint.label().to_string(), activations });
        }
        drafter_checkpoint.as_ref().map(|drafter| inspect::activations(drafter, &backend)).transpose()?;
        progress(LoadProgress { done: 0, total });
        let target =
            MuseText::load(&backend, &checkpoint, &config, &mut |done| progress(LoadProgress { done, total }))?;
        let before = inspect::text_bytes(&checkpoint);
        let drafter = match drafter_checkpoint.as_ref().zip(bound) {
            Some((checkpoint, bound)) => Some(
                bound.load(&backend, checkpoint, &mut |done| progress(LoadProgress { done: before + done, total }))?,
            ),
            None => None,
        };
        let of_target = config.text.pages(cache);
        let specs = [of_target, drafter.as_ref().map_or(of_target, |drafter| drafter.pages())];
        let page_bytes = specs.map(|spec| CpuBackend::page_bytes(spec) as u64);
        let mut prefix = PrefixCache::new(options.prefix_cache, specs, page_bytes);
        if let Some(files) = &options.prefix_files {
            let root = prefix_root(&checkpoint, drafter_checkpoint.as_ref(), options, &named, cache)?;
            let failed = |error: std::io::Error| EngineError::PrefixFiles { dir: files.dir.clone(), error };
            prefix = prefix.spilling(Spill::open(&files.dir, root, files.limit).map_err(failed)?).map_err(failed)?;
        }
        let rehearsal = options.rehearsed.then(Arc::<Rehearsal>::default);
        let drafter = match (drafter, &rehearsal) {
            (Some(inner), Some(rehearsal)) => {
                Some(Arc::new(Rehearsed { inner, rehearsal: Arc::clone(rehearsal) }) as Arc<dyn Drafter<Active>>)
            }
            (drafter, _) => drafter,
        };
        progress(LoadProgress { done: total, total });
        let mut suspicions = suspicion::of_target(&checkpoint, &config.text)?;
        if let Some(drafter) = &drafter_checkpoint {
            suspicions.extend(speculative::suspicions(drafter)?);
        }
        let settings = Settings {
            model: checkpoint.label().to_string(),
            encoding: inspect::encodings(&checkpoint, &backend),
            drafter: (drafter.is_some() || options.ngram).then(|| DrafterSettings {
                model: drafter_checkpoint.as_ref().map(|checkpoint| checkpoint.label().to_string()),
                kind: match &drafter {
                    Some(_) if options.ngram => "hybrid",
                    Some(drafter) => drafter.kind(),
                    None => "ngram",
                },
                block_size: geometry.block,
            }),
            context: geometry.context,
            cache,
            activations: named,
            prefill_chunk: geometry.prefill_chunk,
            threads: backend.threads(),
            isa: backend.isa(),
            mmap: options.mmap,
        };
        let matrices = inspect::matrices(&checkpoint, &backend);
        let tuning_key = tune::key(options, &settings, [before, total - before]);
        let SideFiles { tokenizer, template, frame, defaults, eos } = files;
        let loaded = Loaded {
            backend,
            target,
            drafter,
            rehearsal,
            lookup: options.ngram,
            experience: Arc::new(Experience::new(geometry.block)),
            prefix: Mutex::new(prefix),
            page_bytes,
            tokenizer,
            template,
            frame,
            geometry,
            settings,
            matrices,
            tuning_key,
            suspicions,
            defaults,
            eos,
        };
        Ok(Self { loaded: Arc::new(loaded) })
    }

    /// A new sequence with an empty cache.
    pub fn session(&self) -> Result<Session, EngineError> {
        Ok(Session::new(Arc::clone(&self.loaded)))
    }

    /// What is kept for prompts that begin like earlier ones; `None` where nothing is.
    pub fn prefix_usage(&self) -> Option<PrefixUsage> {
        self.loaded.prefix().map(|prefix| prefix.usage())
    }

    /// From here on the drafter of an engine that was loaded for it proposes by this script, whatever the sequence; or its own
    /// tokens again.
    pub fn rehearse(&self, script: Option<Script>) {
        if let Some(rehearsal) = &self.loaded.rehearsal {
            rehearsal.set(script);
        }
    }

    /// The settings in effect.
    pub fn settings(&self) -> &Settings {
        &self.loaded.settings
    }

    /// What about the weights looks like a conversion that went wrong, a line for each.
    pub fn suspicions(&self) -> &[String] {
        &self.loaded.suspicions
    }

    /// The processor time that the caller and the threads that work for it have had, for a difference that is taken by one caller; `None`
    /// where the system does not say.
    pub fn cpu_time(&self) -> Option<Duration> {
        self.loaded.backend.cpu_time()
    }

    /// The checkpoint's sampling settings (`generation_config.json`), or the published model's.
    pub fn default_sampling(&self) -> &Sampling {
        &self.loaded.defaults
    }

    /// The tokens that end a generation.
    pub fn eos(&self) -> &[u32] {
        &self.loaded.eos
    }

    /// The size of the vocabulary.
    pub fn vocab_size(&self) -> usize {
        self.loaded.target.config().vocab_size
    }

    /// Whether the checkpoint brings a chat template.
    pub fn can_chat(&self) -> bool {
        self.loaded.template.is_some()
    }

    /// The tokenizer, if the checkpoint brings one.
    pub fn tokenizer(&self) -> Option<&Tokenizer> {
        self.loaded.tokenizer.as_deref()
    }

    /// The ids of a raw prompt: what the tokenizer puts in front of a document, and the text as ordinary text.
    pub fn encode_raw(&self, text: &str) -> Result<Vec<u32>, EngineError> {
        Ok(self.loaded.tokenizer()?.encode_raw(text)?)
    }

    /// The prompt of a conversation, up to where the model is to speak.
    pub fn encode_chat(
        &self,
        messages: &[Message],
        strength: Option<ReasoningStrength>,
    ) -> Result<Vec<u32>, EngineError> {
        let tokenizer = self.loaded.tokenizer()?;
        let template =
            self.loaded.template.as_ref().ok_or_else(|| self.loaded.without("chat template", "use --raw"))?;
        let input = RenderInput {
            messages,
            reasoning_strength: strength,
            add_generation_prompt: true,
            ..RenderInput::default()
        };
        Ok(tokenizer.encode_segments(&template.render(&input)?)?)
    }
}

impl Drop for Loaded {
    fn drop(&mut self) {
        self.prefix.get_mut().unwrap_or_else(PoisonError::into_inner).flush(&self.backend);
    }
}

impl Loaded {
    /// The kept beginnings of sequences; `None` where none are kept.
    pub fn prefix(&self) -> Option<MutexGuard<'_, PrefixCache<Active>>> {
        // What a thread that panicked left is a whole tree: pages are put in last.
        let prefix = self.prefix.lock().unwrap_or_else(PoisonError::into_inner);
        (prefix.limit() > 0).then_some(prefix)
    }

    /// The tokenizer, or the error that says what works without one.
    pub fn tokenizer(&self) -> Result<&Arc<Tokenizer>, EngineError> {
        self.tokenizer.as_ref().ok_or_else(|| self.without("tokenizer.json", "only --prompt-ids works with it"))
    }

    pub fn without(&self, what: &'static str, advice: &'static str) -> EngineError {
        EngineError::Without { label: self.settings.model.clone(), what, advice }
    }
}

/// What stands beside the weights.
struct SideFiles {
    tokenizer: Option<Arc<Tokenizer>>,
    template: Option<ChatTemplate>,
    frame: Option<Frame>,
    defaults: Sampling,
    eos: Vec<u32>,
}

impl SideFiles {
    fn read(checkpoint: &Checkpoint, config: &MuseConfig) -> Result<Self, EngineError> {
        let at = |file: &str| format!("{}/{file}", checkpoint.label());
        let tokenizer = tokenizer_of(checkpoint, config)?.map(Arc::new);
        let [jinja, tokenizer_config] =
            ["chat_template.jinja", "tokenizer_config.json"].map(|name| checkpoint.file(name));
        let (jinja, tokenizer_config) = (jinja?, tokenizer_config?);
        let template = match &tokenizer {
            None => None,
            Some(tokenizer) => ChatTemplate::find(jinja.as_deref(), tokenizer_config.as_deref())?
                .map(|(source, file)| ChatTemplate::new(&source, at(file), tokenizer))
                .transpose()?,
        };
        let frame = match (&tokenizer, &template) {
            (Some(tokenizer), Some(_)) => Some(Frame::new(tokenizer)?),
            _ => None,
        };
        let (defaults, eos) = generation_config(checkpoint, config)?;
        Ok(Self { tokenizer, template, frame, defaults, eos })
    }
}

/// The tokenizer beside the weights, if there is one.
pub(crate) fn tokenizer_of(checkpoint: &Checkpoint, config: &MuseConfig) -> Result<Option<Tokenizer>, EngineError> {
    let at = |file: &str| format!("{}/{file}", checkpoint.label());
    let Some(bytes) = checkpoint.file("tokenizer.json")? else { return Ok(None) };
    let mut tokenizer = Tokenizer::from_json(&bytes, at("tokenizer.json"))?;
    if let Some(bytes) = checkpoint.file("tokenizer_config.json")? {
        tokenizer = tokenizer.with_config(&bytes, &at("tokenizer_config.json"))?;
    }
    tokenizer.check_fits(config.text.vocab_size)?;
    Ok(Some(tokenizer))
}

/// Sampling defaults and end tokens; absent keys have the published model's values.
fn generation_config(checkpoint: &Checkpoint, config: &MuseConfig) -> Result<(Sampling, Vec<u32>), EngineError> {
    let mut sampling = Sampling::default();
    let mut eos = config.text.eos_token_id.clone();
    let Some(map) = checkpoint.json("generation_config.json")? else { return Ok((sampling, eos)) };
    let file = format!("{}/generation_config.json", checkpoint.label());
    let fields = Fields::new(&file, &map);
    let set = |key: &str, to: &mut f32, range| -> Result<(), EngineError> {
        fields.opt_f32(key, range).map(|found| *to = found.unwrap_or(*to)).map_err(EngineError::from)
    };
    set("temperature", &mut sampling.temperature, 0.0..=1e6)?;
    set("top_p", &mut sampling.top_p, f32::MIN_POSITIVE..=1.0)?;
    set("min_p", &mut sampling.min_p, 0.0..=1.0)?;
    set("repetition_penalty", &mut sampling.repetition_penalty, 1e-3..=1e3)?;
    set("presence_penalty", &mut sampling.presence_penalty, -2.0..=2.0)?;
    set("frequency_penalty", &mut sampling.frequency_penalty, -2.0..=2.0)?;
    sampling.top_k = fields.opt_usize("top_k", 0..=usize::MAX)?.unwrap_or(sampling.top_k);
    if fields.opt_bool("do_sample")? == Some(false) {
        sampling.temperature = 0.0;
    }
    if let Some(ids) = fields.opt_u32_list("eos_token_id", 64)? {
        if ids.iter().any(|&id| id as usize >= config.text.vocab_size) {
            let expected = format!("ids below the vocabulary's size, {}", config.text.vocab_size);
            return Err(fields.invalid("eos_token_id", expected).into());
        }
        eos = ids;
    }
    refuse_other_generation_settings(&fields)?;
    Ok((sampling, eos))
}

/// Settings of transformers' generation that change tokens and are not implemented have to be neutral.
fn refuse_other_generation_settings(fields: &Fields<'_>) -> Result<(), EngineError> {
    const NEUTRAL: &[(&str, f64)] = &[
        ("num_beams", 1.0),
        ("num_beam_groups", 1.0),
        ("penalty_alpha", 0.0),
        ("no_repeat_ngram_size", 0.0),
        ("encoder_no_repeat_ngram_size", 0.0),
        ("encoder_repetition_penalty", 1.0),
        ("typical_p", 1.0),
        ("epsilon_cutoff", 0.0),
        ("eta_cutoff", 0.0),
        ("top_h", 1.0),
        ("diversity_penalty", 0.0),
        ("length_penalty", 1.0),
        ("min_length", 0.0),
        ("min_new_tokens", 0.0),
        ("guidance_scale", 1.0),
        ("num_return_sequences", 1.0),
    ];
    const ABSENT: &[&str] = &[
        "suppress_tokens",
        "begin_suppress_tokens",
        "bad_words_ids",
        "sequence_bias",
        "force_words_ids",
        "constraints",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "forced_decoder_ids",
        "exponential_decay_length_penalty",
        "watermarking_config",
        "stop_strings",
        "dola_layers",
    ];
    for (key, neutral) in NEUTRAL {
        if fields.get(key).is_some_and(|value| value.as_f64() != Some(*neutral)) {
            return Err(fields.invalid(key, format!("{neutral}: nothing else is supported")).into());
        }
    }
    for key in ABSENT {
        if fields.get(key).is_some_and(|value| value.as_array().is_none_or(|list| !list.is_empty())) {
            return Err(fields.invalid(key, "nothing: it is not supported").into());
        }
    }
    Ok(())
}

/// Largest chunk of a prompt: its activations have to fit beside the weights.
const MAX_CHUNK: usize = 16_384;

/// How many positions and rows there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// Tokens that prompt and answer may have together.
    pub context: usize,
    /// Tokens of a prompt in one pass.
    pub prefill_chunk: usize,
    /// The most rows of a round.
    pub block: usize,
}

impl Geometry {
    /// For a drafter's `block`, 1 where there is none.
    pub fn new(options: &EngineOptions, text: &TextConfig, block: usize) -> Result<Self, EngineError> {
        let limit = text.max_position_embeddings;
        let range = |what, found: usize, range: RangeInclusive<usize>, note: &str| match range.contains(&found) {
            true => Ok(found),
            false => {
                let expected = format!("{} to {}{note}", range.start(), range.end());
                Err(EngineError::Range { what, found, expected })
            }
        };
        let context = range("the context size", options.context.unwrap_or(limit), 2..=limit, ", the model's limit")?;
        let prefill_chunk = range("the prefill chunk", options.prefill_chunk, 1..=MAX_CHUNK, "")?;
        let block = if options.ngram { block.max(NGRAM_BLOCK) } else { block };
        Ok(Self { context, prefill_chunk, block })
    }

    /// Positions that a cache may have to hold: a block is verified whole, also over the end of the context.
    pub fn positions(&self) -> usize {
        self.context + self.block - 1
    }

    /// Rows that one pass may have.
    pub fn widest(&self) -> usize {
        self.prefill_chunk.min(self.context).max(self.block)
    }
}

/// A hash of all that the bits of keys and values depend on. Large checkpoints are told apart by the times of their files as well.
fn prefix_root(
    target: &Checkpoint,
    drafter: Option<&Checkpoint>,
    options: &EngineOptions,
    activations: &str,
    cache: KvTypes,
) -> Result<[u8; 32], EngineError> {
    let mut hash = Sha256::new();
    hash.update(format!("{activations} {} {}\n", cache.keys, cache.values));
    let sources = [Some((target, &options.target)), drafter.zip(options.drafter.as_ref())];
    for (checkpoint, source) in sources.into_iter().flatten() {
        hash.update(format!("{}\n", checkpoint.fingerprint()?.sha256));
        let path = match source {
            Source::Path(path) | Source::Snapshot { path, .. } => path,
            _ => continue,
        };
        let files: Vec<PathBuf> = match std::fs::read_dir(path) {
            Ok(files) => files.flatten().map(|file| file.path()).collect(),
            Err(_) => vec![path.clone()],
        };
        let about = |file: &PathBuf| std::fs::metadata(file).ok().map(|about| (about.len(), about.modified().ok()));
        let mut all: Vec<String> =
            files.iter().map(|file| format!("{:?} {:?}\n", file.file_name(), about(file))).collect();
        all.sort();
        all.iter().for_each(|line| hash.update(line));
    }
    Ok(hash.finalize().into())
}

pub(crate) fn cache_types(options: &EngineOptions, checkpoint: &Checkpoint) -> KvTypes {
    let wide = options.target == Source::Nano
        || checkpoint.tensor("lm_head.weight").is_some_and(|t| t.encoding == Encoding::Dense(FloatType::F32));
    let default = if wide { KvType::F32 } else { KvType::F16 };
    KvTypes { keys: options.cache_keys.unwrap_or(default), values: options.cache_values.unwrap_or(default) }
}

/// What is left once weights and cache are there, in bytes; as much as there can be where the system does not say.
fn refuse_without_memory(label: &str, weights: u64, cache: CacheSizes) -> Result<u64, EngineError> {
    let Some(available) = memory::available() else { return Ok(u64::MAX) };
    let needed = weights.saturating_add(cache.total());
    let (label, context, cache) = (label.to_string(), cache.context, cache.total());
    let error = EngineError::NotEnoughMemory { label, needed, weights, cache, context, available };
    available.checked_sub(needed).ok_or(error)
}
