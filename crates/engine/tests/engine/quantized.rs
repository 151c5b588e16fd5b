//! What activations of 8 bits or in bf16 and narrow caches cost on nano, and what is refused.

use crate::encoded::{Base, Encoded, encodings};
use crate::support::{Pair, load, logits, long, path, tower};
use glimmer_backend::{CpuBackend, CpuOptions};
use glimmer_engine::{ActivationType, Engine, EngineOptions, KvType, KvTypes, Source};
use glimmer_model::muse::MuseText;

/// What was measured, by the names in its tables.
const RECORD: &str = include_str!("../../../../docs/ACCURACY.md");

/// Checks a mean KL divergence and a top-1 agreement against the record: half as much again is too much.
fn check(name: &str, [kl, top1]: [f64; 2]) {
    println!("| {name} | {kl:.2e} | {top1:.3} |");
    let lines = RECORD.lines().map(|line| line.split('|').map(str::trim).collect::<Vec<_>>());
    let line =
        lines.into_iter().find(|line| line.get(1) == Some(&name)).unwrap_or_else(|| panic!("no record of {name}"));
    let [recorded_kl, recorded_top1] = [line[2], line[3]].map(|number| number.parse::<f64>().unwrap());
    assert!(kl < 1.5 * recorded_kl, "{name}: KL {kl}, recorded {recorded_kl}");
    assert!(
        1.0 - top1 < 1.5 * (1.0 - recorded_top1) + 0.005,
        "{name}: top-1 agreement {top1}, recorded {recorded_top1}"
    );
}

#[test]
fn eight_bit_activations_are_near_f32() {
    let [rounding, exact] = [ActivationType::Auto, ActivationType::F32].map(backend);
    let types = KvTypes::both(KvType::F32);
    for encoding in encodings(long())
        .into_iter()
        .filter(|&e| Base::Nano.takes(e) && rounding.activations(e) == Ok(ActivationType::Int8))
    {
        let encoded = Encoded::new(Base::Nano, encoding);
        let [rounds, widens] = [&rounding, &exact].map(|b| tower(b, &encoded.target()));
        check(&encoding.to_string(), distance((&exact, &widens, types), (&rounding, &rounds, types)));
    }
}

#[test]
fn bf16_activations_are_near_f32() {
    let [rounding, exact] = [ActivationType::BF16, ActivationType::F32].map(backend);
    let types = KvTypes::both(KvType::F32);
    let [rounds, widens] = [&rounding, &exact].map(|b| tower(b, &Source::Nano));
    check("activations in bf16", distance((&exact, &widens, types), (&rounding, &rounds, types)));
}

#[test]
fn narrow_caches_are_near_f32() {
    let b = backend(ActivationType::Auto);
    let model = tower(&b, &Source::Nano);
    let with = |kind| (&b, &model, KvTypes::both(kind));
    for kind in [KvType::F16, KvType::BF16, KvType::Q8] {
        check(&format!("cache in {kind}"), distance(with(KvType::F32), with(kind)));
    }
}

fn backend(activations: ActivationType) -> CpuBackend {
    CpuBackend::new(CpuOptions { activations, ..CpuOptions::default() }).unwrap()
}

type Model<'a> = (&'a CpuBackend, &'a MuseText<CpuBackend>, KvTypes);

/// Mean KL divergence and top-1 agreement of two models over positions of nano's prompts.
fn distance(exact: Model<'_>, other: Model<'_>) -> [f64; 2] {
    let vocab = exact.1.config().vocab_size;
    let (mut kl, mut same, mut count) = (0.0, 0, 0);
    for prompt in Pair::Nano.prompts() {
        let ids = &prompt[..prompt.len().min(140)];
        let [p, q] = [exact, other].map(|(b, model, types)| logits(b, model, ids, ids.len(), types));
        // The first few tokens say little of what comes.
        for (p, q) in p.chunks(vocab).zip(q.chunks(vocab)).skip(7) {
            let [p, q] = [p, q].map(softmax);
            kl += p.iter().zip(&q).map(|(p, q)| p * (p / q).ln()).sum::<f64>();
            let best = |d: &[f64]| (0..d.len()).max_by(|&a, &b| d[a].total_cmp(&d[b]));
            same += usize::from(best(&p) == best(&q));
            count += 1;
        }
    }
    [kl / count as f64, same as f64 / count as f64]
}

fn softmax(logits: &[f32]) -> Vec<f64> {
    let max = f64::from(logits.iter().copied().fold(f32::MIN, f32::max));
    let weights: Vec<f64> = logits.iter().map(|&x| (f64::from(x) - max).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|w| w / sum).collect()
}

#[test]
fn what_has_no_kernel_is_refused_only_where_it_was_asked_for() {
    let tiny = |activations| EngineOptions {
        target: Source::Path(path("fixtures/muse-tiny-mlx-lm-mixed")),
        drafter: None,
        activations,
        ..Pair::Tiny.options()
    };
    for (activations, what) in
        [(ActivationType::Int8, "with int8 activations"), (ActivationType::BF16, "with bf16 activations")]
    {
        let mut began = false;
        let message = Engine::load(&tiny(activations), &mut |_| began = true).err().unwrap().to_string();
        assert!(message.contains(": tensor `") && message.contains(what), "{message}");
        assert!(message.contains("--activations f32") && !began, "{message}");
    }
    let engine = load(&tiny(ActivationType::Auto));
    assert!(engine.settings().activations.starts_with("int8 (f32 for "), "{}", engine.settings().activations);
    assert_eq!(load(&tiny(ActivationType::F32)).settings().activations, "f32");
    let bf16 = EngineOptions { activations: ActivationType::BF16, ..Pair::Nano.options() };
    assert_eq!(load(&bf16).settings().activations, "bf16");
}
