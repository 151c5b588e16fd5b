//! The pairs that tests run on.

use glimmer_backend::{Backend, KvTypes};
use glimmer_engine::sampling::{Chain, Sampling};
use glimmer_engine::stops::StopRule;
use glimmer_engine::{
    DraftWidth, Engine, EngineOptions, Flow, Generation, KvType, NanoDrafter, Output, Request, Session, Source,
};
use glimmer_model::muse::{MuseConfig, MuseText};
use glimmer_model::observe::Unobserved;
use serde_json::Value;
use std::collections::HashMap;
use std::path::{Path, PathBuf};

pub fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..").join(name)
}

pub fn json(name: &str) -> Value {
    serde_json::from_slice(&std::fs::read(path(name)).unwrap()).unwrap()
}

pub fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// Whether the long forms of tests were asked for.
pub fn long() -> bool {
    std::env::var_os("GLIMMER_LONG").is_some()
}

/// A target with its drafter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pair {
    Nano,
    Tiny,
    /// With their drafters of DFlash 2.
    Nano2,
    Tiny2,
}

impl Pair {
    pub const ALL: [Pair; 4] = [Pair::Nano, Pair::Tiny, Pair::Nano2, Pair::Tiny2];

    pub fn block_size(self) -> usize {
        match self {
            Pair::Nano | Pair::Nano2 => 16,
            Pair::Tiny | Pair::Tiny2 => 8,
        }
    }

    pub fn options(self) -> EngineOptions {
        let path = |name: &str| Source::Path(path(name));
        let (target, drafter) = match self {
            Pair::Nano => (Source::Nano, Source::Nano),
            Pair::Nano2 => (Source::Nano, Source::NanoDrafter(NanoDrafter::DFlash2)),
            Pair::Tiny => (path("fixtures/muse-tiny-bf16"), path("fixtures/muse-tiny-assistant")),
            Pair::Tiny2 => (path("fixtures/muse-tiny-bf16"), path("fixtures/muse-tiny-dflash2")),
        };
        EngineOptions {
            drafter: Some(drafter),
            context: Some(800),
            cache_keys: Some(KvType::F32),
            cache_values: Some(KvType::F32),
            threads: Some(1),
            ..EngineOptions::new(target)
        }
    }

    pub fn engine(self) -> Engine {
        load(&self.options())
    }

    /// Prompts of golden data: code and chat, shorter and longer than the window.
    pub fn prompts(self) -> Vec<Vec<u32>> {
        let mut prompts = self.golden_prompts();
        // Over one and over two of the chunks of 256 keys that attention weighs together.
        for length in [300, 530] {
            prompts.push(prompts[0].iter().chain(&prompts[1]).copied().cycle().take(length).collect());
        }
        prompts
    }

    fn golden_prompts(self) -> Vec<Vec<u32>> {
        match self {
            Pair::Nano | Pair::Nano2 => {
                let cases = json("nano/nano_expected.json");
                ["code_def", "code_head", "chat_add", "chat_function", "chat_tool"]
                    .iter()
                    .map(|case| ids(&cases["cases"][case]["prompt_ids"]))
                    .collect()
            }
            Pair::Tiny | Pair::Tiny2 => {
                let cases = json("fixtures/dflash_expected.json");
                ["a", "b", "c", "d"].iter().map(|case| ids(&cases["cases"][case]["input_ids"])).collect()
            }
        }
    }
}

/// Who proposes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    Dflash,
    Ngram,
    Hybrid,
}

impl Kind {
    pub const ALL: [Kind; 3] = [Kind::Dflash, Kind::Ngram, Kind::Hybrid];

    /// The options of a pair with this kind of drafter in place of its own.
    pub fn of(self, options: EngineOptions) -> EngineOptions {
        let drafter = if self == Kind::Ngram { None } else { options.drafter };
        EngineOptions { drafter, ngram: self != Kind::Dflash, ..options }
    }
}

/// A copy of a checkpoint's directory, to be damaged.
pub fn copy(name: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    copy_to(name, dir.path());
    dir
}

/// The same to a place that need not be there yet.
pub fn copy_to(name: &str, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(path(name)).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

/// Changes a JSON file of a copy.
pub fn edit(dir: impl AsRef<Path>, file: &str, change: impl FnOnce(&mut Value)) {
    let at = dir.as_ref().join(file);
    let mut value = serde_json::from_slice(&std::fs::read(&at).unwrap()).unwrap();
    change(&mut value);
    std::fs::write(at, value.to_string()).unwrap();
}

/// Sets elements of a bf16 or f32 tensor of a copy.
pub fn overwrite(dir: &tempfile::TempDir, tensor: &str, elements: std::ops::Range<usize>, value: f32) {
    let at = dir.path().join("model.safetensors");
    let mut bytes = std::fs::read(&at).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let table: Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    let start = 8 + header + table[tensor]["data_offsets"][0].as_u64().unwrap() as usize;
    for element in elements {
        match table[tensor]["dtype"].as_str().unwrap() {
            "BF16" => {
                let bits = ((value.to_bits() >> 16) as u16).to_le_bytes();
                bytes[start + 2 * element..start + 2 * element + 2].copy_from_slice(&bits);
            }
            "F32" => bytes[start + 4 * element..start + 4 * element + 4].copy_from_slice(&value.to_le_bytes()),
            other => panic!("{other}"),
        }
    }
    std::fs::write(at, bytes).unwrap();
}

pub fn load(options: &EngineOptions) -> Engine {
    Engine::load(options, &mut |_| {}).unwrap()
}

pub fn greedy() -> Sampling {
    Sampling { temperature: 0.0, ..Sampling::default() }
}

/// A request that end tokens do not stop.
pub fn request(prompt: &[u32], sampling: &Sampling, width: impl Into<DraftWidth>, tokens: usize) -> Request {
    Request {
        prompt: prompt.to_vec(),
        sampling: sampling.clone(),
        stop: StopRule { ignore_eos: true, max_tokens: Some(tokens), ..StopRule::default() },
        width: width.into(),
        output: Output::Ids,
    }
}

pub fn run(session: &mut Session, request: &Request) -> Generation {
    session.generate(request, &mut |_| Flow::Continue).unwrap()
}

/// What a fresh session of `engine` generates.
pub fn fresh(engine: &Engine, request: &Request) -> Generation {
    run(&mut engine.session().unwrap(), request)
}

/// The bits of the logits after each of at least `tokens` new tokens, by position, up to the first mismatch of each round.
pub fn logits_by_position(
    engine: &Engine,
    prompt: &[u32],
    sampling: &Sampling,
    width: impl Into<DraftWidth>,
    tokens: usize,
) -> HashMap<usize, Vec<u32>> {
    let width = width.into();
    let mut chain = Chain::new(sampling.clone(), engine.vocab_size()).unwrap();
    let mut session = engine.session().unwrap();
    chain.start(prompt);
    let (_, logits) = session.prefill(prompt, width != DraftWidth::Fixed(1), &mut |_, _| true).unwrap();
    let mut anchor = session.draw_first(&logits.unwrap(), &mut chain).unwrap();
    let mut all = HashMap::new();
    while all.len() < tokens {
        let position = session.tokens().len();
        let round = session.round(anchor, width, &mut chain).unwrap();
        for (row, logits) in round.logits.chunks(engine.vocab_size()).enumerate().take(round.accepted + 1) {
            all.insert(position + row, bits(logits));
        }
        anchor = *round.tokens.last().unwrap();
    }
    all
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// A text tower alone, on any backend.
pub fn tower<B: Backend>(b: &B, target: &Source) -> MuseText<B> {
    let checkpoint = target.open_target().unwrap();
    let config = MuseConfig::from_checkpoint(&checkpoint).unwrap();
    MuseText::load(b, &checkpoint, &config, &mut |_| {}).unwrap()
}

/// The logits after every one of `ids`, taken in passes of `chunk`: what the backend reads of each pass, one after the other.
pub fn logits<B: Backend>(b: &B, tower: &MuseText<B>, ids: &[u32], chunk: usize, types: KvTypes) -> Vec<f32> {
    let mut cache = tower.cache(ids.len(), chunk, types);
    let mut all = Vec::new();
    for part in ids.chunks(chunk) {
        let x = tower.forward(b, &mut cache, part, &mut Unobserved).unwrap();
        all.extend(b.read(&tower.logits(b, &x, 0..part.len(), &mut Unobserved)));
    }
    all
}
