//! What is said about a run: its settings before, its timings after, and all of it as JSON.

use glimmer_engine::chat::message::ReasoningStrength;
use glimmer_engine::{DraftWidth, DrafterSettings, Finish, Generation, Request, Settings, memory};
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};
use std::fmt::Write as _;
use std::time::Duration;

/// A generation and what led to it.
pub struct Ran<'a> {
    pub settings: &'a Settings,
    pub request: &'a Request,
    pub generation: &'a Generation,
    pub notices: &'a [String],
    /// What looks wrong about the weights.
    pub suspicions: &'a [String],
    pub load: Duration,
    pub chat: bool,
    pub effort: Option<ReasoningStrength>,
    /// The limit of tokens is the default.
    pub limit_by_default: bool,
}

/// The settings in effect, on one line.
pub fn start_line(settings: &Settings, width: DraftWidth) -> String {
    let Settings { model, encoding, drafter, context, cache, activations, prefill_chunk, threads, isa, mmap } =
        settings;
    let cache = match cache.keys == cache.values {
        true => format!("{}", cache.keys),
        false => format!("{}/{}", cache.keys, cache.values),
    };
    let drafter = match drafter {
        Some(DrafterSettings { model: Some(model), kind, .. }) => format!("drafter {model} ({kind}), width {width}"),
        Some(DrafterSettings { kind, .. }) => format!("drafter {kind}, width {width}"),
        None => "no drafter".into(),
    };
    format!(
        "{model}: {encoding} weights{}, {activations} activations, {cache} KV cache, context {context}, prefill chunk \
         {prefill_chunk}, {threads} {}, {isa}, {drafter}",
        if *mmap { " left in their files" } else { "" },
        if *threads == 1 { "thread" } else { "threads" }
    )
}

impl Ran<'_> {
    /// How long what took, on one line.
    pub fn timing_line(&self) -> String {
        let Generation { token_ids, finish, timings, rounds, .. } = self.generation;
        let count = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
        let at = |rate: Option<f64>| rate.map(|rate| format!(" at {rate:.1} tok/s")).unwrap_or_default();
        let mut line = format!("prompt {}", count(timings.prefill.new + timings.prefill.cached, "token"));
        if timings.prefill.cached > 0 {
            let _ = write!(line, ", {} of them cached,", timings.prefill.cached);
        }
        let _ =
            write!(line, "{}; output {}{}", at(self.prompt_rate()), count(token_ids.len(), "token"), at(self.rate()));
        let why = match finish {
            Finish::Length if self.limit_by_default => "length, -n allows more",
            finish => finish.as_str(),
        };
        let _ = write!(line, " ({why})");
        let (proposed, accepted) = self.draft_counts();
        if proposed > 0 {
            let emitted: usize = rounds.iter().map(|round| round.emitted).sum();
            let each = emitted as f64 / rounds.len() as f64;
            let _ = write!(line, "; drafter {accepted} of {proposed} accepted, {each:.2} tokens a round");
        }
        let _ = write!(line, "; seed {}", self.request.sampling.seed);
        line
    }

    /// Everything there is to know.
    pub fn json(&self) -> Value {
        let Generation { token_ids, text, reasoning, tool_messages, finish, rounds, .. } = self.generation;
        let framing = if self.chat { "chat" } else { "raw" };
        let mut all = Map::new();
        all.insert("token_ids".into(), json!(token_ids));
        all.insert("text".into(), json!(text));
        if self.chat {
            all.insert("reasoning".into(), json!(reasoning));
            let messages = tool_messages.iter().map(|m| json!({ "recipient": m.recipient, "text": m.text }));
            all.insert("tool_messages".into(), messages.collect());
        }
        all.insert("finish_reason".into(), json!(finish.as_str()));
        all.insert("seed".into(), json!(self.request.sampling.seed));
        all.insert("settings".into(), request_json(self.settings, self.request, framing, self.effort));
        let rounds = rounds.iter().map(|round| {
            json!({
                "width": round.width,
                "proposals": round.proposals,
                "accepted": round.accepted,
                "emitted": round.emitted,
            })
        });
        all.insert("rounds".into(), rounds.collect());
        all.insert("sha256".into(), json!(sha256(token_ids)));
        all.insert("timings".into(), self.timings());
        all.insert("notices".into(), json!(self.notices));
        all.insert("warnings".into(), json!(self.suspicions));
        Value::Object(all)
    }

    fn timings(&self) -> Value {
        let (draft_n, draft_n_accepted) = self.draft_counts();
        json!({
            "prompt_n": self.generation.timings.prefill.new,
            "prompt_per_second": self.prompt_rate(),
            "predicted_n": self.generation.token_ids.len(),
            "predicted_per_second": self.rate(),
            "load_s": self.load.as_secs_f64(),
            "peak_memory_bytes": memory::peak(),
            "draft_kind": self.settings.drafter.as_ref().map(|drafter| drafter.kind),
            "draft_rounds": self.generation.rounds.iter().filter(|round| !round.proposals.is_empty()).count(),
            "draft_n": draft_n,
            "draft_n_accepted": draft_n_accepted,
        })
    }

    fn prompt_rate(&self) -> Option<f64> {
        let timings = &self.generation.timings;
        per_second(timings.prefill.new, timings.prompt_time)
    }

    /// The first token belongs to the prompt's pass.
    fn rate(&self) -> Option<f64> {
        per_second(self.generation.token_ids.len().saturating_sub(1), self.generation.timings.predicted_time)
    }

    fn draft_counts(&self) -> (usize, usize) {
        let rounds = &self.generation.rounds;
        (rounds.iter().map(|round| round.proposals.len()).sum(), rounds.iter().map(|round| round.accepted).sum())
    }
}

/// What the start line says, for programs: what the numbers depend on, and how fast they may come.
pub fn settings_json(settings: &Settings) -> Map<String, Value> {
    object(json!({
        "model": settings.model,
        "encoding": settings.encoding,
        "mmap": settings.mmap,
        "activations": settings.activations,
        "cache_type_k": settings.cache.keys.to_string(),
        "cache_type_v": settings.cache.values.to_string(),
        "context": settings.context,
        "prefill_chunk": settings.prefill_chunk,
        "threads": settings.threads,
        "isa": settings.isa.to_string(),
    }))
}

/// The same of a request, with what it asks for.
pub fn request_json(settings: &Settings, request: &Request, framing: &str, effort: Option<ReasoningStrength>) -> Value {
    let (sampling, stop, drafter) = (&request.sampling, &request.stop, settings.drafter.as_ref());
    let bias = sampling.logit_bias.iter().map(|&(id, bias)| json!([id, decimal(bias)]));
    let mut all = settings_json(settings);
    all.extend(object(json!({
        "draft_model": drafter.and_then(|drafter| drafter.model.as_ref()),
        "draft_kind": drafter.map(|drafter| drafter.kind),
        "draft_block_size": drafter.map(|drafter| drafter.block_size),
        "draft_width": width_json(request.width),
        "framing": framing,
        "reasoning_effort": effort.map(ReasoningStrength::as_str),
        "temperature": decimal(sampling.temperature),
        "top_k": sampling.top_k,
        "top_p": decimal(sampling.top_p),
        "min_p": decimal(sampling.min_p),
        "repeat_penalty": decimal(sampling.repetition_penalty),
        "presence_penalty": decimal(sampling.presence_penalty),
        "frequency_penalty": decimal(sampling.frequency_penalty),
        "logit_bias": bias.collect::<Value>(),
        "max_tokens": stop.max_tokens,
        "stop": stop.strings,
        "ignore_eos": stop.ignore_eos,
    })));
    Value::Object(all)
}

/// Rows of a round: a number, or `auto`.
pub fn width_json(width: DraftWidth) -> Value {
    match width {
        DraftWidth::Auto => json!("auto"),
        DraftWidth::Fixed(rows) => json!(rows),
    }
}

/// The members of an object.
pub fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(members) => members,
        _ => Map::new(),
    }
}

pub fn per_second(count: usize, time: Duration) -> Option<f64> {
    (count > 0 && !time.is_zero()).then(|| count as f64 / time.as_secs_f64())
}

/// The number as it was typed: 0.95, not 0.949999988079071. JSON has no infinity.
fn decimal(number: f32) -> Value {
    number.to_string().parse::<f64>().map_or(Value::Null, Value::from)
}

/// Of the ids in decimal, comma-separated.
pub fn sha256(ids: &[u32]) -> String {
    let ids: Vec<String> = ids.iter().map(u32::to_string).collect();
    Sha256::digest(ids.join(",")).iter().fold(String::new(), |mut hex, byte| {
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use glimmer_engine::sampling::Sampling;
    use glimmer_engine::stops::StopRule;
    use glimmer_engine::{Isa, KvType, KvTypes, Output, Timings, ToolMessage};

    #[test]
    fn numbers_are_finite_or_null() {
        assert_eq!(decimal(0.95).to_string(), "0.95");
        assert_eq!(decimal(1.0).to_string(), "1.0");
        assert_eq!(decimal(f32::NEG_INFINITY), Value::Null);
        assert_eq!(json!(per_second(1, Duration::ZERO)), Value::Null);
        assert_eq!(json!(per_second(0, Duration::from_secs(1))), Value::Null);
        assert_eq!(per_second(3, Duration::from_secs(2)), Some(1.5));
    }

    #[test]
    fn the_hash_is_of_the_decimal_ids() {
        assert_eq!(sha256(&[]), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        assert_eq!(sha256(&[1, 23]), "dec1a325b2aab707b526fa2b8a16aba9a9edba3ccb8de9df7b34f28fb85c1d0f");
    }

    #[test]
    fn messages_to_tools_and_notices_are_told() {
        let settings = Settings {
            model: "m".into(),
            encoding: "bf16".into(),
            drafter: None,
            context: 9,
            cache: KvTypes { keys: KvType::F32, values: KvType::F16 },
            activations: "f32".into(),
            prefill_chunk: 1,
            threads: 1,
            isa: Isa::Scalar,
            mmap: false,
        };
        let request = Request {
            prompt: vec![1],
            sampling: Sampling::default(),
            stop: StopRule::default(),
            width: DraftWidth::Fixed(1),
            output: Output::Chat,
        };
        let generation = Generation {
            token_ids: vec![2],
            text: Some(String::new()),
            reasoning: String::new(),
            tool_messages: vec![ToolMessage { recipient: "get_weather".into(), text: "SF\n".into() }],
            finish: Finish::Stop,
            rounds: Vec::new(),
            timings: Timings::default(),
        };
        let mut ran = Ran {
            settings: &settings,
            request: &request,
            generation: &generation,
            notices: &["the drafter is off".into()],
            suspicions: &[],
            load: Duration::ZERO,
            chat: true,
            effort: None,
            limit_by_default: false,
        };
        let out = ran.json();
        assert_eq!(out["tool_messages"], json!([{ "recipient": "get_weather", "text": "SF\n" }]));
        assert_eq!(out["notices"], json!(["the drafter is off"]));
        ran.chat = false;
        assert_eq!(ran.json().get("tool_messages"), None);
    }
}
