//! What loading and quantizing take.

use crate::gguf_writer::Gguf;
use crate::support::path;
use crate::synthetic::{self, Shape};
use glimmer_encoding::{Encoding, FloatType, GgmlType};
use glimmer_engine::quantize::{Quantize, Recipe};
use glimmer_engine::{Engine, EngineOptions, LoadProgress, Source};
use std::path::Path;
use std::process::Command;

/// Tells the child process what to load.
const CHILD: &str = "GLIMMER_TEST_LOAD";
/// Bytes beside the weights: scratch of two threads, tables, and what the allocator keeps.
const ALLOWANCE: u64 = 12 << 20;

/// Mostly two large tensors: a copy of one of them would be seen.
fn large() -> Gguf {
    let shape =
        Shape { layers: 1, hidden: 1024, intermediate: 4096, heads: 8, kv_heads: 2, head_dim: 128, vocab: 65536 };
    synthetic::target(&shape, |_| Encoding::Ggml(GgmlType::Q4K))
}

/// Anonymous memory of this process that is in use, in bytes.
pub fn anonymous() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() << 10
}

/// A process of its own, since others would be measured as well.
#[test]
fn loading_takes_the_memory_of_the_weights_and_little_more() {
    if let Some(file) = std::env::var_os(CHILD) {
        return child(Path::new(&file));
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("large.gguf");
    std::fs::write(&file, large().bytes()).unwrap();
    let test = "memory::loading_takes_the_memory_of_the_weights_and_little_more";
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command.args(["--exact", test, "--nocapture"]).env(CHILD, &file).output().unwrap();
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).join("\n");
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

fn child(file: &Path) {
    let options = |mmap| EngineOptions {
        mmap,
        threads: Some(2),
        context: Some(64),
        ..EngineOptions::new(Source::Path(file.into()))
    };
    let before = anonymous();
    let (mut peak, mut last) = (0, LoadProgress { done: 0, total: 0 });
    let engine = Engine::load(&options(false), &mut |progress| {
        assert!(progress.done >= last.done && progress.done - last.done <= 1 << 20 && progress.done <= progress.total);
        last = progress;
        peak = peak.max(anonymous());
    });
    drop(engine.unwrap());
    let (peak, total) = (peak - before, last.total);
    println!("loading {total} bytes took {peak}");
    assert_eq!(last.done, total);
    assert!(total > 80 << 20 && peak > total, "{peak} for {total} bytes");
    assert!(peak <= total + total / 20 + ALLOWANCE, "{peak} for {total} bytes");

    let before = anonymous();
    let mut peak = before;
    let engine = Engine::load(&options(true), &mut |_| peak = peak.max(anonymous())).unwrap();
    engine.session().unwrap().prefill(&[1, 2, 3], false, &mut |_, _| true).unwrap();
    let peak = peak.max(anonymous()) - before;
    println!("mapping them took {peak}");
    assert!(peak <= ALLOWANCE, "{peak}");
}

/// Tells the child process what to quantize, and where to.
const JOB: &str = "GLIMMER_TEST_QUANTIZE";

/// What quantizing takes with a few layers, and with many.
#[test]
fn quantizing_takes_no_more_memory_for_more_layers() {
    if let Some(dir) = std::env::var_os(JOB) {
        return quantizing(Path::new(&dir));
    }
    let peak = |layers: usize| {
        let dir = tempfile::tempdir().unwrap();
        let shape =
            Shape { layers, hidden: 512, intermediate: 2048, heads: 4, kv_heads: 2, head_dim: 128, vocab: 4096 };
        let file = synthetic::target(&shape, |_| Encoding::Dense(FloatType::BF16));
        std::fs::write(dir.path().join("in.gguf"), file.bytes()).unwrap();
        let test = "memory::quantizing_takes_no_more_memory_for_more_layers";
        let mut command = Command::new(std::env::current_exe().unwrap());
        let output = command.args(["--exact", test, "--nocapture"]).env(JOB, dir.path()).output().unwrap();
        let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).join("\n");
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
        let peak = text.split("the peak is ").nth(1).and_then(|rest| rest.split_whitespace().next());
        peak.unwrap().parse::<u64>().unwrap()
    };
    let (few, many) = (peak(2), peak(14));
    println!("{few} bytes for 2 layers, {many} for 14");
    // Twelve layers are 100 MB.
    assert!(many <= few + (6 << 20), "{few} for 2 layers, {many} for 14");
}

fn quantizing(dir: &Path) {
    let recipe = Recipe::open("mlx-4bit").unwrap();
    let source = Source::Path(dir.join("in.gguf"));
    let job = Quantize { source, recipe, importance: None, tokenizer: None, threads: Some(2) };
    let before = anonymous();
    let mut peak = before;
    let watch = &mut |_, _| {
        peak = peak.max(anonymous());
        true
    };
    job.write(&dir.join("out"), watch).unwrap().unwrap();
    println!("the peak is {} bytes", peak - before);
}

#[test]
fn progress_reaches_the_end() {
    let options = EngineOptions {
        drafter: Some(Source::Path(path("fixtures/muse-tiny-assistant"))),
        ..EngineOptions::new(Source::Path(path("fixtures/muse-tiny-bf16")))
    };
    let mut seen = Vec::new();
    Engine::load(&options, &mut |progress| seen.push(progress)).unwrap();
    assert!(seen.windows(2).all(|pair| pair[0].done <= pair[1].done) && seen.len() > 50, "{seen:?}");
    assert!(seen.last().is_some_and(|last| last.done == last.total && last.total > 0), "{seen:?}");
    // The drafter counts as well.
    let target = glimmer_checkpoint::open(&path("fixtures/muse-tiny-bf16")).unwrap();
    let target: usize = target.tensors().iter().filter(|t| !t.name.contains("vision")).map(|t| t.byte_len()).sum();
    assert!(seen.iter().filter(|progress| progress.done > target as u64).count() > 10, "{seen:?}");
}
