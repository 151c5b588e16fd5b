//! DFlash 2 against its reference: the stored tensors of five rounds, and every path.

use crate::support::{F32, Golden, backend, load, open, path};
use glimmer_backend::{Backend, CpuBackend};
use glimmer_checkpoint::Checkpoint;
use glimmer_model::dflash::{DFlash, DFlashConfig, DFlashContext};
use glimmer_model::muse::MuseText;
use glimmer_model::observe::{Observer, Site, Sublayer, Taps, Unobserved};
use serde_json::{Value, json};
use std::collections::HashMap;

#[derive(Default)]
struct All(HashMap<Site, Vec<f32>>);

impl<B: Backend> Observer<B> for All {
    fn see(&mut self, backend: &B, site: Site, x: &B::Tensor) {
        self.0.insert(site, backend.read(x));
    }
}

fn checkpoint() -> Checkpoint {
    glimmer_checkpoint::open(&path("fixtures/muse-tiny-dflash2")).unwrap()
}

fn drafter(b: &CpuBackend, target: &MuseText<CpuBackend>) -> DFlash<CpuBackend> {
    let checkpoint = checkpoint();
    let config = DFlashConfig::bind(&checkpoint, target.config(), "muse-tiny-bf16").unwrap();
    DFlash::load(b, &checkpoint, config, &mut |_| {}).unwrap()
}

fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

/// The tokens of the largest logits, largest first, then by id.
fn best(logits: &[f32], count: usize) -> Vec<u32> {
    let mut all: Vec<u32> = (0..logits.len() as u32).collect();
    all.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
    all.truncate(count);
    all
}

/// A block drafted: what was seen on the way, and what is chosen from at each position.
struct Drafted {
    seen: All,
    hidden: Vec<f32>,
    logits: Vec<f32>,
    codes: Vec<Vec<f32>>,
    candidates: Vec<Vec<u32>>,
}

fn draft(
    b: &CpuBackend,
    target: &MuseText<CpuBackend>,
    drafter: &DFlash<CpuBackend>,
    context: &mut DFlashContext<CpuBackend>,
    block: &[u32],
    mut seen: All,
) -> Drafted {
    let (dflash2, selector) = (drafter.config().dflash2.as_ref().unwrap(), drafter.selector().unwrap());
    let hidden = drafter.draft(b, context, target.embed_raw(b, block), &mut seen).unwrap();
    let rows = b.rows(&hidden, 1..block.len());
    let logits = b.softcap(target.bare_logits(b, &rows), dflash2.output_multiplier, dflash2.final_logit_softcapping);
    let (hidden, logits) = (b.read(&hidden), b.read(&logits));
    let candidates = logits.chunks(dflash2.vocab_size).map(|row| best(row, selector.top_k())).collect();
    Drafted { seen, hidden, logits, codes: selector.codes(b, &rows), candidates }
}

#[test]
fn stored_rounds_are_met_and_every_path() {
    let b = backend();
    let target = load(&b, "fixtures/muse-tiny-bf16");
    let drafter = drafter(&b, &target);
    let (mask, taps) = (drafter.config().mask_token_id, &drafter.config().target_layer_ids);
    let golden = Golden::open("fixtures/dflash2_expected.safetensors");
    let names = golden.names();
    let cases: Value = serde_json::from_slice(&std::fs::read(path("fixtures/dflash2_expected.json")).unwrap()).unwrap();
    let (mut paths, mut checked) = (0, 0);
    for (case, data) in cases["cases"].as_object().unwrap() {
        let mut sequence = ids(&data["input_ids"]);
        sequence.push(data["rounds"][0]["anchor"].as_u64().unwrap() as u32);
        let mut cache = target.cache(200, 64, F32);
        let mut context = drafter.context();
        for (number, round) in data["rounds"].as_array().unwrap().iter().enumerate() {
            let at = |name: &str| format!("{case}.round{number}.{name}");
            let start = cache.len();
            let new = sequence[start..sequence.len() - 1].to_vec();
            let mut tapped = Taps::new(taps);
            target.forward(&b, &mut cache, &new, &mut tapped).unwrap();
            let states = tapped.concat(&b);
            let mut seen = All::default();
            drafter.observe(&b, &mut context, &states, start, &mut seen).unwrap();
            assert_eq!(context.end() as u64, round["noise_start"].as_u64().unwrap());
            let mut block = vec![mask; round["block"].as_u64().unwrap() as usize];
            block[0] = *sequence.last().unwrap();
            let drafted = draft(&b, &target, &drafter, &mut context, &block, seen);
            let stored = names.iter().filter(|name| name.starts_with(&at("")));
            if names.contains(&at("context")) {
                golden.check(&at("context"), &b.read(&states));
            }
            if names.contains(&at("noise_embeds")) {
                assert_eq!(b.read(&target.embed_raw(&b, &block)), golden.f32(&at("noise_embeds")));
            }
            checked += stored.filter(|name| check(&golden, name, &at(""), &drafted)).count();

            // The path, of which each choice is the predecessor of the next.
            let mut previous = block[0];
            let stored: Vec<Vec<u32>> = round["candidates"].as_array().unwrap().iter().map(ids).collect();
            let mut edges = Vec::new();
            for (row, candidates) in drafted.candidates.iter().enumerate() {
                assert_eq!(*candidates, stored[row], "{case} {number} {row}");
                let logits = &drafted.logits[row * 512..][..512];
                let edge = drafter.selector().unwrap().edges(&b, previous, &drafted.codes[row], candidates);
                let score = |i: usize| logits[candidates[i] as usize] + edge[i];
                let chosen = (0..candidates.len()).max_by(|&i, &j| score(i).total_cmp(&score(j))).unwrap();
                assert_eq!(chosen as u64, round["chosen"][row].as_u64().unwrap(), "{case} {number} {row}");
                assert_eq!(best(logits, 1)[0], ids(&round["proposals_by_logit_alone"])[row]);
                previous = candidates[chosen];
                assert_eq!(previous, ids(&round["proposals"])[row], "{case} {number} {row}");
                edges.extend(edge);
            }
            if names.contains(&at("edge")) {
                golden.check(&at("edge"), &edges);
                checked += 1;
            }
            if case == "a" && number == 6 {
                check_probabilities(&b, &golden, &cases["sampling"], &drafter, &drafted, block[0]);
            }
            paths += 1;
            sequence.extend(ids(&round["emitted"]));
        }
    }
    assert_eq!((paths, checked), (39, 77));
}

/// Of the candidates at a temperature, on paths of the likeliest and of the second.
fn check_probabilities(
    b: &CpuBackend,
    golden: &Golden,
    stored: &Value,
    drafter: &DFlash<CpuBackend>,
    drafted: &Drafted,
    anchor: u32,
) {
    let temperature = stored["temperature"].as_f64().unwrap() as f32;
    for tag in ["best", "second"] {
        let path = ids(&stored["paths"][tag]);
        let (mut all, mut taken) = (Vec::new(), Vec::new());
        for (row, candidates) in drafted.candidates.iter().enumerate() {
            let previous = if row == 0 { anchor } else { path[row - 1] };
            let edges = drafter.selector().unwrap().edges(b, previous, &drafted.codes[row], candidates);
            let weight =
                |i: usize| ((drafted.logits[row * 512 + candidates[i] as usize] + edges[i]) / temperature).exp();
            let total: f32 = (0..candidates.len()).map(weight).sum();
            all.extend((0..candidates.len()).map(|i| weight(i) / total));
            taken.push(weight(candidates.iter().position(|&c| c == path[row]).unwrap()) / total);
        }
        golden.check(&format!("sampling.{tag}.q"), &all);
        golden.check(&format!("sampling.{tag}.q_draft"), &taken);
    }
}

/// Compares a stored tensor, and says whether it is one of those that are compared here.
fn check(golden: &Golden, name: &str, prefix: &str, drafted: &Drafted) -> bool {
    let Drafted { seen, hidden, logits, codes, candidates } = drafted;
    let site = |site: Site| seen.0[&site].clone();
    let (short, part) = match name[prefix.len()..].strip_prefix("l0.") {
        Some(rest) if rest.starts_with("attn") => (rest["attn_".len()..].to_string(), Some(Sublayer::Attention)),
        Some(rest) => (rest["mlp_".len()..].to_string(), Some(Sublayer::Mlp)),
        None => (name[prefix.len()..].to_string(), None),
    };
    let ours = match (short.as_str(), part) {
        ("norm", Some(part)) => site(Site::ConvNorm(part, 0)),
        ("conv_dynamic", Some(part)) => site(Site::ConvKernels(part, 0)),
        ("conv_in", Some(part)) => site(Site::ConvBefore(part, 0)),
        ("out", Some(Sublayer::Attention)) => site(Site::AttentionOut(0)),
        ("out", Some(Sublayer::Mlp)) => site(Site::MlpOut(0)),
        ("conv_out", Some(part)) => site(Site::ConvBehind(part, 0)),
        ("encoder_out", None) => {
            // Rows that the window leaves behind are not encoded.
            let (ours, theirs) = (site(Site::Encoder), golden.f32(name));
            let worst = ours.iter().rev().zip(theirs.iter().rev()).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(worst < 1e-3 && ours.len() >= theirs.len().min(15 * 64), "{name}: off by {worst}");
            return true;
        }
        ("last_hidden", None) => hidden.clone(),
        ("logits", None) => logits.clone(),
        ("selector_hidden", None) => codes.concat(),
        ("unary", None) => {
            let rows = candidates.iter().zip(logits.chunks(512));
            rows.flat_map(|(candidates, logits)| candidates.iter().map(|&c| logits[c as usize])).collect()
        }
        ("candidates", None) => {
            assert_eq!(candidates.concat(), golden.ids(name), "{name}");
            return true;
        }
        ("context" | "noise_embeds" | "position_ids" | "edge", None) => return false,
        (layer, None) => site(Site::Layer(layer["layer_out.".len()..].parse().unwrap())),
        other => panic!("{name}: {other:?}"),
    };
    golden.check(name, &ours);
    true
}

#[test]
fn a_block_depends_on_the_window_before_it_and_on_nothing_else() {
    let b = backend();
    let target = load(&b, "fixtures/muse-tiny-bf16");
    let drafter = drafter(&b, &target);
    let taps = &drafter.config().target_layer_ids;
    let states = {
        let mut cache = target.cache(100, 100, F32);
        let mut tapped = Taps::new(taps);
        target.forward(&b, &mut cache, &(0..90).map(|i| i * 5 % 400).collect::<Vec<u32>>(), &mut tapped).unwrap();
        tapped.concat(&b)
    };
    let block = |from: usize| {
        let mut context = drafter.context();
        drafter.observe(&b, &mut context, &b.rows(&states, from..90), from, &mut Unobserved).unwrap();
        b.read(&drafter.draft(&b, &mut context, target.embed_raw(&b, &[9, 500, 500, 500]), &mut Unobserved).unwrap())
    };
    // The anchor sees itself and the fifteen before it.
    assert_eq!(block(0), block(75));
    assert_ne!(block(75), block(76));
}

/// A copy of the fixture with another configuration.
fn changed(change: impl FnOnce(&mut Value)) -> (tempfile::TempDir, Checkpoint) {
    let dir = tempfile::tempdir().unwrap();
    let mut config: Value =
        serde_json::from_slice(&std::fs::read(path("fixtures/muse-tiny-dflash2/config.json")).unwrap()).unwrap();
    change(&mut config);
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    std::fs::copy(path("fixtures/muse-tiny-dflash2/model.safetensors"), dir.path().join("model.safetensors")).unwrap();
    let checkpoint = glimmer_checkpoint::open(dir.path()).unwrap();
    (dir, checkpoint)
}

#[test]
fn settings_that_would_change_the_arithmetic_are_refused_by_name() {
    let (_, target) = open("fixtures/muse-tiny-bf16");
    let nested = "dflash_config";
    let edits: &[(&[&str], Value, &[&str])] = &[
        (&["is_causal"], json!(true), &["`is_causal`", "false"]),
        (&[nested, "causal"], json!(true), &["`dflash_config.causal`", "false"]),
        (&["use_sliding_window"], json!(false), &["`use_sliding_window`", "true"]),
        (&["hidden_act"], json!("gelu"), &["`hidden_act`", "`silu`"]),
        (&["layer_types"], json!(vec!["full_attention"; 3]), &["`layer_types`", "sliding_attention"]),
        (&["rope_parameters", "rope_type"], json!("yarn"), &["rope_type"]),
        (&[nested, "input_embedding_scale"], json!(8.0), &["`dflash_config.input_embedding_scale`", "expected 1"]),
        (&[nested, "conv_group_size"], json!(24), &["`dflash_config.conv_group_size`", "a divisor of hidden_size, 64"]),
        (&[nested, "conv_kernel_size"], json!(0), &["`dflash_config.conv_kernel_size`"]),
        (&[nested, "selector_rank"], json!(0), &["`dflash_config.selector_rank`"]),
        (&[nested, "selector_top_k"], json!(100_000), &["`dflash_config.selector_top_k`"]),
        (&[nested, "block_size"], json!(1), &["`dflash_config.block_size`"]),
        (&["block_size"], json!(4), &["`dflash_config.block_size`", "the same"]),
        (&[nested, "final_logit_softcapping"], json!(30.0), &["final_logit_softcapping: expected 20, found 30"]),
        // What is left out is what the published drafter has, not what would fit.
        (&[nested, "output_multiplier"], json!(null), &["output_multiplier: expected 0.5, found 0.196"]),
        (&["vocab_size"], json!(null), &["vocab_size: expected 512, found 202048"]),
        (&["num_target_layers"], json!(52), &["num_target_layers: expected 8, found 52"]),
        (&[nested, "mask_token_id"], json!(512), &["mask_token_id", "found 512"]),
        (&[nested, "target_layer_ids"], json!([1, 3, 8]), &["target_layer_ids", "found 8"]),
        (&[nested, "target_layer_ids"], json!([]), &["`dflash_config.target_layer_ids`", "at least one layer"]),
    ];
    for (at, value, parts) in edits {
        let (_dir, checkpoint) = changed(|config| {
            let place = at.iter().fold(config, |value, key| &mut value[*key]);
            *place = value.clone();
        });
        let message = DFlashConfig::bind(&checkpoint, &target.text, "t").unwrap_err().to_string();
        assert!(parts.iter().all(|part| message.contains(part)) && !message.contains('\n'), "{at:?}: {message}");
    }
}

#[test]
fn keys_that_are_absent_have_the_published_values() {
    let (_dir, checkpoint) =
        changed(|config| *config = json!({ "architectures": ["DFlash2DraftModel"], "model_type": "qwen3" }));
    let config = DFlashConfig::from_fields(&checkpoint.fields()).unwrap();
    let dflash2 = config.dflash2.as_ref().unwrap();
    assert_eq!(
        (config.hidden_size, config.block_size, config.mask_token_id, config.reach()),
        (6656, 16, 201_818, 2047)
    );
    assert_eq!((dflash2.conv_kernel_size, dflash2.conv_group_size), (2, 16));
    assert_eq!((dflash2.selector_rank, dflash2.selector_top_k, dflash2.vocab_size), (256, 16, 202_048));
    assert_eq!((dflash2.output_multiplier, dflash2.final_logit_softcapping), (0.196_116_14, 20.0));
    // As many tensors and parameters as it was published with.
    let tensors = config.tensors();
    let elements: usize = tensors.iter().map(|tensor| tensor.shape.iter().product::<usize>()).sum();
    assert_eq!((tensors.len(), elements), (81, 2_772_159_744));
}

#[test]
fn tensors_are_those_of_the_configuration() {
    let (_, target) = open("fixtures/muse-tiny-bf16");
    let account = |change: fn(&mut Value)| {
        let (_dir, checkpoint) = changed(change);
        let config = DFlashConfig::bind(&checkpoint, &target.text, "t").unwrap();
        checkpoint.account(&config.tensors()).map_err(|error| error.to_string())
    };
    account(|_| {}).unwrap();
    for (change, parts) in [
        (
            (|config| config["dflash_config"]["selector_rank"] = 16.into()) as fn(&mut Value),
            ["hidden_projection.weight", "[16, 64]"],
        ),
        (|config| config["dflash_config"]["conv_kernel_size"] = 3.into(), ["base_kernel", "[2, 3, 64]"]),
        (|config| config["dflash_config"]["conv_group_size"] = 8.into(), ["kernel_projection.weight", "[32, 64]"]),
        (
            |config| config["architectures"] = json!(["MuseGlimmerAssistantModel"]),
            ["encoder.fc.weight", "shape [64, 192]"],
        ),
    ] {
        let message = account(change).unwrap_err();
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
    }
}
