//! What the searches of encoders gain over the plain range of a block.

use glimmer_encoding::{Encoding, FloatType, GgmlType, WeightView, encode_rows, quantize_rows};

/// Numbers like weights, nearly normal.
fn weights(count: usize) -> Vec<f32> {
    let mut state = 7u32;
    let mut unit = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..count).map(|_| (unit() + unit() + unit() + unit()) * 0.03).collect()
}

/// The same, or with as many of each size, about another mean, or with a few that stand out.
fn drawn(what: &str) -> Vec<f32> {
    let near = weights(256 * 256 + 1);
    let pairs = near.windows(2).map(|pair| (pair[0], pair[1]));
    match what {
        "nearly normal" => pairs.map(|(v, _)| v).collect(),
        "even" => pairs.map(|(v, _)| (v * 1e5).fract() * 0.05).collect(),
        "off centre" => pairs.map(|(v, _)| v + 0.02).collect(),
        "heavy-tailed" => pairs.map(|(v, w)| v * (1.0 + w * w * w * w * 1e7)).collect(),
        other => panic!("{other}"),
    }
}

fn squared(a: &[f32], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum()
}

/// Scales and minimums of 6 bits that reach over the range of each 32.
fn ranges(values: &[f32], top: f32) -> Vec<f32> {
    let mut out = Vec::new();
    for block in values.chunks(256) {
        let ranges: Vec<(f32, f32)> = block
            .chunks(32)
            .map(|sub| sub.iter().fold((0f32, 0f32), |(l, h), &v| (l.min(v), h.max(v))))
            .map(|(low, high)| ((high - low) / top, -low))
            .collect();
        let (scale, min) = ranges.iter().fold((0f32, 0f32), |(s, m), r| (s.max(r.0), m.max(r.1)));
        for (sub, (own_scale, own_min)) in block.chunks(32).zip(ranges) {
            let step = (own_scale / scale * 63.0).round() * scale / 63.0;
            let offset = (own_min / min * 63.0).round() * min / 63.0;
            out.extend(sub.iter().map(|v| ((v + offset) / step).round().clamp(0.0, top) * step - offset));
        }
    }
    out
}

#[test]
fn k_quants_lose_less_than_their_ranges() {
    let values = weights(256 * 256);
    for (kind, top) in [(GgmlType::Q4K, 15.0), (GgmlType::Q5K, 31.0)] {
        let encoded = encode_rows(Encoding::Ggml(kind), &values, 256, 256).unwrap();
        let back = WeightView::new(Encoding::Ggml(kind), &[256, 256], encoded.parts()).unwrap().to_f32();
        let share = squared(&values, &back) / squared(&values, &ranges(&values, top));
        println!("{kind}: {share:.3} of the squared error");
        assert!(share <= 0.9, "{kind}: {share}");
    }
}

/// The squared errors of llama-quantize without an importance matrix, of rows of 256 values of each kind.
const LLAMA_QUANTIZE: [(&str, [(GgmlType, f64); 5]); 4] = [
    (
        "nearly normal",
        [
            (GgmlType::Q2K, 1.603578e+00),
            (GgmlType::Q3K, 4.125436e-01),
            (GgmlType::Q4K, 9.202057e-02),
            (GgmlType::Q5K, 2.369382e-02),
            (GgmlType::Q6K, 5.694441e-03),
        ],
    ),
    (
        "even",
        [
            (GgmlType::Q2K, 2.954411e+00),
            (GgmlType::Q3K, 8.549334e-01),
            (GgmlType::Q4K, 1.639106e-01),
            (GgmlType::Q5K, 4.181788e-02),
            (GgmlType::Q6K, 9.632805e-03),
        ],
    ),
    (
        "off centre",
        [
            (GgmlType::Q2K, 1.502893e+00),
            (GgmlType::Q3K, 7.672873e-01),
            (GgmlType::Q4K, 9.048103e-02),
            (GgmlType::Q5K, 2.300179e-02),
            (GgmlType::Q6K, 1.118869e-02),
        ],
    ),
    (
        "heavy-tailed",
        [
            (GgmlType::Q2K, 1.244413e+02),
            (GgmlType::Q3K, 2.590962e+01),
            (GgmlType::Q4K, 9.668674e+00),
            (GgmlType::Q5K, 2.833508e+00),
            (GgmlType::Q6K, 9.056387e-01),
        ],
    ),
];

#[test]
fn k_quants_lose_no_more_than_llama_quantize() {
    for (what, of_kinds) in LLAMA_QUANTIZE {
        let values = drawn(what);
        for (kind, theirs) in of_kinds {
            let encoded = encode_rows(Encoding::Ggml(kind), &values, 256, 256).unwrap();
            let back = WeightView::new(Encoding::Ggml(kind), &[256, 256], encoded.parts()).unwrap().to_f32();
            let share = squared(&values, &back) / theirs;
            println!("{kind}, {what}: {share:.3} of the squared error");
            assert!(share <= 1.0, "{kind}, {what}: {share}");
        }
    }
}

#[test]
fn weights_of_columns_move_the_error_to_where_it_counts_less() {
    let (rows, cols) = (64, 256);
    let values = weights(rows * cols);
    // A few columns count far more than others, and some not at all.
    let importance: Vec<f32> = (0..cols).map(|col| [1.0, 0.1, 30.0, 0.0, 2.0][col * 7 % 5]).collect();
    let affine = [2, 3, 4].map(|bits| Encoding::Affine { bits, group: 64, scale: FloatType::BF16 });
    let ggml = [GgmlType::Q2K, GgmlType::Q3K, GgmlType::Q4K, GgmlType::Q5K, GgmlType::Q6K].map(Encoding::Ggml);
    for encoding in affine.into_iter().chain(ggml) {
        let lost = |importance_given| {
            let encoded = quantize_rows(encoding, &values, rows, cols, importance_given).unwrap();
            let back = WeightView::new(encoding, &[rows, cols], encoded.parts()).unwrap().to_f32();
            let each = values.iter().zip(&back).zip(importance.iter().cycle());
            each.map(|((a, b), w)| f64::from(*w) * f64::from(a - b).powi(2)).sum::<f64>()
        };
        let share = lost(Some(&importance)) / lost(None);
        println!("{encoding}: {share:.3} of the weighted error");
        assert!(encoding.is_searched() && share < 1.0, "{encoding}: {share}");
    }
    // Where nothing is searched for, nothing is weighed.
    let q8 = Encoding::Ggml(GgmlType::Q8_0);
    assert!(!q8.is_searched());
    assert_eq!(quantize_rows(q8, &values, rows, cols, Some(&importance)), encode_rows(q8, &values, rows, cols));
}
