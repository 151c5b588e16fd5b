//! Importance matrices: what they weigh, and what comes of it.

use crate::support::{load, path, tower};
use glimmer_backend::{Backend, CpuBackend, CpuOptions, KvTypes};
use glimmer_checkpoint::Checkpoint;
use glimmer_engine::quantize::{Importance, Quantize, Recipe, check};
use glimmer_engine::synth::{Shape, StoredAs, Synth};
use glimmer_engine::{EngineError, EngineOptions, KvType, Source};
use glimmer_model::observe::{Observer, Site};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Code, as nano was trained on, and some prose; not what [`check`] compares on.
const TEXT: &str = "def fibonacci(n):\n    if n < 2:\n        return n\n    return fibonacci(n - 1) + fibonacci(n - 2)\n\n\n\
class Stack:\n    def __init__(self):\n        self.items = []\n\n    def push(self, item):\n        self.items.append(item)\n\n    \
def pop(self):\n        return self.items.pop()\n\n\ndef count_words(text):\n    counts = {}\n    for word in text.split():\n        \
counts[word] = counts.get(word, 0) + 1\n    return counts\n\n\nThe tide was out, and the boats lay on their sides in the mud as if they had \
been put to bed. Nobody was on the quay but a boy who threw stones at a buoy and missed.\n";

fn of(source: &Source) -> Importance {
    Importance::gather(source, TEXT, Some(1), &mut |_, _| true).unwrap().unwrap()
}

fn gather() -> Importance {
    of(&Source::Nano)
}

fn write(source: &Source, recipe: &str, importance: Option<Importance>, to: &Path) {
    let recipe = Recipe::parse("own", recipe).unwrap();
    let job = Quantize { source: source.clone(), recipe, importance, tokenizer: None, threads: Some(2) };
    job.write(to, &mut |_, _| true).unwrap().unwrap();
}

fn values(checkpoint: &Checkpoint, name: &str) -> Vec<f32> {
    checkpoint.read(name).unwrap().view().to_f32()
}

/// The weighted squared error of each matrix that has weights.
fn lost(source: &Source, out: &Path, importance: &Importance) -> Vec<(String, f64)> {
    let (source, made) = (source.open_target().unwrap(), glimmer_checkpoint::open(out).unwrap());
    let mut all = Vec::new();
    for info in made.tensors() {
        let Some(weights) = importance.of(&info.name) else { continue };
        let (before, after) = (values(&source, &info.name), values(&made, &info.name));
        let each = before.iter().zip(&after).zip(weights.iter().cycle());
        all.push((info.name.clone(), each.map(|((a, b), w)| f64::from(*w) * f64::from(a - b).powi(2)).sum()));
    }
    all
}

/// Writes both ways to `dir`: no matrix is worse, and all together have at most `most` of the error. Gives the two.
fn compare(source: &Source, recipe: &str, importance: &Importance, dir: &Path, most: f64) -> [PathBuf; 2] {
    let both = ["plain", "weighed"].map(|name| dir.join(name));
    write(source, recipe, None, &both[0]);
    write(source, recipe, Some(importance.clone()), &both[1]);
    let [before, after] = [&both[0], &both[1]].map(|out| lost(source, out, importance));
    // Eight of each layer, and the head.
    assert!(before.len() == after.len() && before.len() % 8 == 1, "{}", before.len());
    for ((name, before), (_, after)) in before.iter().zip(&after) {
        assert!(after <= before, "{recipe}: {name}: {after} after {before}");
    }
    let [before, after] = [before, after].map(|all| all.iter().map(|(_, lost)| lost).sum::<f64>());
    println!("{recipe}: {:.3} of the weighted error", after / before);
    assert!(after < most * before, "{recipe}: {after} after {before}");
    both
}

#[test]
fn weighted_errors_are_smaller_and_logits_nearer() {
    let importance = gather();
    for recipe in ["format = \"mlx\"\nencoding = \"affine2g32\"", "format = \"mlx\"\nencoding = \"affine3g64\""] {
        let dir = tempfile::tempdir().unwrap();
        let [before, after] = compare(&Source::Nano, recipe, &importance, dir.path(), 0.9).map(|out| {
            let score = check(&out, &Source::Nano, Some(1), &mut |_, _| true).unwrap().unwrap();
            score.distance.unwrap().kl_mean
        });
        println!("KL {before:.4}, weighed {after:.4}");
        assert!(after < before, "{recipe}: KL {after} after {before}");
    }
}

/// K-quants need rows of 256, which nano has not. Inputs of random matrices are nearly alike, so there is little to gain.
#[test]
fn weights_reach_gguf_files() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let StoredAs(encoding) = "bf16".parse().unwrap();
    let synth = Synth { shape: Shape::Tiny, encoding: StoredAs(encoding), container: None, drafter: false, seed: 5 };
    synth.write(&at("source"), &mut |_, _| true).unwrap();
    let source = Source::Path(at("source"));
    let importance = of(&source);
    for kind in ["q3_k", "q4_k"] {
        std::fs::create_dir(at(kind)).unwrap();
        compare(&source, &format!("format = \"gguf\"\nencoding = \"{kind}\""), &importance, &at(kind), 1.0);
    }
}

#[test]
fn weights_are_the_same_whatever_the_threads_and_the_container() {
    let importance = gather();
    assert_eq!(Importance::gather(&Source::Nano, TEXT, Some(2), &mut |_, _| true).unwrap().unwrap(), importance);
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("nano.gguf");
    write(&Source::Nano, "format = \"gguf\"\nencoding = \"bf16\"", None, &out);
    // Norms are stored otherwise there, and are the same up to rounding.
    let other = Importance::gather(&Source::Path(out), TEXT, Some(1), &mut |_, _| true).unwrap().unwrap();
    let nano = Source::Nano.open_target().unwrap();
    let mut compared = 0;
    for info in nano.tensors() {
        let [Some(here), Some(there)] = [&importance, &other].map(|importance| importance.of(&info.name)) else {
            continue;
        };
        assert_eq!((here.len(), there.len()), (info.shape[1], info.shape[1]));
        assert!(here.iter().zip(there).all(|(a, b)| (a - b).abs() <= 1e-3 * a), "{}", info.name);
        let mean = here.iter().map(|&w| f64::from(w)).sum::<f64>() / here.len() as f64;
        assert!((0.999..1.01).contains(&mean) && here.iter().all(|&w| w >= 1e-3), "{}: {mean}", info.name);
        compared += 1;
    }
    assert!(compared % 8 == 1 && compared > 8 && importance.of("model.language_model.embed_tokens.weight").is_none());
    // Matrices of one input share its weights.
    let of = |name: &str| importance.of(&format!("model.language_model.layers.0.{name}.weight")).unwrap();
    assert_eq!(of("self_attn.q_proj"), of("self_attn.gate_proj"));
    assert_eq!(of("mlp.gate_proj"), of("mlp.up_proj"));
    assert_ne!(of("self_attn.q_proj"), of("mlp.up_proj"));
}

/// Mean squares of the inputs of some projections, seen from outside.
#[derive(Default)]
struct Inputs(BTreeMap<String, Vec<f64>>);

impl Observer<CpuBackend> for Inputs {
    fn see(&mut self, b: &CpuBackend, site: Site, x: &<CpuBackend as Backend>::Tensor) {
        let name = match site {
            Site::FinalNorm => "lm_head.weight".to_string(),
            Site::InputNorm(layer) => format!("model.language_model.layers.{layer}.self_attn.k_proj.weight"),
            _ => return,
        };
        let (rows, cols) = b.shape(x);
        let mut sums = vec![0.0; cols];
        let values = b.read(x);
        values.iter().enumerate().for_each(|(i, &x)| sums[i % cols] += f64::from(x).powi(2) / rows as f64);
        self.0.insert(name, sums);
    }

    fn see_inside(&mut self, b: &CpuBackend, site: Site, x: impl FnOnce() -> <CpuBackend as Backend>::Tensor) {
        self.see(b, site, &x());
    }
}

#[test]
fn weights_are_mean_squares_of_inputs() {
    let importance = gather();
    let ids = load(&EngineOptions::new(Source::Nano)).encode_raw(TEXT).unwrap();
    let b = CpuBackend::new(CpuOptions { threads: Some(1), ..CpuOptions::default() }).unwrap();
    let tower = tower(&b, &Source::Nano);
    let mut cache = tower.cache(ids.len(), ids.len(), KvTypes::both(KvType::F32));
    let mut inputs = Inputs::default();
    let x = tower.forward(&b, &mut cache, &ids, &mut inputs).unwrap();
    tower.logits(&b, &x, 0..ids.len(), &mut inputs);
    assert!(inputs.0.len() > 4 && ids.len() <= 512);
    for (name, squares) in &inputs.0 {
        let (weights, mean) = (importance.of(name).unwrap(), squares.iter().sum::<f64>() / squares.len() as f64);
        let near = |(square, &weight): (&f64, &f32)| (square / mean).max(1e-3) / f64::from(weight);
        assert!(squares.iter().zip(weights).map(near).all(|ratio| (0.999..1.001).contains(&ratio)), "{name}");
    }
}

#[test]
fn what_cannot_be_weighed_is_named() {
    let refused =
        |source: Source, text: &str| Importance::gather(&source, text, Some(1), &mut |_, _| true).unwrap_err();
    let short = refused(Source::Nano, "def f():").to_string();
    assert!(short.contains("tokens in the text is") && short.contains("at least 128"), "{short}");
    let without = refused(Source::Path(path("fixtures/muse-tiny-bf16")), TEXT);
    assert!(matches!(&without, EngineError::Without { what: "tokenizer.json", .. }), "{without}");
    let drafter = refused(Source::Path(path("fixtures/muse-tiny-assistant")), TEXT).to_string();
    assert!(drafter.contains("model_type"), "{drafter}");
    assert!(Importance::gather(&Source::Nano, TEXT, Some(1), &mut |_, _| false).unwrap().is_none());

    let dir = tempfile::tempdir().unwrap();
    let preflight = |recipe: &str, out: &Path| {
        let recipe = Recipe::open(recipe).unwrap();
        let job = Quantize { source: Source::Nano, recipe, importance: None, tokenizer: None, threads: None };
        job.preflight(out).map_err(|error| error.to_string())
    };
    let error = preflight("gguf-q8_0", &dir.path().join("x")).unwrap_err();
    assert!(error.contains("gguf-q8_0") && error.contains("importance matrix changes nothing"), "{error}");
    assert!(preflight("mlx-4bit", dir.path()).unwrap_err().contains("exists already"));
    assert_eq!(preflight("gguf-q4_k_m", &dir.path().join("x")), Ok(()));
}
