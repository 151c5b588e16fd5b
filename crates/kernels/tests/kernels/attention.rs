//! Attention over rings of keys and values.

use crate::support::{ENDS, Flush, Guarded, Random, bits, tables};
use glimmer_kernels::attention::{Attention, CHUNK, KvData, KvLayout, attend, store_keys, store_values};
use glimmer_kernels::dispatch::Kernels;
use glimmer_kernels::lanes::{Element, F16, F32};
use glimmer_kernels::pool::Pool;
use proptest::prelude::*;
use std::ops::Range;

/// A cache that has held `written` positions, and rows that attend to it.
#[derive(Clone, Debug)]
struct Case {
    heads: usize,
    group: usize,
    head_dim: usize,
    positions: usize,
    written: usize,
    visible: Vec<Range<usize>>,
    half_keys: bool,
    half_values: bool,
    seed: u64,
}

struct Buffers {
    layout: KvLayout,
    q: Vec<f32>,
    keys: Vec<f32>,   // rounded
    values: Vec<f32>, // rounded
    stored: (Vec<f32>, Vec<u16>, Vec<f32>, Vec<u16>),
}

impl Case {
    fn buffers(&self) -> Buffers {
        let layout = KvLayout::new(self.heads, self.head_dim, self.positions);
        let mut random = Random::new(self.seed);
        let width = self.heads * self.head_dim;
        let mut round = |half: bool| -> Vec<f32> {
            let values = random.values(self.written * width).into_iter();
            values.map(|x| if half { F16::widen(F16::narrow(x)) } else { x }).collect()
        };
        let (keys, values) = (round(self.half_keys), round(self.half_values));
        let q = random.values(self.visible.len() * width * self.group);
        let mut stored = (
            vec![0.0; layout.key_len()],
            vec![0; layout.key_len()],
            vec![0.0; layout.value_len()],
            vec![0; layout.value_len()],
        );
        // Row by row and in one piece is the same.
        store_keys::<F32>(layout, &mut stored.0, 0, &keys);
        store_values::<F32>(layout, &mut stored.2, 0, &values);
        for position in 0..self.written {
            let row = position * width..(position + 1) * width;
            store_keys::<F16>(layout, &mut stored.1, position, &keys[row.clone()]);
            store_values::<F16>(layout, &mut stored.3, position, &values[row]);
        }
        Buffers { layout, q, keys, values, stored }
    }

    fn run(&self, kernels: &Kernels, pool: &Pool, b: &Buffers, rows: Range<usize>, end: Flush) -> Vec<f32> {
        let width = self.heads * self.group * self.head_dim;
        let q = Guarded::new(&b.q[rows.start * width..rows.end * width], end);
        let wide = (Guarded::new(&b.stored.0, end), Guarded::new(&b.stored.2, end));
        let half = (Guarded::new(&b.stored.1, end), Guarded::new(&b.stored.3, end));
        let mut out = Guarded::new(&vec![f32::NAN; rows.len() * width], end);
        let attention = Attention {
            q: &q,
            q_heads: self.heads * self.group,
            layout: b.layout,
            keys: if self.half_keys { KvData::F16(&half.0) } else { KvData::F32(&wide.0) },
            values: if self.half_values { KvData::F16(&half.1) } else { KvData::F32(&wide.1) },
            scale: self.scale(),
            visible: &self.visible[rows],
        };
        attend(kernels, pool, &attention, &mut out);
        out.to_vec()
    }

    fn scale(&self) -> f32 {
        1.0 / (self.head_dim as f32).sqrt()
    }

    /// Softmax attention in f64.
    fn exact(&self, b: &Buffers) -> Vec<f64> {
        let (width, dim) = (self.heads * self.head_dim, self.head_dim);
        let mut out = Vec::new();
        for (row, visible) in self.visible.iter().enumerate() {
            for head in 0..self.heads * self.group {
                let q = &b.q[(row * self.heads * self.group + head) * dim..][..dim];
                let at = |position: usize| position * width + head / self.group * dim;
                let score = |position: usize| -> f64 {
                    let k = &b.keys[at(position)..][..dim];
                    q.iter().zip(k).map(|(&q, &k)| q as f64 * k as f64).sum::<f64>() * self.scale() as f64
                };
                let scores: Vec<f64> = visible.clone().map(score).collect();
                let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
                let sum: f64 = weights.iter().sum();
                for d in 0..dim {
                    let values = visible.clone().map(|position| b.values[at(position) + d] as f64);
                    out.push(values.zip(&weights).map(|(v, w)| v * w).sum::<f64>() / sum);
                }
            }
        }
        out
    }
}

fn check(case: &Case) {
    let b = case.buffers();
    let rows = case.visible.len();
    let width = case.heads * case.group * case.head_dim;
    let scalar = case.run(tables()[0], &Pool::new(1), &b, 0..rows, Flush::End);
    for (i, (ours, exact)) in scalar.iter().zip(case.exact(&b)).enumerate() {
        assert!((*ours as f64 - exact).abs() < 2e-5, "{case:?} at {i}: {ours} against {exact}");
    }
    let pools = [Pool::new(1), Pool::new(2), Pool::new(4)];
    for kernels in tables() {
        for end in ENDS {
            for pool in &pools {
                let out = case.run(kernels, pool, &b, 0..rows, end);
                assert!(bits(&out) == bits(&scalar), "{} {end:?} {} threads: {case:?}", kernels.isa(), pool.threads());
            }
        }
        for row in 0..rows {
            for pool in &pools {
                let alone = case.run(kernels, pool, &b, row..row + 1, Flush::End);
                let expected = &scalar[row * width..(row + 1) * width];
                assert!(bits(&alone) == bits(expected), "{} row {row} alone: {case:?}", kernels.isa());
            }
        }
    }
}

fn cases() -> impl Strategy<Value = Case> {
    let shape = (1..=3usize, prop::sample::select(vec![1usize, 2, 3, 4, 5, 8, 16]), 1..=20usize);
    let cache = (prop::sample::select(vec![1usize, 16, 40, 256, 300, 700]), 1..=1500usize);
    (shape, cache, 1..=4usize, any::<(bool, bool)>(), any::<u64>()).prop_map(
        |((heads, group, half_dim), (positions, written), rows, (half_keys, half_values), seed)| {
            let slots = KvLayout::new(heads, 2 * half_dim, positions).slots;
            let mut random = Random::new(seed ^ 0xabc);
            let oldest = written.saturating_sub(slots);
            let visible = (0..rows)
                .map(|_| {
                    let start = oldest + random.below(written - oldest);
                    start..start + 1 + random.below(written - start)
                })
                .collect();
            Case { heads, group, head_dim: 2 * half_dim, positions, written, visible, half_keys, half_values, seed }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn every_ring_and_range(case in cases()) {
        check(&case);
    }
}

#[test]
fn borders_of_chunks_and_blocks() {
    for written in [15, 16, 17, 255, 256, 257, 512, 777] {
        for positions in [written, 64, 256, 260] {
            let slots = KvLayout::new(1, 16, positions).slots;
            let oldest = written.saturating_sub(slots);
            let visible: Vec<Range<usize>> = [oldest, oldest + 1, written - 1, written / CHUNK * CHUNK]
                .into_iter()
                .filter(|&start| start >= oldest && start < written)
                .map(|start| start..written)
                .collect();
            let (half_keys, half_values) = (written % 2 == 0, positions % 2 == 0);
            check(&Case {
                heads: 2,
                group: 4,
                head_dim: 16,
                positions,
                written,
                visible,
                half_keys,
                half_values,
                seed: 3,
            });
        }
    }
}

#[test]
fn what_is_not_visible_weighs_nothing() {
    let case = Case {
        heads: 1,
        group: 2,
        head_dim: 8,
        positions: 600,
        written: 600,
        visible: vec![100..101, 37..300, 256..512],
        half_keys: false,
        half_values: false,
        seed: 8,
    };
    let b = case.buffers();
    let clean = case.run(Kernels::best(), &Pool::new(1), &b, 0..3, Flush::End);
    // Keys and values of all other positions become NaN.
    let mut dirty = case.buffers();
    for position in (0..600).filter(|p| !case.visible.iter().any(|r| r.contains(p))) {
        store_keys::<F32>(dirty.layout, &mut dirty.stored.0, position, &[f32::NAN; 8]);
        store_values::<F32>(dirty.layout, &mut dirty.stored.2, position, &[f32::NAN; 8]);
    }
    for kernels in tables() {
        assert_eq!(bits(&case.run(kernels, &Pool::new(1), &dirty, 0..3, Flush::End)), bits(&clean));
    }
    // One key only: its value comes back as it is.
    assert_eq!(clean[..8], b.values[800..808]);
}

#[test]
fn what_is_not_a_number_is_not_hidden() {
    let mut case = Case {
        heads: 1,
        group: 1,
        head_dim: 8,
        positions: 600,
        written: 600,
        visible: std::iter::once(0..600).collect(),
        half_keys: false,
        half_values: false,
        seed: 8,
    };
    for position in [0, 300, 599] {
        for keys in [true, false] {
            let mut b = case.buffers();
            match keys {
                true => store_keys::<F32>(b.layout, &mut b.stored.0, position, &[f32::NAN; 8]),
                false => store_values::<F32>(b.layout, &mut b.stored.2, position, &[f32::NAN; 8]),
            }
            for kernels in tables() {
                let out = case.run(kernels, &Pool::new(1), &b, 0..1, Flush::End);
                assert!(out.iter().all(|x| x.is_nan()), "{} {position} {keys}", kernels.isa());
            }
        }
    }
    case.visible = std::iter::once(0..1).collect();
    assert!(case.run(Kernels::best(), &Pool::new(1), &case.buffers(), 0..1, Flush::End)[0].is_finite());
}
