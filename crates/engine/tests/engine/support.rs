//! The pairs that tests run on.

use glimmer_engine::sampling::Sampling;
use glimmer_engine::stops::StopRule;
use glimmer_engine::{Engine, EngineOptions, Flow, Generation, KvType, Output, Request, Session, Source};
use serde_json::Value;
use std::path::PathBuf;

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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pair {
    Nano,
    Tiny,
}

impl Pair {
    pub fn block_size(self) -> usize {
        match self {
            Pair::Nano => 16,
            Pair::Tiny => 8,
        }
    }

    pub fn options(self) -> EngineOptions {
        let (target, drafter) = match self {
            Pair::Nano => (Source::Nano, Source::Nano),
            Pair::Tiny => {
                let path = |name: &str| Source::Path(path(name));
                (path("fixtures/muse-tiny-bf16"), path("fixtures/muse-tiny-assistant"))
            }
        };
        EngineOptions {
            drafter: Some(drafter),
            context: Some(400),
            cache_keys: Some(KvType::F32),
            threads: Some(1),
            ..EngineOptions::new(target)
        }
    }

    pub fn engine(self) -> Engine {
        load(&self.options())
    }

    /// Prompts of golden data: code and chat, shorter and longer than the window.
    pub fn prompts(self) -> Vec<Vec<u32>> {
        match self {
            Pair::Nano => {
                let cases = json("nano/nano_expected.json");
                ["code_def", "code_head", "chat_add", "chat_function", "chat_tool"]
                    .iter()
                    .map(|case| ids(&cases["cases"][case]["prompt_ids"]))
                    .collect()
            }
            Pair::Tiny => {
                let cases = json("fixtures/dflash_expected.json");
                ["a", "b", "c", "d"].iter().map(|case| ids(&cases["cases"][case]["input_ids"])).collect()
            }
        }
    }
}

pub fn load(options: &EngineOptions) -> Engine {
    Engine::load(options, &mut |_| {}).unwrap()
}

pub fn greedy() -> Sampling {
    Sampling { temperature: 0.0, ..Sampling::default() }
}

/// A request that end tokens do not stop.
pub fn request(prompt: &[u32], sampling: &Sampling, width: usize, tokens: usize) -> Request {
    Request {
        prompt: prompt.to_vec(),
        sampling: sampling.clone(),
        stop: StopRule { ignore_eos: true, max_tokens: Some(tokens), ..StopRule::default() },
        width,
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
