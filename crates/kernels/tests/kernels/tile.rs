//! The verbs that packed kernels are written in: those of each instruction set against the scalar ones, with everything that they
//! read or write flush against unreadable pages.

use crate::support::{ENDS, Flush, Guarded, Random, bits};
use glimmer_kernels::isa;
use glimmer_kernels::packed::tile::{LINE, TILE_ROWS, Tile};
use half::{bf16, f16};

/// What verbs read. Each piece lies alone between unreadable pages.
struct Memory {
    lines: Vec<Guarded<u8>>,
    table: Guarded<u8>,
    x: Guarded<i8>,
    centre: Guarded<i32>,
    pair: Guarded<i16>,
    halves: Guarded<u8>,
    brains: Guarded<u8>,
    powers: Guarded<u8>,
    minifloats: Guarded<u8>,
    floats: Guarded<f32>,
}

impl Memory {
    /// Random bytes, or the largest and smallest that there are.
    fn new(seed: u64, end: Flush) -> Self {
        let mut random = Random::new(seed);
        let mut byte = |extreme: [u8; 2]| match seed % 3 {
            0 => random.next() as u8,
            n => extreme[n as usize - 1],
        };
        let lines = (0..8).map(|_| Guarded::new(&[0; LINE].map(|_| byte([0xff, 0])), end)).collect();
        let table = Guarded::new(&[0; 16].map(|_| byte([0x1f, 0]) & 0x1f), end);
        let x = [0; 32].map(|_| (byte([0x7f, 0x81]) as i8).max(-127));
        let sum = |at: usize| x[at..at + 4].iter().map(|&x| i32::from(x)).sum::<i32>();
        let centre = Guarded::new(&[-32 * (sum(0) + sum(8)), -32 * (sum(4) + sum(12))], end);
        let powers = Guarded::new(&[0; TILE_ROWS].map(|_| byte([0xfe, 0]).min(0xfe)), end);
        let minifloats = Guarded::new(&[0; TILE_ROWS].map(|_| byte([0xff, 0x7f])), end);
        let (floats, mut wide) = (random.values(TILE_ROWS), random.values(TILE_ROWS));
        wide[..4].copy_from_slice(&[6e4, -6e4, 1e-7, 0.0]);
        let halves: Vec<u8> = wide.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect();
        wide[..4].copy_from_slice(&[3e38, -3e38, 1e-40, -0.0]);
        let brains: Vec<u8> = wide.iter().flat_map(|&x| bf16::from_f32(x).to_le_bytes()).collect();
        Self {
            lines,
            table,
            x: Guarded::new(&x, end),
            centre,
            pair: Guarded::new(&[-32 * 127, 32 * 127], end),
            halves: Guarded::new(&halves, end),
            brains: Guarded::new(&brains, end),
            powers,
            minifloats,
            floats: Guarded::new(&floats, end),
        }
    }
}

fn array<T, const N: usize>(slice: &[T]) -> &[T; N] {
    slice.as_array().unwrap()
}

/// The results of every verb for one part of a tile.
fn results<T: Tile>(t: T, m: &Memory, part: usize) -> Vec<T::Float> {
    let lines: [T::Codes; 8] = std::array::from_fn(|i| t.line(array(&m.lines[i]), part));
    let [a, b, c, d, e, f, g, h] = lines;
    let (x, half): (&[i8; 32], &[i8; 16]) = (array(&m.x), array(&m.x[..16]));
    let nibbles = [t.low(a), t.high(a), t.low(b), t.high(b), t.low(c), t.high(c), t.low(d), t.high(d)];
    let two = [t.two::<0>(a), t.two::<1>(a), t.two::<2>(a), t.two::<3>(a)];
    let three = [
        t.with_one::<0, 2>(two[0], e),
        t.with_one::<1, 2>(two[1], e),
        t.with_one::<6, 2>(two[2], e),
        t.with_one::<7, 2>(two[3], e),
    ];
    let five = [
        t.with_one::<0, 4>(nibbles[0], e),
        t.with_one::<1, 4>(nibbles[1], e),
        t.with_one::<2, 4>(nibbles[2], e),
        t.with_one::<3, 4>(nibbles[3], e),
        t.with_one::<4, 4>(nibbles[4], e),
        t.with_one::<5, 4>(nibbles[5], e),
        t.with_one::<6, 4>(nibbles[6], e),
        t.with_one::<7, 4>(nibbles[7], e),
    ];
    let six = [
        t.with_two::<0>(nibbles[0], f),
        t.with_two::<1>(nibbles[1], f),
        t.with_two::<2>(nibbles[2], f),
        t.with_two::<3>(nibbles[3], f),
    ];
    let looked_up = [0, 1, 2, 3].map(|i| t.lookup(nibbles[i], array(&m.table)));
    let (factors, signed) = (t.six_low(g), t.six_split(h, g));
    let centred = |factor| t.scaled(t.dot16_centred(t.no_sums(), &six, half, array(&m.centre), factor));
    let plain = |codes: &[T::Codes; 4]| t.plain(t.dot16::<6>(t.no_sums(), codes, half));
    let mins = t.dot_pair::<2>(t.dot_pair::<0>(t.zero(), factors, array(&m.pair)), factors, array(&m.pair));
    let mut out: Vec<T::Float> = [
        t.scaled(t.dot32::<4>(t.no_sums(), &nibbles, x, t.factor::<0>(factors))),
        t.scaled(t.dot32::<4>(t.no_sums(), &nibbles, x, t.factor::<1>(factors))),
        t.scaled(t.dot32::<5>(t.no_sums(), &five, x, t.factor::<2>(signed))),
        t.scaled(t.dot32::<5>(t.no_sums(), &five, x, t.factor::<3>(signed))),
        centred(t.signed_factor::<0>(g)),
        centred(t.signed_factor::<1>(g)),
        centred(t.signed_factor::<2>(g)),
        centred(t.signed_factor::<3>(g)),
        plain(&two),
        plain(&three),
        plain(&six),
        plain(&looked_up),
        t.plain(t.dot16::<8>(t.no_sums(), &[a, b, c, d], half)),
        mins,
    ]
    .map(|sums| t.to_float(sums))
    .into();
    let (floats, halves) = (t.load(array(&m.floats), part), t.halves(array(&m.halves), part));
    let brains = t.brains(array(&m.brains), part);
    out.extend([floats, halves, brains, t.powers(array(&m.powers), part), t.minifloats(array(&m.minifloats), part)]);
    out.extend([t.fma(floats, halves, floats), t.fms(floats, halves, floats), t.mul(floats, t.splat(0.3))]);
    out
}

/// The same, row by row.
fn stored<T: Tile>(t: T, m: &Memory, end: Flush) -> Vec<u32> {
    let mut out: Vec<Guarded<f32>> = Vec::new();
    for part in 0..T::PARTS {
        for (i, result) in results(t, m, part).into_iter().enumerate() {
            if part == 0 {
                out.push(Guarded::new(&[f32::NAN; TILE_ROWS], end));
            }
            t.store(result, out[i].as_mut_array().unwrap(), part);
        }
    }
    out.iter().flat_map(|rows| bits(rows)).collect()
}

#[test]
fn verbs_give_the_same_bits_and_stay_where_they_belong() {
    for seed in 0..60 {
        for end in ENDS {
            let memory = Memory::new(seed, end);
            let scalar = stored(isa::Scalar, &memory, end);
            let check = |name: &str, found: Option<Vec<u32>>| {
                if let Some(found) = found {
                    let first = found.iter().zip(&scalar).position(|(a, b)| a != b).map(|at| at / TILE_ROWS);
                    assert!(first.is_none(), "{name}: result {first:?} with seed {seed}");
                }
            };
            #[cfg(target_arch = "x86_64")]
            {
                check("avx2", isa::Avx2::detect().map(|t| stored(t, &memory, end)));
                check("avx512", isa::Avx512::detect().map(|t| stored(t, &memory, end)));
            }
            #[cfg(target_arch = "aarch64")]
            check("neon", isa::Neon::<false>::detect().map(|t| stored(t, &memory, end)));
            #[cfg(target_arch = "aarch64")]
            check("i8mm", isa::Neon::<true>::detect().map(|t| stored(t, &memory, end)));
        }
    }
}
