//! What an encoder writes decodes to what it was given, as near as the encoding allows; any bytes decode to something.

use glimmer_encoding::{Encoding, FloatType, GgmlType, Parts, Sizes, WeightView, e4m3, e8m0, encode_rows};
use proptest::prelude::*;

fn all() -> Vec<Encoding> {
    let floats = [FloatType::F32, FloatType::F16, FloatType::BF16];
    let mut all: Vec<Encoding> = floats.map(Encoding::Dense).into();
    for scale in floats {
        for bits in [2, 3, 4, 5, 6, 8] {
            all.extend([32, 64, 128].map(|group| Encoding::Affine { bits, group, scale }));
        }
    }
    all.extend([Encoding::MxFp4, Encoding::MxFp8, Encoding::NvFp4]);
    all.extend(GgmlType::ALL.map(Encoding::Ggml));
    all
}

/// Those that can be written.
fn with_encoder() -> Vec<Encoding> {
    all().into_iter().filter(|encoding| !matches!(encoding, Encoding::Ggml(kind) if !kind.has_encoder())).collect()
}

fn decode(encoding: Encoding, shape: &[usize], parts: Parts<'_>) -> Vec<f32> {
    WeightView::new(encoding, shape, parts).unwrap().to_f32()
}

/// Relative error of a value as this type stores it, with room for the f32 arithmetic around it.
fn rounding(float: FloatType) -> f32 {
    match float {
        FloatType::F32 => 1e-6,
        FloatType::F16 => 2f32.powi(-11) + 1e-6,
        FloatType::BF16 => 2f32.powi(-8) + 1e-6,
    }
}

fn range(values: &[f32]) -> (f32, f32) {
    values.iter().fold((f32::INFINITY, f32::NEG_INFINITY), |(l, h), &v| (l.min(v), h.max(v)))
}

/// Elements that are bounded together, and the largest error that an element may have, or, where a search weighs
/// one element against another, the largest root of their mean square.
enum Bound {
    Each(usize, Box<OfGroup>),
    /// Here of the group and of the whole block that it is in.
    Rms(usize, Box<OfGroupAndBlock>),
}

type OfGroup = dyn Fn(&[f32]) -> f32;
type OfGroupAndBlock = dyn Fn(&[f32], &[f32]) -> f32;

/// Half a step, and what the rounding of scales and minimums adds.
fn bound(encoding: Encoding) -> Bound {
    let absmax = |values: &[f32]| values.iter().fold(0f32, |m, v| m.max(v.abs()));
    // Half a step of f16's subnormal numbers, in which tiny scales are stored.
    let tiny = 2f32.powi(-25);
    match encoding {
        Encoding::Dense(float) => Bound::Each(1, Box::new(move |v| absmax(v) * rounding(float) + tiny)),
        Encoding::Affine { bits, group, scale } => {
            let top = f32::from(u8::MAX >> (8 - bits));
            let each = move |v: &[f32]| {
                let (low, high) = range(v);
                let (step, lost) = ((high - low) / top, rounding(scale));
                step * 0.5 * (1.0 + lost) + (high - low + low.abs()) * lost + tiny * (top + 1.0)
            };
            Bound::Each(group.into(), Box::new(each))
        }
        // The gap below the largest code is 2 of 6, or 32 of 448; the scale is up to twice as large as needed.
        Encoding::MxFp4 => Bound::Each(32, Box::new(move |v| absmax(v) * 2.0 / 6.0)),
        Encoding::MxFp8 => Bound::Each(32, Box::new(move |v| absmax(v) * 32.0 / 448.0)),
        // Here the scale has four significant bits, or a fixed step of 2^-9; what lies above six scales is cut.
        Encoding::NvFp4 => Bound::Each(16, Box::new(move |v| absmax(v) * (1.0 / 6.0 + 1.0 / 16.0) + 7.0 / 1024.0)),
        Encoding::Ggml(kind) => of_ggml(kind),
    }
}

fn of_ggml(kind: GgmlType) -> Bound {
    let absmax = |values: &[f32]| values.iter().fold(0f32, |m, v| m.max(v.abs()));
    let f16 = rounding(FloatType::F16);
    let tiny = 2f32.powi(-25);
    // The side of zero that has the extreme value has a code more than the other, which may lack a whole step.
    let centred = move |top: f32| Bound::Each(32, Box::new(move |v| absmax(v) * (1.0 / top + f16) + top * tiny));
    let ranged = move |top: f32| {
        let each = move |v: &[f32]| {
            let (low, high) = range(v);
            (high - low) * (0.5 / top + f16) + low.abs() * f16 + tiny * (top + 1.0)
        };
        Bound::Each(32, Box::new(each))
    };
    // So many elements share a scale and a minimum, integers up to `most`; codes go up to `top`.
    let mins = move |sub: usize, top: f32, most: f32| {
        let rms = move |v: &[f32], block: &[f32]| {
            let (low, high) = range(v);
            let spans = block.chunks(sub).map(|v| (range(v).0.min(0.0), range(v).1.max(0.0)));
            let (span, min) = spans.fold((0f32, 0f32), |(s, m), (l, h)| (s.max(h - l), m.max(-l)));
            let step = (high.max(0.0) - low.min(0.0)) / top;
            // Scale and minimum are off by half of a step of the largest of the block, the codes multiply it.
            (step + span / most / top) * 0.5 + (span + min) * (0.5 / most + f16) + (most + 1.0) * tiny * (top + 1.0)
        };
        Bound::Rms(sub, Box::new(rms))
    };
    let sixteenths = move |centre: f32, most: f32| {
        let rms = move |v: &[f32], block: &[f32]| {
            absmax(v) / centre + absmax(block) * (0.5 / (most - 1.0) + f16) + centre * most * tiny
        };
        Bound::Rms(16, Box::new(rms))
    };
    match kind {
        GgmlType::Q4_0 => centred(8.0),
        GgmlType::Q5_0 => centred(16.0),
        GgmlType::Q4_1 => ranged(15.0),
        GgmlType::Q5_1 => ranged(31.0),
        GgmlType::Q8_0 => Bound::Each(32, Box::new(move |v| absmax(v) * (0.5 / 127.0 + f16) + 128.0 * tiny)),
        GgmlType::Q2K => mins(16, 3.0, 15.0),
        GgmlType::Q4K => mins(32, 15.0, 63.0),
        GgmlType::Q5K => mins(32, 31.0, 63.0),
        GgmlType::Q3K => sixteenths(4.0, 32.0),
        GgmlType::Q6K => sixteenths(32.0, 128.0),
        // The largest value is 113 where the smallest is -127.
        GgmlType::Iq4Nl => Bound::Each(32, Box::new(move |v| absmax(v) * (14.0 / 127.0 + f16) + 128.0 * tiny)),
        // What lies between 6 and 8 is cut; below the largest code the gap is 2.
        GgmlType::MxFp4 => Bound::Each(32, Box::new(move |v| absmax(v) * 2.0 / 8.0)),
        GgmlType::NvFp4 => bound(Encoding::NvFp4),
        _ => unreachable!("{kind} has no encoder"),
    }
}

fn check(encoding: Encoding, values: &[f32], shape: [usize; 2]) {
    let encoded = encode_rows(encoding, values, shape[0], shape[1]).unwrap();
    let back = decode(encoding, &shape, encoded.parts());
    let pairs = |len: usize| values.chunks(len).zip(back.chunks(len));
    match bound(encoding) {
        Bound::Each(len, most) => {
            for (values, back) in pairs(len) {
                let most = most(values);
                for (v, b) in values.iter().zip(back) {
                    assert!((v - b).abs() <= most, "{encoding}: {v} became {b}, more than {most} away");
                }
            }
        }
        Bound::Rms(len, most) => {
            for (i, (group, back)) in pairs(len).enumerate() {
                let block = &values[i * len / 256 * 256..][..256];
                let most = most(group, block);
                let mean = group.iter().zip(back).map(|(v, b)| f64::from(v - b).powi(2)).sum::<f64>() / len as f64;
                assert!(mean.sqrt() <= f64::from(most), "{encoding}: group {i}: {} is more than {most}", mean.sqrt());
            }
        }
    }
}

/// Normal numbers, more or less, from a counter.
fn noise(len: usize) -> Vec<f32> {
    let mut state = 1u64;
    let mut uniform = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..len).map(|_| (0..12).map(|_| uniform()).sum()).collect()
}

/// Root mean square of the error over that of the values.
fn relative_error(encoding: Encoding, values: &[f32]) -> f64 {
    let encoded = encode_rows(encoding, values, 1, values.len()).unwrap();
    let back = decode(encoding, &[1, values.len()], encoded.parts());
    let square = |x: f32| f64::from(x).powi(2);
    let error: f64 = values.iter().zip(&back).map(|(v, b)| square(v - b)).sum();
    (error / values.iter().map(|&v| square(v)).sum::<f64>()).sqrt()
}

#[test]
fn the_error_of_normal_weights_is_that_of_the_bits() {
    let values = noise(256 * 64);
    let affine = |bits, group| Encoding::Affine { bits, group, scale: FloatType::BF16 };
    for (encoding, most) in [
        (Encoding::Dense(FloatType::BF16), 0.002),
        (affine(2, 64), 0.45),
        (affine(3, 64), 0.20),
        (affine(4, 64), 0.096),
        (affine(4, 32), 0.084),
        (affine(5, 64), 0.048),
        (affine(6, 64), 0.025),
        (affine(8, 64), 0.009),
        (Encoding::MxFp4, 0.14),
        (Encoding::MxFp8, 0.028),
        (Encoding::NvFp4, 0.10),
        (Encoding::Ggml(GgmlType::Q4_0), 0.093),
        (Encoding::Ggml(GgmlType::Q4_1), 0.082),
        (Encoding::Ggml(GgmlType::Q5_0), 0.047),
        (Encoding::Ggml(GgmlType::Q5_1), 0.041),
        (Encoding::Ggml(GgmlType::Q8_0), 0.006),
        (Encoding::Ggml(GgmlType::Q2K), 0.33),
        (Encoding::Ggml(GgmlType::Q3K), 0.17),
        (Encoding::Ggml(GgmlType::Iq4Nl), 0.08),
        (Encoding::Ggml(GgmlType::MxFp4), 0.14),
        (Encoding::Ggml(GgmlType::NvFp4), 0.10),
        (Encoding::Ggml(GgmlType::Q4K), 0.078),
        (Encoding::Ggml(GgmlType::Q5K), 0.039),
        (Encoding::Ggml(GgmlType::Q6K), 0.021),
    ] {
        let error = relative_error(encoding, &values);
        assert!(error <= most && error >= most / 2.0, "{encoding}: {error}");
    }
}

#[test]
fn zeros_and_constants_survive() {
    for encoding in with_encoder() {
        for value in [0.0, 1.0, -2.0] {
            let encoded = encode_rows(encoding, &[value; 256], 1, 256).unwrap();
            let back = decode(encoding, &[1, 256], encoded.parts());
            assert!(
                back.iter().all(|b| (b - value).abs() <= value.abs() * 0.04),
                "{encoding}: {value} {:?}",
                &back[..4]
            );
        }
    }
}

#[test]
fn sizes_are_those_of_the_formats() {
    let bits = |encoding: Encoding| encoding.bits_per_weight();
    for (encoding, name, expected) in [
        (Encoding::Dense(FloatType::F16), "f16", 16.0),
        (Encoding::Affine { bits: 4, group: 64, scale: FloatType::BF16 }, "affine 4-bit gs64 bf16", 4.5),
        (Encoding::Affine { bits: 3, group: 32, scale: FloatType::F32 }, "affine 3-bit gs32 f32", 5.0),
        (Encoding::MxFp4, "mxfp4", 4.25),
        (Encoding::MxFp8, "mxfp8", 8.25),
        (Encoding::NvFp4, "nvfp4", 4.5),
        (Encoding::Ggml(GgmlType::Q4_0), "q4_0", 4.5),
        (Encoding::Ggml(GgmlType::Q4_1), "q4_1", 5.0),
        (Encoding::Ggml(GgmlType::Q5_0), "q5_0", 5.5),
        (Encoding::Ggml(GgmlType::Q5_1), "q5_1", 6.0),
        (Encoding::Ggml(GgmlType::Q8_0), "q8_0", 8.5),
        (Encoding::Ggml(GgmlType::Q2K), "q2_k", 2.625),
        (Encoding::Ggml(GgmlType::Q3K), "q3_k", 3.4375),
        (Encoding::Ggml(GgmlType::Q4K), "q4_k", 4.5),
        (Encoding::Ggml(GgmlType::Q5K), "q5_k", 5.5),
        (Encoding::Ggml(GgmlType::Q6K), "q6_k", 6.5625),
        (Encoding::Ggml(GgmlType::Iq1S), "iq1_s", 1.5625),
        (Encoding::Ggml(GgmlType::Iq1M), "iq1_m", 1.75),
        (Encoding::Ggml(GgmlType::Iq2Xxs), "iq2_xxs", 2.0625),
        (Encoding::Ggml(GgmlType::Iq2Xs), "iq2_xs", 2.3125),
        (Encoding::Ggml(GgmlType::Iq2S), "iq2_s", 2.5625),
        (Encoding::Ggml(GgmlType::Iq3Xxs), "iq3_xxs", 3.0625),
        (Encoding::Ggml(GgmlType::Iq3S), "iq3_s", 3.4375),
        (Encoding::Ggml(GgmlType::Iq4Nl), "iq4_nl", 4.5),
        (Encoding::Ggml(GgmlType::Iq4Xs), "iq4_xs", 4.25),
        (Encoding::Ggml(GgmlType::Tq1_0), "tq1_0", 1.6875),
        (Encoding::Ggml(GgmlType::Tq2_0), "tq2_0", 2.0625),
        (Encoding::Ggml(GgmlType::MxFp4), "ggml_mxfp4", 4.25),
        (Encoding::Ggml(GgmlType::NvFp4), "ggml_nvfp4", 4.5),
    ] {
        assert_eq!((encoding.to_string().as_str(), bits(encoding)), (name, expected));
    }
    let affine = Encoding::Affine { bits: 5, group: 64, scale: FloatType::F16 };
    assert_eq!(affine.sizes(128), Some(Sizes { codes: 80, scales: 4, biases: 4 }));
    assert_eq!(affine.sizes(96), None);
    assert_eq!(Encoding::Dense(FloatType::BF16).sizes(usize::MAX / 2 + 1), None);
    assert_eq!(Encoding::MxFp8.sizes(usize::MAX - 31), None);
    assert_eq!(affine.tensor_sizes(&[3, 64]), Some(Sizes { codes: 120, scales: 6, biases: 6 }));
    assert_eq!(affine.tensor_sizes(&[usize::MAX, 64]), None);
    for (bits, group) in [(1, 64), (7, 64), (0, 64), (9, 64), (4, 16), (4, 0)] {
        let strange = Encoding::Affine { bits, group, scale: FloatType::F16 };
        assert_eq!((strange.sizes(64), strange.sizes(0)), (None, None));
        assert_eq!(encode_rows(strange, &[], 0, 64), None);
    }
    for encoding in all() {
        assert!(encoding.sizes(0).is_some_and(|sizes| sizes.total() == 0), "{encoding}");
        assert_eq!(256 % encoding.block(), 0);
    }
}

/// Values of one magnitude, with a few that stand out, in groups that may lie on one side of zero.
fn values() -> impl Strategy<Value = Vec<f32>> {
    let group = (-6..4i32, prop_oneof![Just(0f32), -3f32..3.0], prop::collection::vec(-1f32..1.0, 32), 0..40usize);
    prop::collection::vec(group, 16).prop_map(|groups| {
        let group = |(exponent, offset, mut values, outlier): (i32, f32, Vec<f32>, usize)| {
            if let Some(v) = values.get_mut(outlier) {
                *v *= 20.0;
            }
            values.into_iter().map(move |v| (v + offset) * 2f32.powi(exponent))
        };
        groups.into_iter().flat_map(group).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn decoded_is_within_half_a_step(values in values()) {
        for encoding in with_encoder() {
            check(encoding, &values, [2, 256]);
        }
    }

    /// Infinite and NaN scales included.
    #[test]
    fn any_bytes_decode(bytes in prop::collection::vec(any::<u8>(), 3072), global in any::<Option<f32>>()) {
        for encoding in all() {
            let sizes = encoding.tensor_sizes(&[2, 256]).unwrap();
            let (codes, rest) = bytes.split_at(sizes.codes);
            let (scales, rest) = rest.split_at(sizes.scales);
            let global_scale = global.filter(|_| encoding == Encoding::NvFp4);
            let parts = Parts { codes, scales, biases: &rest[..sizes.biases], global_scale };
            prop_assert_eq!(decode(encoding, &[2, 256], parts).len(), 512);
        }
    }

    /// Neither does what no weight is.
    #[test]
    fn any_floats_encode(bits in prop::collection::vec(any::<u32>(), 256)) {
        let values: Vec<f32> = bits.into_iter().map(f32::from_bits).collect();
        for encoding in with_encoder() {
            let encoded = encode_rows(encoding, &values, 1, 256).unwrap();
            prop_assert_eq!(Some(encoded.parts().sizes()), encoding.tensor_sizes(&[1, 256]));
        }
    }
}

#[test]
fn small_floats_have_their_extremes() {
    assert_eq!((e4m3(0xfe), e4m3(0x80), e8m0(1), e8m0(254)), (-448.0, 0.0, f32::MIN_POSITIVE, 2f32.powi(127)));
    assert!(e4m3(0x7f).is_nan() && e4m3(0xff).is_nan() && e8m0(255).is_nan());
}

/// What no quantizer writes: an e8m0 that is no number is refused, an e4m3 without a sign has its values.
#[test]
fn strange_scales_of_ggml_have_a_meaning() {
    let first = |kind: GgmlType, scale: u8| {
        let mut block = vec![0x22; kind.block_bytes()];
        block[0] = scale;
        let shape = [kind.block()];
        let view = WeightView::new(Encoding::Ggml(kind), &shape, Parts::of_codes(&block)).unwrap();
        (view.to_f32()[0], view.first_non_finite())
    };
    assert_eq!(first(GgmlType::MxFp4, 254), (2f32.powi(127), None));
    assert_eq!(first(GgmlType::MxFp4, 255).1, Some([0, 0]));
    for (scale, value) in [(0x38, 1.0), (0xb8, 1.0), (0x7e, 448.0), (0x7f, 0.0), (0xff, 480.0)] {
        assert_eq!(first(GgmlType::NvFp4, scale), (value, None), "{scale:#x}");
    }
}
