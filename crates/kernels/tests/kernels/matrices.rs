//! Products of matrices of bytes: the verbs of each instruction set that has them against the scalar ones, and those against what they say.

use crate::packed::activations;
use crate::support::Random;
use glimmer_kernels::dispatch::Kernels;
use glimmer_kernels::isa::{self, Isa};
use glimmer_kernels::packed::Activations;
use glimmer_kernels::packed::matrices::{LINES, Lines, MATRIX_ROWS, Matrices, Matrix, Sums};
use glimmer_kernels::packed::tile::{LINE, TILE_ROWS, Tile};
use glimmer_kernels::pool::Pool;

/// Random bytes up to `top`, or the largest or smallest only.
fn bytes(random: &mut Random, top: u8) -> [u8; LINE] {
    let which = random.next() % 4;
    std::array::from_fn(|_| match which {
        0 => top,
        1 => 0,
        _ => (random.next() % (u64::from(top) + 1)) as u8,
    })
}

/// Lines as bytes, of everything that is done with vectors.
fn vectors<M: Matrices>(m: M, seed: u64) -> Vec<[u8; LINE]> {
    let (t, mut random) = (m.tile(), Random::new(seed));
    let mut out = Vec::new();
    let mut put = |line| {
        let mut bytes = [0; LINE];
        m.put(line, &mut bytes);
        out.push(bytes);
    };
    let codes: [_; 8] = std::array::from_fn(|_| t.line(&bytes(&mut random, 0xff), 0));
    m.lines(codes).into_iter().for_each(&mut put);
    let (five, six) = (t.line(&bytes(&mut random, 31), 0), t.line(&bytes(&mut random, 63), 0));
    let (small, signed) = (t.line(&bytes(&mut random, 63), 0), t.line(&bytes(&mut random, 0xff), 0));
    m.times(five, t.factor::<1>(small)).into_iter().for_each(&mut put);
    m.times_centred(six, t.signed_factor::<2>(signed)).into_iter().for_each(&mut put);
    out
}

/// Sums of integers as floats, which are exact below 2^24.
fn sums<M: Matrices>(m: M, seed: u64, rows: usize) -> (Vec<Sums>, Vec<[f32; TILE_ROWS]>) {
    let mut random = Random::new(seed);
    let x = Activations::quantize(Kernels::of(Isa::Scalar).unwrap(), &Pool::new(1), &activations(rows, 256, seed), 256);
    let x = x.of_rows(0);
    let mut area = || Lines(std::array::from_fn(|_| bytes(&mut random, 0xff)));
    let (low, high) = (area(), area());
    // What no row has is left alone.
    let mut both = [[Sums([[i32::MIN; TILE_ROWS]; MATRIX_ROWS]); 2]; 2];
    let mut groups = [Sums([[i32::MIN; TILE_ROWS]; MATRIX_ROWS]); 30];
    macro_rules! quarters {
        ($($quarter:literal)*) => {{
            let open = m.open::<64>(rows);
            $(open.multiply::<false, $quarter>(x, &low, &high, &mut both[0]);)*
            $(open.multiply::<true, $quarter>(x, &low, &high, &mut both[1]);)*
            $(open.multiply_groups::<128, $quarter>(x, &low, &mut groups[..2]);)*
            $(open.multiply_groups::<64, $quarter>(x, &low, &mut groups[2..6]);)*
            let open = m.open::<32>(rows);
            $(open.multiply_groups::<32, $quarter>(x, &low, &mut groups[6..14]);)*
            let open = m.open::<16>(rows);
            $(open.multiply_groups::<16, $quarter>(x, &low, &mut groups[14..]);)*
        }};
    }
    quarters!(0 1 2 3);
    let mut joined = [[0.0; TILE_ROWS]; 3];
    let (a, b) = (&both[1][0].0[0], &both[1][1].0[0]);
    for (out, int) in joined.iter_mut().zip([m.int(a), m.joined::<3>(a, b), m.joined::<8>(a, b)]) {
        m.tile().store(m.tile().to_float(int), out, 0);
    }
    // What they say, of the plainest.
    let products = |lines: &Lines, row: usize, out: usize, inputs: std::ops::Range<usize>, of: fn(u8) -> i32| -> i32 {
        inputs.map(|k| of(lines.0[k / 4][4 * out + k % 4]) * i32::from(x[row].codes[k])).sum()
    };
    let dot = |lines: &Lines, row: usize, out: usize, inputs| products(lines, row, out, inputs, i32::from);
    assert_eq!(LINES, 64);
    for row in 0..rows {
        for out in 0..TILE_ROWS {
            assert_eq!(both[0][0].0[row][out], dot(&low, row, out, 0..256));
            assert_eq!(both[0][1].0[row][out], dot(&high, row, out, 0..256));
            assert_eq!(both[1][1].0[row][out], products(&high, row, out, 0..256, |w| i32::from(w as i8)));
            assert_eq!(groups[14].0[row][out], dot(&low, row, out, 0..16));
            assert_eq!(groups[13].0[row][out], dot(&low, row, out, 224..256));
            assert_eq!(groups[1].0[row][out], dot(&low, row, out, 128..256));
            assert_eq!(both[1][0], both[0][0]);
        }
    }
    (both.into_iter().flatten().chain(groups).collect(), joined.into())
}

#[test]
fn verbs_give_the_same_integers() {
    for seed in 0..60 {
        let rows = 1 + seed as usize % MATRIX_ROWS;
        let (plain, products) = (vectors(isa::Scalar, seed), sums(isa::Scalar, seed, rows));
        #[cfg(target_arch = "x86_64")]
        if let Some(amx) = isa::Amx::detect() {
            assert_eq!(vectors(amx, seed), plain, "seed {seed}");
            assert_eq!(sums(amx, seed, rows), products, "seed {seed}");
        }
        let _ = (plain, products);
    }
}

#[test]
fn a_code_times_its_scale_is_two_bytes() {
    let line = |byte: u8| isa::Scalar.line(&[byte; LINE], 0);
    for code in 0..64u8 {
        for scale in 0..=255u8 {
            if code < 32 && scale < 64 {
                let [low, high] = isa::Scalar.times(line(code), isa::Scalar.factor::<0>(line(scale)));
                assert_eq!(i32::from(low[5]) + 8 * i32::from(high[5]), i32::from(code) * i32::from(scale));
            }
            let [low, high] = isa::Scalar.times_centred(line(code), isa::Scalar.signed_factor::<0>(line(scale)));
            let product = (i32::from(code) - 32) * i32::from(scale as i8);
            assert_eq!(i32::from(low[9]) + 256 * i32::from(high[9] as i8), product);
        }
    }
}
