//! A model from a GGUF file is the one that the file was made from.

use crate::gguf_writer::{Gguf, Meta, drafter, target};
use crate::support::{F32, Golden, backend, bits, load, logits, open, path};
use glimmer_backend::CpuBackend;
use glimmer_checkpoint::Checkpoint;
use glimmer_encoding::{Encoding, FloatType, GgmlType};
use glimmer_model::dflash::DFlashConfig;
use glimmer_model::muse::{MuseConfig, MuseText, account};

fn reopened(file: &Gguf) -> Checkpoint {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.gguf");
    std::fs::write(&path, file.bytes()).unwrap();
    glimmer_checkpoint::open(&path).unwrap()
}

fn model(b: &CpuBackend, file: &Gguf) -> MuseText<CpuBackend> {
    let checkpoint = reopened(file);
    let config = MuseConfig::from_checkpoint(&checkpoint).unwrap();
    assert_eq!(account(&checkpoint, &config).unwrap(), 0, "vision tensors");
    MuseText::load(b, &checkpoint, &config, &mut |_| {}).unwrap()
}

#[test]
fn floats_give_the_same_bits() {
    let b = backend();
    for (name, float) in [("muse-tiny-bf16", FloatType::BF16), ("muse-tiny-f32", FloatType::F32)] {
        let golden = Golden::open(&format!("fixtures/{name}_expected.safetensors"));
        let ids = golden.ids("input_ids");
        let (checkpoint, config) = open(&format!("fixtures/{name}"));
        let original = load(&b, &format!("fixtures/{name}"));
        let expected = logits(&b, &original, &ids, ids.len(), F32);
        for float in [float, FloatType::F32] {
            let file = target(&checkpoint, |_, _| Encoding::Dense(float));
            let read = model(&b, &file);
            assert_eq!(read.config().layers, config.text.layers, "{name}");
            assert_eq!(bits(&logits(&b, &read, &ids, ids.len(), F32)), bits(&expected), "{name} as {float}");
        }
    }
}

/// The architecture's own pattern, and the one that Unsloth writes.
#[test]
fn layers_alternate_whatever_the_pattern_is_written_as() {
    let (checkpoint, config) = open("fixtures/muse-tiny-bf16");
    let key = "muse-glimmer.attention.sliding_window_pattern";
    let mut file = target(&checkpoint, |_, _| Encoding::Dense(FloatType::BF16));
    let layers = |file: &Gguf| MuseConfig::from_checkpoint(&reopened(file)).unwrap().text.layers;
    file.set(key, Meta::U32(4));
    assert_eq!(layers(&file), config.text.layers);
    file.unset(key);
    assert_eq!(layers(&file), config.text.layers);
}

/// Eight bits are near enough for the same logits, but for little.
#[test]
fn q8_0_is_near_the_original() {
    let b = backend();
    let golden = Golden::open("fixtures/muse-tiny-bf16_expected.safetensors");
    let ids = golden.ids("input_ids");
    let (checkpoint, _) = open("fixtures/muse-tiny-bf16");
    let read = model(&b, &target(&checkpoint, |_, _| Encoding::Ggml(GgmlType::Q8_0)));
    let (ours, theirs) = (logits(&b, &read, &ids, ids.len(), F32), golden.f32("logits"));
    let square = |pairs: &mut dyn Iterator<Item = f32>| pairs.map(|x| f64::from(x).powi(2)).sum::<f64>();
    let error = square(&mut ours.iter().zip(&theirs).map(|(a, b)| a - b)) / square(&mut theirs.iter().copied());
    assert!((0.01..0.1).contains(&error.sqrt()), "{}", error.sqrt());
}

#[test]
fn a_drafter_binds_to_its_target() {
    let (_, target) = open("fixtures/muse-tiny-bf16");
    for name in ["fixtures/muse-tiny-assistant", "fixtures/muse-tiny-dflash2"] {
        let original = glimmer_checkpoint::open(&path(name)).unwrap();
        let read = reopened(&drafter(&original, |_, _| Encoding::Dense(FloatType::BF16)));
        let config = DFlashConfig::bind(&read, &target.text, "target").unwrap();
        assert_eq!(config, DFlashConfig::bind(&original, &target.text, "target").unwrap());
        read.account(&config.tensors()).unwrap();
        for info in original.tensors() {
            let (before, after) = (original.read(&info.name).unwrap(), read.read(&info.name).unwrap());
            assert_eq!(bits(&before.view().to_f32()), bits(&after.view().to_f32()), "{}", info.name);
        }
    }
}
