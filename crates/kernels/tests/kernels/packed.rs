//! Products of packed quantized weights with 8-bit activations.

use crate::support::{ENDS, Guarded, Random, bits, cases, tables};
use glimmer_encoding::{Encoding, FloatType, GgmlType, Parts, WeightView};
use glimmer_kernels::dispatch::Kernels;
use glimmer_kernels::packed::activations::sums_at;
use glimmer_kernels::packed::{self, Activations, Packed, Product, matmul};
use glimmer_kernels::pool::Pool;
use glimmer_kernels::rows::swiglu;
use half::{bf16, f16};
use proptest::prelude::*;

/// Every encoding that has a packed layout.
fn encodings() -> Vec<Encoding> {
    let affine = |bits| {
        let groups = [32, 64, 128].into_iter().flat_map(|group| [(group, FloatType::F16), (group, FloatType::BF16)]);
        groups.map(move |(group, scale)| Encoding::Affine { bits, group, scale })
    };
    let all = GgmlType::ALL.map(Encoding::Ggml).into_iter().chain([Encoding::MxFp4, Encoding::MxFp8, Encoding::NvFp4]);
    all.chain([2, 3, 4, 5, 6, 8].into_iter().flat_map(affine)).filter(|&e| Packed::exists(e)).collect()
}

/// A weight of any bits with moderate scales.
struct Stored {
    encoding: Encoding,
    shape: [usize; 2],
    codes: Vec<u8>,
    scales: Vec<u8>,
    biases: Vec<u8>,
}

/// How the bytes of codes are chosen.
#[derive(Clone, Copy, Debug)]
enum Codes {
    Random,
    /// All the same: the largest and the smallest code, and the ends of signed ones and of signed sub-scales.
    All(u8),
}

const CODES: [Codes; 5] = [Codes::Random, Codes::All(0xff), Codes::All(0), Codes::All(0x80), Codes::All(0x7f)];

impl Stored {
    fn new(encoding: Encoding, outs: usize, k: usize, codes: Codes, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let sizes = encoding.tensor_sizes(&[outs, k]).unwrap();
        let mut bytes: Vec<u8> = (0..sizes.codes)
            .map(|_| match codes {
                Codes::Random => random.next() as u8,
                Codes::All(byte) => byte,
            })
            .collect();
        if encoding == Encoding::MxFp8 {
            // Any code but those that are no numbers.
            bytes.iter_mut().filter(|code| **code & 0x7f == 0x7f).for_each(|code| *code -= 1);
        }
        let small = |random: &mut Random| f16::from_f32(0.01 * random.value()).to_le_bytes();
        match encoding {
            Encoding::Ggml(kind) => {
                for block in bytes.chunks_exact_mut(kind.block_bytes()) {
                    for &at in kind.halves() {
                        block[at..at + 2].copy_from_slice(&small(&mut random));
                    }
                    match kind {
                        GgmlType::MxFp4 => block[0] = 100 + (random.next() % 20) as u8,
                        // The f16 is in the upper quarters of its last four words.
                        GgmlType::Iq1M => {
                            let d = u16::from_le_bytes(small(&mut random));
                            for (i, word) in block[48..].as_chunks_mut::<2>().0.iter_mut().enumerate() {
                                word[1] = word[1] & 15 | ((d >> (4 * i)) as u8) << 4;
                            }
                        }
                        _ => {}
                    }
                }
                Self { encoding, shape: [outs, k], codes: bytes, scales: Vec::new(), biases: Vec::new() }
            }
            Encoding::Affine { scale, .. } => {
                let mut floats = |n: usize| -> Vec<u8> {
                    (0..n / 2)
                        .flat_map(|_| match scale {
                            FloatType::F16 => small(&mut random),
                            _ => bf16::from_f32(0.01 * random.value()).to_le_bytes(),
                        })
                        .collect()
                };
                let (scales, biases) = (floats(sizes.scales), floats(sizes.biases));
                Self { encoding, shape: [outs, k], codes: bytes, scales, biases }
            }
            _ => {
                // Powers of two, or 8-bit floats: any code but the one that is no number.
                let scales = (0..sizes.scales).map(|_| 100 + (random.next() % 20) as u8).collect();
                Self { encoding, shape: [outs, k], codes: bytes, scales, biases: Vec::new() }
            }
        }
    }

    fn view(&self) -> WeightView<'_> {
        let global_scale = (self.encoding == Encoding::NvFp4).then_some(0.37);
        let parts = Parts { codes: &self.codes, scales: &self.scales, biases: &self.biases, global_scale };
        WeightView::new(self.encoding, &self.shape, parts).unwrap()
    }

    /// Packed in pieces of so many rows, the last first.
    fn packed(&self, rows: usize) -> Packed {
        let [outs, k] = self.shape;
        let row = self.encoding.sizes(k).unwrap();
        let mut packed = Packed::zeros(None, self.encoding, outs, k).unwrap();
        for (i, mut piece) in packed.pieces(rows).into_iter().enumerate().rev() {
            let range = i * rows..outs.min((i + 1) * rows);
            let part = |bytes: &'_ [u8], len: usize| bytes[range.start * len..range.end * len].to_vec();
            let (codes, scales, biases) =
                (part(&self.codes, row.codes), part(&self.scales, row.scales), part(&self.biases, row.biases));
            let parts = Parts { codes: &codes, scales: &scales, biases: &biases, global_scale: None };
            piece.fill(&WeightView::new(self.encoding, &[range.len(), k], parts).unwrap());
        }
        packed.set_global_scale(self.view().parts().global_scale);
        packed
    }
}

fn rounded(x: &[f32], k: usize) -> Activations {
    Activations::quantize(tables()[0], &Pool::new(1), x, k)
}

fn run(kernels: &Kernels, pool: &Pool, x: &[f32], k: usize, weight: &Packed) -> Vec<f32> {
    let mut out = vec![f32::NAN; x.len() / k * weight.outs()];
    multiply(kernels, pool, x, k, weight, &mut out);
    out
}

fn multiply(kernels: &Kernels, pool: &Pool, x: &[f32], k: usize, weight: &Packed, out: &mut [f32]) {
    let activations = Activations::quantize(kernels, pool, x, k);
    matmul(kernels, pool, &activations, &mut [Product { weight, out }]);
}

/// Activations with all extremes: zeros, one spike, equal magnitudes, whose codes are all 127 or -127, of either sign or of one.
pub fn activations(rows: usize, k: usize, seed: u64) -> Vec<f32> {
    let mut random = Random::new(seed);
    let mut x = random.values(rows * k);
    for (row, x) in x.chunks_exact_mut(k).enumerate() {
        match (row + seed as usize) % 8 {
            1 => x.iter_mut().for_each(|x| *x = x.signum()),
            2 => x[..k.min(40)].fill(0.0),
            3 => x[k - 1] = 1e4,
            4 => x.fill(1.5),
            5 => x.fill(-1.5),
            // What is centred has one sign, what is not the other.
            6 => x.iter_mut().enumerate().for_each(|(i, x)| *x = if i / 4 % 2 == 0 { 0.5 } else { -0.5 }),
            7 if row % 2 == 1 => x.fill(0.0),
            _ => {}
        }
    }
    x
}

/// A weight (outs, k) of an encoding, and rows of activations.
#[derive(Clone, Debug)]
struct Case {
    encoding: Encoding,
    rows: usize,
    outs: usize,
    k: usize,
    codes: Codes,
    seed: u64,
}

impl Case {
    fn check(&self, pools: &[Pool]) {
        let Case { encoding, rows, outs, k, codes, seed } = *self;
        let stored = Stored::new(encoding, outs, k, codes, seed);
        let x = activations(rows, k, seed);
        let packed = stored.packed(16 * (1 + rows % 2));
        let scalar = run(tables()[0], &pools[0], &x, k, &packed);
        self.check_rule(&stored, &x, &scalar);
        for kernels in tables() {
            let isa = kernels.isa();
            for pool in pools {
                for end in ENDS {
                    let x = Guarded::new(&x, end);
                    let mut out = Guarded::new(&vec![f32::NAN; rows * outs], end);
                    multiply(kernels, pool, &x, k, &packed, &mut out);
                    assert!(bits(&out) == bits(&scalar), "{isa}, {} threads, {end:?}: {self:?}", pool.threads());
                }
            }
            for row in 0..rows {
                let alone = run(kernels, &pools[0], &x[row * k..(row + 1) * k], k, &packed);
                assert!(bits(&alone) == bits(&scalar[row * outs..(row + 1) * outs]), "{isa} row {row} alone: {self:?}");
            }
        }
    }

    /// What the rule says: codes of activations times decoded weights.
    fn check_rule(&self, stored: &Stored, x: &[f32], ours: &[f32]) {
        let Case { outs, k, .. } = *self;
        let weight: Vec<f64> = stored.view().to_f32().iter().map(|&w| w as f64).collect();
        let rounded = rounded(x, k);
        for (i, &ours) in ours.iter().enumerate() {
            let (row, out) = (i / outs, i % outs);
            let (mut exact, mut size) = (0.0, 0.0);
            for input in 0..k {
                let group = &rounded.of_rows(input / 256)[row];
                let a = group.codes[input % 256] as f64 * group.scale as f64;
                let w = weight[out * k + input];
                exact += a * w;
                size += (a * w).abs();
            }
            // Differences of large sums, a few roundings for each block.
            let scale = size.max(weight[out * k..(out + 1) * k].iter().map(|w| w.abs()).sum::<f64>() * 1e-6);
            let bound = 2e-6 * (scale * 8.0 + exact.abs()) + 1e-9;
            assert!((ours as f64 - exact).abs() <= bound, "{self:?} at {i}: {ours} against {exact}");
        }
    }
}

#[test]
fn every_encoding_with_extreme_codes() {
    let pools = [Pool::new(1), Pool::new(3)];
    for encoding in encodings() {
        let block = encoding.block();
        for (i, codes) in CODES.into_iter().enumerate() {
            let (rows, outs, k) = [(8, 33, 256), (1, 16, 768), (9, 5, 512), (4, 17, 1024), (5, 31, 256)][i];
            // Encodings whose blocks are shorter have a last group that is not full.
            let k = if block < 256 { k + block } else { k };
            Case { encoding, rows, outs, k, codes, seed: (rows * outs + k) as u64 }.check(&pools);
            // More rows than a matrix has.
            let rows = 17 + 8 * i;
            Case { encoding, rows, outs: 18, k: 512, codes, seed: rows as u64 }.check(&pools);
        }
    }
}

/// More tiles than pass by rows at once, a rest of them, and a last one that is not full; by as many kernels as there are for few rows.
#[test]
fn every_encoding_with_tiles_by_turns() {
    let pools = [Pool::new(1), Pool::new(3)];
    for encoding in encodings() {
        for rows in [1, 5, 12, 20] {
            Case { encoding, rows, outs: 300, k: 512, codes: Codes::Random, seed: rows as u64 }.check(&pools);
        }
    }
}

#[test]
fn every_shape() {
    let pools = [Pool::new(1), Pool::new(3)];
    let shape = (prop_oneof![1..=18usize, 19..=70usize], 1..=50usize, 1..=40usize);
    let of = (prop::sample::select(encodings()), prop::sample::select(CODES.to_vec()), any::<u64>());
    let case = (shape, of).prop_map(|((rows, outs, blocks), (encoding, codes, seed))| {
        let k = (encoding.block() * blocks).min(1280 / encoding.block() * encoding.block());
        Case { encoding, rows, outs, k, codes, seed }
    });
    cases(64, &case, |case| case.check(&pools));
}

#[test]
fn several_products_of_one_input_are_each_as_alone() {
    let k = 512;
    let weights: Vec<Packed> = [800, 16, 5, 100]
        .into_iter()
        .zip([GgmlType::Q4K, GgmlType::Q6K, GgmlType::Q8_0, GgmlType::Q4K].map(Encoding::Ggml))
        .map(|(outs, encoding)| Stored::new(encoding, outs, k, Codes::Random, outs as u64).packed(16))
        .collect();
    for rows in [1, 3, 12, 20, 150, 600] {
        let x = activations(rows, k, 3);
        for kernels in tables() {
            let pool = Pool::new(3);
            let mut outs: Vec<Vec<f32>> = weights.iter().map(|w| vec![f32::NAN; rows * w.outs()]).collect();
            let products = weights.iter().zip(&mut outs);
            let mut products: Vec<Product<'_>> = products.map(|(weight, out)| Product { weight, out }).collect();
            matmul(kernels, &pool, &Activations::quantize(kernels, &pool, &x, k), &mut products);
            for (weight, out) in weights.iter().zip(&outs) {
                assert!(
                    bits(out) == bits(&run(tables()[0], &Pool::new(1), &x, k, weight)),
                    "{rows} rows on {}",
                    kernels.isa()
                );
            }
        }
    }
}

#[test]
fn swiglu_of_two_products_is_what_its_parts_give() {
    let k = 512;
    // 400: a claim of six tiles ends in the next 256 columns.
    let all = [(800, GgmlType::Q4K), (400, GgmlType::Q6K), (5, GgmlType::MxFp4)];
    let all = all.map(|(outs, encoding)| (outs, Encoding::Ggml(encoding)));
    for (outs, encoding) in all.into_iter().chain([(300, Encoding::NvFp4)]) {
        let [gate, up] = [1, 2].map(|seed| Stored::new(encoding, outs, k, Codes::Random, seed).packed(16));
        // The last are more than pass by at once.
        for rows in [1, 3, 12, 20, if outs == 400 { 600 } else { 150 }] {
            let x = activations(rows, k, 3);
            let (scalar, alone) = (tables()[0], &Pool::new(1));
            let mut expected = run(scalar, alone, &x, k, &gate);
            let rounded = swiglu(scalar, alone, &mut expected, &run(scalar, alone, &x, k, &up), outs, true).unwrap();
            for kernels in tables() {
                for threads in [1, 3] {
                    let pool = Pool::new(threads);
                    let x = Activations::quantize(kernels, &pool, &x, k);
                    let of = |round| {
                        let mut out = vec![f32::NAN; rows * outs];
                        let ours = packed::swiglu(kernels, &pool, &x, [&gate, &up], &mut out, round);
                        assert!(bits(&out) == bits(&expected), "{encoding}, {rows} rows on {}", kernels.isa());
                        ours
                    };
                    assert!(of(false).is_none());
                    let ours = of(true).unwrap();
                    assert_eq!([ours.rows(), ours.inputs()], [rows, outs]);
                    for number in 0..outs.div_ceil(256) {
                        let [ours, expected] = [&ours, &rounded].map(|all| format!("{:?}", all.of_rows(number)));
                        assert_eq!(ours, expected, "{encoding}, {rows} rows on {}", kernels.isa());
                    }
                }
            }
        }
    }
}

#[test]
fn activations_round_to_nearest_even_and_keep_their_sums() {
    let x: Vec<f32> = (0..300).map(|i| ((i * 37) % 255) as f32 / 2.0 - 63.5).collect();
    let both = rounded(&x, 300);
    for (i, &x) in x.iter().enumerate() {
        let group = &both.of_rows(i / 256)[0];
        let ours = group.codes[i % 256] as f32 * group.scale;
        assert!((ours - x).abs() <= group.scale * 0.5001, "{i}: {ours} against {x}");
    }
    for block in 0..2 {
        let group = &both.of_rows(block)[0];
        let sum = |at: usize, n: usize| group.codes[at..at + n].iter().map(|&c| c as i32).sum::<i32>();
        for size in [16, 32, 64, 128] {
            for i in 0..256 / size {
                assert_eq!(
                    group.sums[sums_at(size) + i],
                    sum(size * i, size) as f32,
                    "{size} inputs from group {i} on"
                );
            }
        }
        assert_eq!(group.sums16.map(i32::from), std::array::from_fn(|i| sum(16 * i, 16)));
        assert_eq!(group.sums32.map(i32::from), std::array::from_fn(|i| sum(32 * i, 32)));
        for (i, centre) in group.centres.iter().enumerate() {
            let fours = [0, 4, 8, 12].map(|at| sum(16 * i + at, 4));
            assert_eq!(*centre, [-32 * (fours[0] + fours[2]), -32 * (fours[1] + fours[3])]);
        }
    }
    // Half-way values go to the even code, in both directions.
    let mut x = vec![0.0; 256];
    x[..6].copy_from_slice(&[127.0, 0.5, 1.5, -0.5, -1.5, 2.5]);
    assert_eq!(rounded(&x, 256).of_rows(0)[0].codes[..6], [127, 0, 2, 0, -2, 2]);
    for kernels in tables() {
        let round = |x: &[f32]| Activations::quantize(kernels, &Pool::new(1), x, x.len());
        assert!(round(&[1.0, f32::NAN]).of_rows(0)[0].scale.is_nan());
        assert!(round(&[1.0, f32::INFINITY]).of_rows(0)[0].scale.is_nan());
        assert_eq!(round(&[0.0; 5]).of_rows(0)[0].scale, 0.0);
        // Too small for the reciprocal of the scale to be finite.
        assert!(round(&[1e-42, 0.0, -1e-42]).of_rows(0)[0].scale.is_finite());
    }
}

/// The same codes, scale and sums on every instruction set, of rows that end in unreadable pages.
#[test]
fn activations_round_to_the_same_bits_everywhere() {
    let pools = [Pool::new(1), Pool::new(3)];
    let case = (prop::sample::select(vec![1usize, 2, 5, 70]), 1..=600usize, any::<u64>());
    cases(64, &case, |&(rows, k, seed)| {
        let x = activations(rows, k, seed);
        let oracle = rounded(&x, k);
        check_rounding(&x, k, &oracle);
        for kernels in tables() {
            for (end, pool) in ENDS.into_iter().zip(&pools) {
                let ours = Activations::quantize(kernels, pool, &Guarded::new(&x, end), k);
                for number in 0..k.div_ceil(256) {
                    for (ours, oracle) in ours.of_rows(number).iter().zip(oracle.of_rows(number)) {
                        assert_eq!(format!("{ours:?}"), format!("{oracle:?}"), "{} {rows}x{k}", kernels.isa());
                    }
                }
            }
        }
    });
}

/// Codes and scales as the rule has them, restated.
fn check_rounding(x: &[f32], k: usize, ours: &Activations) {
    for (row, x) in x.chunks_exact(k).enumerate() {
        for (number, x) in x.chunks(256).enumerate() {
            let group = &ours.of_rows(number)[row];
            let max = x.iter().fold(0f32, |max, x| max.max(x.abs()));
            assert_eq!(group.scale.to_bits(), (max / 127.0).to_bits(), "row {row}, group {number}");
            for (i, &code) in group.codes.iter().enumerate() {
                let x = x.get(i).filter(|_| max > 0.0).map_or(0.0, |x| x * (127.0 / max));
                assert_eq!(f32::from(code), x.round_ties_even(), "row {row}, group {number}, input {i}");
            }
        }
    }
}
