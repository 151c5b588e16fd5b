//! Products of packed quantized weights with 8-bit activations.

use crate::support::{Random, bits, tables};
use glimmer_encoding::{Encoding, FloatType, GgmlType, Parts, WeightView};
use glimmer_kernels::dispatch::Kernels;
use glimmer_kernels::packed::activations::sums_at;
use glimmer_kernels::packed::{Activations, Packed, Product, matmul};
use glimmer_kernels::pool::Pool;
use half::{bf16, f16};

const ENCODINGS: &[Encoding] = &[
    Encoding::Ggml(GgmlType::Q4K),
    Encoding::Ggml(GgmlType::Q5K),
    Encoding::Ggml(GgmlType::Q6K),
    Encoding::Ggml(GgmlType::Q4_0),
    Encoding::Ggml(GgmlType::Q8_0),
    Encoding::MxFp4,
    Encoding::NvFp4,
    Encoding::Affine { bits: 2, group: 64, scale: FloatType::BF16 },
    Encoding::Affine { bits: 3, group: 128, scale: FloatType::F16 },
    Encoding::Affine { bits: 4, group: 32, scale: FloatType::F16 },
    Encoding::Affine { bits: 4, group: 64, scale: FloatType::BF16 },
    Encoding::Affine { bits: 4, group: 128, scale: FloatType::BF16 },
    Encoding::Affine { bits: 5, group: 64, scale: FloatType::F16 },
    Encoding::Affine { bits: 6, group: 32, scale: FloatType::BF16 },
    Encoding::Affine { bits: 8, group: 64, scale: FloatType::F16 },
];

/// A weight of random bits with moderate scales.
struct Stored {
    encoding: Encoding,
    shape: [usize; 2],
    codes: Vec<u8>,
    scales: Vec<u8>,
    biases: Vec<u8>,
}

/// How the codes are chosen.
#[derive(Clone, Copy, Debug)]
enum Codes {
    Random,
    Ones,
    Zeros,
}

impl Stored {
    fn new(encoding: Encoding, outs: usize, k: usize, codes: Codes, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let sizes = encoding.tensor_sizes(&[outs, k]).unwrap();
        let mut bytes: Vec<u8> = (0..sizes.codes)
            .map(|_| match codes {
                Codes::Random => random.next() as u8,
                Codes::Ones => 0xff,
                Codes::Zeros => 0,
            })
            .collect();
        let small = |random: &mut Random| f16::from_f32(0.01 * random.value()).to_le_bytes();
        match encoding {
            Encoding::Ggml(kind) => {
                let at: &[usize] = match kind {
                    GgmlType::Q4_0 | GgmlType::Q8_0 => &[0],
                    GgmlType::Q4K | GgmlType::Q5K => &[0, 2],
                    GgmlType::Q6K => &[208],
                };
                for block in bytes.chunks_exact_mut(kind.block_bytes()) {
                    for &at in at {
                        block[at..at + 2].copy_from_slice(&small(&mut random));
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
        let mut packed = Packed::zeros(self.encoding, outs, k).unwrap();
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

fn run(kernels: &Kernels, threads: usize, x: &[f32], k: usize, weight: &Packed) -> Vec<f32> {
    let pool = Pool::new(threads);
    let activations = Activations::quantize(kernels, &pool, x, k);
    let mut out = vec![f32::NAN; x.len() / k * weight.outs()];
    matmul(kernels, &pool, &activations, &mut [Product { weight, out: &mut out }]);
    out
}

/// Activations with all extremes: zeros, one spike, equal magnitudes.
fn activations(rows: usize, k: usize, seed: u64) -> Vec<f32> {
    let mut random = Random::new(seed);
    let mut x = random.values(rows * k);
    for (row, x) in x.chunks_exact_mut(k).enumerate() {
        match row % 4 {
            1 => x.iter_mut().for_each(|x| *x = x.signum()),
            2 => x[..k.min(40)].fill(0.0),
            3 => x[k - 1] = 1e4,
            _ => {}
        }
    }
    x
}

#[test]
fn products_are_right_and_the_same_everywhere() {
    for &encoding in ENCODINGS {
        let block = encoding.block();
        for (rows, outs, k) in
            [(1, 16, 256), (1, 5, 512), (3, 33, 256), (4, 16, 768), (5, 40, 512), (9, 17, 1024), (17, 31, 256)]
        {
            // Encodings whose groups are shorter have a last block that is not full.
            let k = if block < 256 { k + block } else { k };
            for codes in [Codes::Random, Codes::Ones, Codes::Zeros] {
                let stored = Stored::new(encoding, outs, k, codes, (rows * outs + k) as u64);
                let x = activations(rows, k, 7);
                let packed = stored.packed(16 * (1 + rows % 2));
                let scalar = run(tables()[0], 1, &x, k, &packed);

                // What the rule says: codes of activations times decoded weights.
                let weight: Vec<f64> = stored.view().to_f32().iter().map(|&w| w as f64).collect();
                let rounded = rounded(&x, k);
                for (i, &ours) in scalar.iter().enumerate() {
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
                    assert!(
                        (ours as f64 - exact).abs() <= bound,
                        "{encoding} {codes:?} {rows}x{outs}x{k} at {i}: {ours} against {exact}"
                    );
                }
                for kernels in tables() {
                    for threads in [1, 3] {
                        let out = run(kernels, threads, &x, k, &packed);
                        assert!(
                            bits(&out) == bits(&scalar),
                            "{encoding} {codes:?} {} {rows}x{outs}x{k}",
                            kernels.isa()
                        );
                    }
                    for row in 0..rows {
                        let alone = run(kernels, 1, &x[row * k..(row + 1) * k], k, &packed);
                        let expected = &scalar[row * outs..(row + 1) * outs];
                        assert!(bits(&alone) == bits(expected), "{encoding} {} row {row} alone", kernels.isa());
                    }
                }
            }
        }
    }
}

#[test]
fn several_products_of_one_input_are_each_as_alone() {
    let k = 512;
    let weights: Vec<Packed> = [40, 16, 5, 100]
        .into_iter()
        .zip([0, 2, 6, 0])
        .map(|(outs, i)| Stored::new(ENCODINGS[i], outs, k, Codes::Random, outs as u64).packed(16))
        .collect();
    for rows in [1, 3, 150] {
        let x = activations(rows, k, 3);
        for kernels in tables() {
            let pool = Pool::new(3);
            let mut outs: Vec<Vec<f32>> = weights.iter().map(|w| vec![f32::NAN; rows * w.outs()]).collect();
            let products = weights.iter().zip(&mut outs);
            let mut products: Vec<Product<'_>> = products.map(|(weight, out)| Product { weight, out }).collect();
            matmul(kernels, &pool, &Activations::quantize(kernels, &pool, &x, k), &mut products);
            for (weight, out) in weights.iter().zip(&outs) {
                assert!(bits(out) == bits(&run(tables()[0], 1, &x, k, weight)), "{rows} rows on {}", kernels.isa());
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
        for i in 0..8 {
            assert_eq!(group.sums32[i] as i32, sum(32 * i, 32));
        }
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
        // The same codes, scale and sums on every instruction set.
        let x = activations(3, 777, 5);
        let (ours, oracle) = (Activations::quantize(kernels, &Pool::new(2), &x, 777), rounded(&x, 777));
        for number in 0..4 {
            for (ours, oracle) in ours.of_rows(number).iter().zip(oracle.of_rows(number)) {
                assert_eq!(format!("{ours:?}"), format!("{oracle:?}"), "{}", kernels.isa());
            }
        }
    }
}
