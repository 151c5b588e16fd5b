//! Writing checkpoints in other encodings and containers.

use crate::args::QuantizeArgs;
use crate::failure::{Failure, Outcome};
use crate::plan::{Surroundings, file, source};
use crate::progress::Progress;
use crate::signals::Interrupt;
use crate::terminal;
use glimmer_engine::memory;
use glimmer_engine::quantize::{Exception, Importance, Quantize, Recipe, Written, check};
use glimmer_engine::score::{Distance, Score};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::Path;
use std::time::Instant;

/// Does what `quantize` says.
pub fn quantize(args: QuantizeArgs, around: &Surroundings, interrupt: &Interrupt) -> Outcome {
    let QuantizeArgs { source: name, out, recipe, imatrix, tokenizer, threads, no_check, json } = args;
    let threads = threads.map(|n| n as usize);
    let mut quantize = Quantize {
        source: source(name, around)?,
        recipe: Recipe::open(&recipe)?,
        importance: None,
        tokenizer: tokenizer.map(|name| source(name, around)).transpose()?,
        threads,
    };
    let (listening, started) = (interrupt.listen(), Instant::now());
    if let Some(path) = imatrix {
        quantize.preflight(&out)?;
        let text = file(path).read()?.unwrap_or_default();
        let mut progress = Progress::measuring();
        let importance = Importance::gather(&quantize.source, &text, threads, &mut |done, total| {
            progress.update(done as u64, total as u64);
            !listening.hit()
        })?;
        quantize.importance = Some(importance.ok_or(Failure::Interrupted)?);
    }
    let weighed = quantize.importance.as_ref().map(|importance| importance.tokens);
    let mut progress = Progress::writing();
    let written = quantize.write(&out, &mut |done, total| {
        progress.update(done, total);
        !listening.hit()
    })?;
    drop(progress);
    let Some(written) = written else { return Err(Failure::Interrupted) };
    let seconds = started.elapsed().as_secs_f64();
    let score = match no_check || written.drafter {
        true => None,
        false => {
            let mut progress = Progress::scoring();
            let score = check(&out, &quantize.source, threads, &mut |done, total| {
                progress.update(done as u64, total as u64);
                !listening.hit()
            })?;
            Some(score.ok_or(Failure::Interrupted)?)
        }
    };
    match json {
        true => terminal::print(&format!("{}\n", to_json(&written, score.as_ref(), weighed, seconds))),
        false => terminal::print(&table(&out, &written, score.as_ref(), weighed, seconds)),
    }
}

fn bits_per_weight(written: &Written) -> f64 {
    8.0 * written.bytes as f64 / written.parameters.max(1) as f64
}

fn table(out: &Path, written: &Written, score: Option<&Score>, weighed: Option<usize>, seconds: f64) -> String {
    let gigabytes = |bytes: u64| format!("{:.3} GB", bytes as f64 / 1e9);
    let (size, bits) = (gigabytes(written.bytes), bits_per_weight(written));
    let place = out.display().to_string();
    let place = terminal::on_one_line(&place);
    let mut text = format!("{place}: {size} in {seconds:.1} s, {bits:.2} bits per weight\n");
    for (name, tensors, bytes) in &written.encodings {
        let _ = writeln!(text, "  {name:22} {tensors:5} tensors, {}", gigabytes(*bytes));
    }
    for (name, count, Exception { width, asked, stored, .. }) in alike(&written.exceptions) {
        let (times, block) = (if count == 1 { String::new() } else { format!(" ({count})") }, asked.block());
        let _ = writeln!(text, "  {stored}, not {asked}: {name}{times}, as {width} is no multiple of {block}");
    }
    if let Some(tokens) = weighed {
        let _ = writeln!(text, "  errors weighed by {tokens} tokens of text");
    }
    if written.left_out > 0 {
        let _ = writeln!(text, "  left out: {} tensors of the vision tower", written.left_out);
    }
    if let Some(Distance { kl_mean, kl_max, top1, .. }) = score.and_then(|score| score.distance.as_ref()) {
        let same = 100.0 * top1;
        let _ = writeln!(
            text,
            "against the source: KL divergence {kl_mean:.3e} mean, {kl_max:.3e} most, same likeliest {same:.1} %"
        );
    }
    text
}

/// The same matrix of several layers is one line: its name with a `*` for the layer, how many there are, and the first.
fn alike(exceptions: &[Exception]) -> Vec<(String, usize, &Exception)> {
    let mut all: Vec<(String, usize, &Exception)> = Vec::new();
    for exception in exceptions {
        let is_number = |part: &str| part.bytes().all(|b| b.is_ascii_digit());
        let parts: Vec<&str> = exception.name.split('.').map(|part| if is_number(part) { "*" } else { part }).collect();
        let (name, kind) = (parts.join("."), (exception.asked, exception.stored));
        match all.iter_mut().find(|(known, _, first)| *known == name && (first.asked, first.stored) == kind) {
            Some((_, count, _)) => *count += 1,
            None => all.push((name, 1, exception)),
        }
    }
    all
}

fn to_json(written: &Written, score: Option<&Score>, weighed: Option<usize>, seconds: f64) -> Value {
    let encodings = written.encodings.iter();
    let exceptions = written.exceptions.iter();
    let distance = score.and_then(|score| Some((score.tokens, score.distance.as_ref()?)));
    json!({
        "bytes": written.bytes,
        "parameters": written.parameters,
        "bits_per_weight": bits_per_weight(written),
        "encodings": encodings.map(|(name, tensors, bytes)| json!({ "encoding": name, "tensors": tensors, "bytes": bytes })).collect::<Value>(),
        "exceptions": exceptions.map(|Exception { name, width, asked, stored }| json!({
            "tensor": name, "width": width, "asked": asked.to_string(), "stored": stored.to_string(),
        })).collect::<Value>(),
        "left_out": written.left_out,
        "imatrix_tokens": weighed,
        "check": distance.map(|(tokens, Distance { kl_mean, kl_max, top1, .. })| json!({
            "tokens": tokens, "kl_mean": kl_mean, "kl_max": kl_max, "top1": top1,
        })),
        "seconds": seconds,
        "peak_memory_bytes": memory::peak(),
    })
}
