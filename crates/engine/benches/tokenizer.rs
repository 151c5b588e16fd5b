//! A prompt of about 130,000 tokens becomes ids: `GLIMMER_TOKENIZER=FILE` names a `tokenizer.json`, by default nano's.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use glimmer_engine::tokenizer::Tokenizer;
use std::path::PathBuf;
use std::time::Duration;

const TOKENS: usize = 130_000;

fn encode(criterion: &mut Criterion) {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let file = std::env::var_os("GLIMMER_TOKENIZER").map_or(root.join("nano/target/tokenizer.json"), PathBuf::from);
    let tokenizer = Tokenizer::from_json(&std::fs::read(&file).unwrap(), file.display().to_string()).unwrap();
    // Code and prose, as an agent's log has them.
    let part: String = ["README.md", "docs/ARCHITECTURE.md", "crates/engine/src/session.rs"]
        .map(|name| std::fs::read_to_string(root.join(name)).unwrap())
        .concat();
    let each = tokenizer.encode(&part).unwrap().len();
    let text = part.repeat(TOKENS.div_ceil(each));
    let tokens = tokenizer.encode(&text).unwrap().len();
    let mut group = criterion.benchmark_group("encode");
    group.sample_size(10).measurement_time(Duration::from_secs(5)).throughput(Throughput::Elements(tokens as u64));
    group.bench_function(format!("{tokens} tokens"), |b| b.iter(|| tokenizer.encode(&text).unwrap()));
    group.finish();
}

criterion_group!(benches, encode);
criterion_main!(benches);
