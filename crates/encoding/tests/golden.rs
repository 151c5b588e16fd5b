//! Decoders and encoders against the blocks of the reference packages.

use glimmer_encoding::{Encoding, FloatType, GgmlType, Parts, WeightView, encode_rows};
use safetensors::{Dtype, SafeTensors};
use std::path::Path;

struct Golden(Vec<u8>);

impl Golden {
    fn open(name: &str) -> Self {
        Self(std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)).unwrap())
    }

    fn get(&self, name: &str) -> Option<(Dtype, Vec<u8>)> {
        let file = SafeTensors::deserialize(&self.0).unwrap();
        file.tensor(name).ok().map(|t| (t.dtype(), t.data().to_vec()))
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        self.get(name).unwrap_or_else(|| panic!("{name}")).1
    }

    /// Widened.
    fn floats(&self, name: &str) -> Vec<f32> {
        let (dtype, bytes) = self.get(name).unwrap_or_else(|| panic!("{name}"));
        let float = match dtype {
            Dtype::F32 => FloatType::F32,
            Dtype::F16 => FloatType::F16,
            Dtype::BF16 => FloatType::BF16,
            other => panic!("{other:?}"),
        };
        let mut out = vec![0.0; bytes.len() / float.size()];
        float.decode(&bytes, &mut out);
        out
    }
}

fn same(what: &str, ours: &[f32], theirs: &[f32]) {
    assert_eq!(ours.len(), theirs.len(), "{what}");
    let differ = ours.iter().zip(theirs).position(|(a, b)| a.to_bits() != b.to_bits());
    assert!(differ.is_none(), "{what}: element {differ:?}: {} and {}", ours[differ.unwrap()], theirs[differ.unwrap()]);
}

const FLOATS: [FloatType; 3] = [FloatType::F32, FloatType::F16, FloatType::BF16];

#[test]
fn ggml_blocks_decode_bit_for_bit() {
    let golden = Golden::open("gguf_blocks.safetensors");
    let mut all: Vec<(String, Encoding)> = Vec::new();
    for kind in GgmlType::ALL {
        let name = kind.to_string();
        // The package writes `Q4_K` and `MXFP4`.
        all.push((name.trim_start_matches("ggml_").to_uppercase(), Encoding::Ggml(kind)));
    }
    all.push(("BF16".into(), Encoding::Dense(FloatType::BF16)));
    for (name, encoding) in all {
        let (raw, expected) = (golden.bytes(&format!("{name}.raw")), golden.floats(&format!("{name}.f32")));
        let shape = [expected.len()];
        let view = WeightView::new(encoding, &shape, Parts::of_codes(&raw));
        let view = view.unwrap_or_else(|e| panic!("{name}: {e}"));
        same(&name, &view.to_f32(), &expected);
    }
}

#[test]
fn simple_ggml_types_encode_as_the_package_does() {
    let golden = Golden::open("gguf_blocks.safetensors");
    let values = golden.floats("quantize_input.f32");
    for (name, encoding) in [
        ("Q4_0", Encoding::Ggml(GgmlType::Q4_0)),
        ("Q4_1", Encoding::Ggml(GgmlType::Q4_1)),
        ("Q5_0", Encoding::Ggml(GgmlType::Q5_0)),
        ("Q5_1", Encoding::Ggml(GgmlType::Q5_1)),
        ("Q8_0", Encoding::Ggml(GgmlType::Q8_0)),
        ("MXFP4", Encoding::Ggml(GgmlType::MxFp4)),
        ("BF16", Encoding::Dense(FloatType::BF16)),
    ] {
        let encoded = encode_rows(encoding, &values, 2, 256).unwrap();
        assert!(encoded.codes == golden.bytes(&format!("quantize.{name}")), "{name}");
    }
}

#[test]
fn affine_decodes_as_mlx_does() {
    let golden = Golden::open("mlx_quant.safetensors");
    let mut checked = 0;
    for scale in FLOATS {
        for (bits, group) in [2, 3, 4, 5, 6, 8].into_iter().flat_map(|b| [32, 64, 128].map(|g| (b, g))) {
            let case = format!("affine.b{bits}.g{group}.{scale}");
            let part = |name: &str| golden.bytes(&format!("{case}.{name}"));
            let (codes, scales, biases) = (part("q"), part("scales"), part("biases"));
            let parts = Parts { codes: &codes, scales: &scales, biases: &biases, global_scale: None };
            let view = WeightView::new(Encoding::Affine { bits, group, scale }, &[4, 256], parts).unwrap();
            let ours = view.to_f32();
            if golden.get(&format!("{case}.dequant")).is_none() {
                continue;
            }
            let theirs = golden.floats(&format!("{case}.dequant"));
            // MLX rounds the product to the type of the scales, and then the sum; with f32 scales that is ours.
            let round = |x: f32| {
                let mut out = [0.0];
                scale.decode(&scale.encode(&[x]), &mut out);
                out[0]
            };
            let biases = golden.floats(&format!("{case}.biases"));
            let twice: Vec<f32> = (0..4 * 256)
                .map(|i| {
                    let bias = biases[i / usize::from(group)];
                    // Exact, since the sum is: the product of a scale of 16 bits and a code has 19 bits at most.
                    let product = exact_product(&view, i);
                    round(round(product) + bias)
                })
                .collect();
            same(&case, &twice, &theirs);
            if scale == FloatType::F32 {
                same(&case, &ours, &theirs);
            }
            checked += 1;
        }
    }
    assert_eq!(checked, 3 * (4 * 3 + 2));
}

/// scale * code of element `i`: what is left where the bias is zero.
fn exact_product(view: &WeightView<'_>, i: usize) -> f32 {
    let row = view.row(i / 256);
    let zeros = vec![0; row.biases.len()];
    let mut out = [0.0; 256];
    view.encoding().decode_row(Parts { biases: &zeros, ..row }, &mut out);
    out[i % 256]
}

/// Our affine decoding against a product and a sum in f64, which holds both exactly for scales of 16 bits.
#[test]
fn affine_with_scales_of_16_bits_is_rounded_once() {
    let golden = Golden::open("mlx_quant.safetensors");
    for scale in [FloatType::F16, FloatType::BF16] {
        for bits in [2u8, 3, 4, 5, 6, 8] {
            let case = format!("affine.b{bits}.g64.{scale}");
            let part = |name: &str| golden.bytes(&format!("{case}.{name}"));
            let (codes, scales, biases) = (part("q"), part("scales"), part("biases"));
            let parts = Parts { codes: &codes, scales: &scales, biases: &biases, global_scale: None };
            let view = WeightView::new(Encoding::Affine { bits, group: 64, scale }, &[4, 256], parts).unwrap();
            let (s, b) = (golden.floats(&format!("{case}.scales")), golden.floats(&format!("{case}.biases")));
            let mut unpacked = vec![0; 4 * 256];
            glimmer_encoding::unpack_codes(bits, &codes, &mut unpacked);
            let exact: Vec<f32> = (0..4 * 256)
                .map(|i| (f64::from(s[i / 64]) * f64::from(unpacked[i]) + f64::from(b[i / 64])) as f32)
                .collect();
            same(&case, &view.to_f32(), &exact);
        }
    }
}

#[test]
fn microscaling_formats_decode_and_encode_as_mlx_does() {
    let golden = Golden::open("mlx_quant.safetensors");
    for (name, encoding) in [("mxfp4", Encoding::MxFp4), ("mxfp8", Encoding::MxFp8), ("nvfp4", Encoding::NvFp4)] {
        for float in FLOATS {
            let case = format!("{name}.{float}");
            let (codes, scales) = (golden.bytes(&format!("{case}.q")), golden.bytes(&format!("{case}.scales")));
            let parts = Parts { codes: &codes, scales: &scales, ..Parts::default() };
            let view = WeightView::new(encoding, &[4, 256], parts).unwrap();
            same(&case, &view.to_f32(), &golden.floats(&format!("{case}.dequant")));
            let encoded = encode_rows(encoding, &golden.floats(&format!("w.{float}")), 4, 256).unwrap();
            assert!(encoded.scales == scales, "{case}: scales");
            // Half-way between two codes MLX goes either way; that happens with inputs of 16 bits only.
            if float == FloatType::F32 || encoding == Encoding::MxFp8 {
                assert!(encoded.codes == codes, "{case}: codes");
            }
            let ours = WeightView::new(encoding, &[4, 256], encoded.parts()).unwrap().to_f32();
            for ((w, ours), theirs) in golden.floats(&format!("w.{float}")).iter().zip(ours).zip(view.to_f32()) {
                assert_eq!((w - ours).abs(), (w - theirs).abs(), "{case}: {w} became {ours}, not {theirs}");
            }
        }
    }
    let part = |name: &str| golden.bytes(&format!("nvfp4_global.f32.{name}"));
    let (codes, scales) = (part("q"), part("scales"));
    // MLX keeps the largest magnitude; the largest scale and the largest code stand for it.
    let global_scale = Some(golden.floats("nvfp4_global.f32.global_scale")[0] / (6.0 * 448.0));
    let parts = Parts { codes: &codes, scales: &scales, biases: &[], global_scale };
    let view = WeightView::new(Encoding::NvFp4, &[4, 256], parts).unwrap();
    same("nvfp4_global", &view.to_f32(), &golden.floats("nvfp4_global.f32.dequant"));
}
