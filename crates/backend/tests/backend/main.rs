//! Verbs that join others, against those.

use glimmer_backend::{ActivationType, Backend, CpuBackend, CpuOptions, Isa};
use glimmer_encoding::{
    Encoding, FloatType, GgmlType, MemoryRows, RowOrder, RowSource, Scratch, WeightView, encode_rows,
};
use std::convert::Infallible;
use std::ops::Range;

/// Numbers around zero.
fn noise(len: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761) | 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as i32 as f32 / i32::MAX as f32
    };
    (0..len).map(next).collect()
}

/// A matrix in memory that may be taken over, or be used where it is.
struct Source {
    rows: MemoryRows,
    mapped: bool,
}

impl Source {
    fn new(encoding: Encoding, outs: usize, inputs: usize, mapped: bool) -> Self {
        let encoded = encode_rows(encoding, &noise(outs * inputs, 5), outs, inputs).unwrap();
        let parts = [encoded.codes.into(), encoded.scales.into(), encoded.biases.into()];
        let rows = MemoryRows::new(encoding, [outs, inputs], RowOrder::Ascending, parts, None).unwrap();
        Self { rows, mapped }
    }
}

impl RowSource for Source {
    type Error = Infallible;

    fn encoding(&self) -> Encoding {
        self.rows.encoding()
    }

    fn shape(&self) -> [usize; 2] {
        self.rows.shape()
    }

    fn read<'a>(&'a self, rows: Range<usize>, scratch: &'a mut Scratch) -> Result<WeightView<'a>, Infallible> {
        self.rows.read(rows, scratch)
    }

    fn mapped(&self) -> Option<MemoryRows> {
        self.mapped.then(|| self.rows.clone())
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

#[test]
fn joined_verbs_give_the_bits_of_those_they_join() {
    let q8 = Encoding::Ggml(GgmlType::Q8_0);
    // What is rounded, what is not, and both at once.
    let pairs = [
        [Encoding::Ggml(GgmlType::Q4K), q8],
        [Encoding::Dense(FloatType::BF16), q8],
        [Encoding::Dense(FloatType::F16); 2],
    ];
    for isa in Isa::available() {
        for activations in [ActivationType::Auto, ActivationType::F32] {
            for threads in [1, 2] {
                let options = CpuOptions { threads: Some(threads), isa: Some(isa), activations };
                let b = CpuBackend::new(options).unwrap();
                for (pair, mapped) in pairs.into_iter().flat_map(|pair| [(pair, false), (pair, true)]) {
                    check(&b, pair, mapped);
                }
            }
        }
    }
}

fn check(b: &CpuBackend, encodings: [Encoding; 2], mapped: bool) {
    const INPUTS: usize = 1280;
    let [first, second] =
        [0, 1].map(|i| b.load_weight(&Source::new(encodings[i], 19 + 17 * i, INPUTS, mapped)).unwrap());
    // Those of an MLP, whose first two may be stored alike or not.
    const INSIDE: usize = 288;
    let load = |encoding, outs, inputs| b.load_weight(&Source::new(encoding, outs, inputs, mapped)).unwrap();
    let [gate, up, other] = [0, 0, 1].map(|i| load(encodings[i], INSIDE, INPUTS));
    let down = load(encodings[1], 21, INSIDE);
    let norm = b.load_vector(noise(INPUTS, 9));
    for rows in [1, 2, 3, 7, 8, 13, 17] {
        let tensor = |seed| b.tensor(rows, INPUTS, noise(rows * INPUTS, seed));
        let (x, y) = (tensor(1), tensor(2));
        let same = |what: &str, ours: &_, plain: &_| {
            assert!(bits(&b.read(ours)) == bits(&b.read(plain)), "{what} {} {encodings:?} {rows} rows", b.isa());
        };
        for norm in [None, Some(&norm)] {
            let normed = b.rms_norm(&x, norm, 1e-5);
            let joined = b.norm_linears(&x, norm, 1e-5, [&first, &second]);
            let plain = b.linears(&normed, [&first, &second]);
            joined.iter().zip(&plain).for_each(|(joined, plain)| same("norm_linears", joined, plain));
            same("linear", &joined[1], &b.linear(&normed, &second));
            same("add_norm", &b.add_norm(y.clone(), x.clone(), norm, 1e-5), &b.add(y.clone(), &normed));
        }
        let plain = b.linear(&b.gate(x.clone(), &y), &first);
        same("gate_linear", &b.gate_linear(x.clone(), &y, &first), &plain);
        for [gate, up] in [[&gate, &up], [&gate, &other]].into_iter().filter(|_| [1, 3, 17].contains(&rows)) {
            let plain = b.linear(&b.swiglu(b.linear(&x, gate), &b.linear(&x, up)), &down);
            same("mlp", &b.mlp(&x, [gate, up, &down]), &plain);
            let normed = b.rms_norm(&x, Some(&norm), 1e-5);
            let plain = b.mlp(&normed, [gate, up, &down]);
            same("norm_mlp", &b.norm_mlp(&x, Some(&norm), 1e-5, [gate, up, &down]), &plain);
        }
    }
}

#[test]
fn a_tensor_that_was_rounded_is_rounded_anew_when_it_has_changed() {
    let b = CpuBackend::new(CpuOptions::default()).unwrap();
    let weight = b.load_weight(&Source::new(Encoding::Ggml(GgmlType::Q4K), 16, 256, false)).unwrap();
    let (x, y) = (b.tensor(3, 256, noise(3 * 256, 1)), b.tensor(3, 256, noise(3 * 256, 2)));
    let fresh = || b.tensor(3, 256, b.read(&x));
    b.linear(&x, &weight);
    for (used, fresh) in [
        (b.gate(x.clone(), &y), b.gate(fresh(), &y)),
        (b.swiglu(x.clone(), &y), b.swiglu(fresh(), &y)),
        (b.add(x.clone(), &y), b.add(fresh(), &y)),
        (b.add_norm(x.clone(), y.clone(), None, 1e-5), b.add_norm(fresh(), y.clone(), None, 1e-5)),
    ] {
        assert_eq!(bits(&b.read(&b.linear(&used, &weight))), bits(&b.read(&b.linear(&fresh, &weight))));
    }
}
