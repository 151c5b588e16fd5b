//! What this machine can do at most: bytes it reads from memory, products it makes of integers and of floats.
//!
//! These are what the other kernels are held against, so each is measured with the same threads and instruction set: memory by
//! the widest loads into several sums, arithmetic by independent chains of the instruction that products are made of.

use crate::dispatch::Kernels;
use crate::lanes::{LANES, Lanes};
use crate::memory;
use crate::pool::{Pool, Shared};
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Bytes of a buffer that a thread reads at once: a huge page, and long enough for prefetching to get going.
const STRETCH: usize = 2 << 20;
/// Products of one tile of arithmetic: about a millisecond where vectors are wide.
const PRODUCTS: u64 = 1 << 28;
/// Tiles for each thread, so that a thread that is held up delays little.
const TILES: usize = 8;

/// The two measurements that an instruction set writes itself. A value of the type is the proof that the machine has it.
pub trait Probe: Copy + Send + Sync + 'static {
    /// Integer products of one round of [`multiply`](Self::multiply).
    const PRODUCTS: u64;

    /// Reads every byte by the widest loads and adds up what it read, as 64-bit words.
    fn read(self, words: &[[u64; 64]]) -> u64;
    /// `rounds` rounds of integer dot products on independent chains; something of what came out.
    fn multiply(self, rounds: u64) -> u64;
}

/// A buffer to read from: much larger than a cache, and in memory that was written.
pub struct Buffer(memory::Buffer<u64>);

impl Buffer {
    /// About `bytes` bytes, or `None` where the system has no such memory.
    pub fn new(pool: &Pool, bytes: usize) -> Option<Self> {
        let stretch = STRETCH / 8;
        let mut words = memory::Buffer::<u64>::zeros(bytes.div_ceil(STRETCH) * stretch)?;
        let tiles = words.len() / stretch;
        let shared = Shared::new(&mut words);
        pool.run(tiles, &|tile| {
            // SAFETY: tiles are disjoint, and each is given to one thread once.
            unsafe { shared.slice(tile * stretch..(tile + 1) * stretch) }.fill(1);
        });
        Some(Self(words))
    }

    /// Its size in bytes.
    pub fn bytes(&self) -> usize {
        8 * self.0.len()
    }
}

/// What one measurement of all limits gave.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// Bytes read from memory, per second.
    pub bytes: f64,
    /// Products of 8-bit integers, per second, by the widest instruction on vector registers.
    pub integers: f64,
    /// The same by one on registers that are matrices, where kernels for many rows use one.
    pub matrices: Option<f64>,
    /// Products of f32, per second.
    pub floats: f64,
}

impl Limits {
    /// Measures once, with all threads: some tens of milliseconds.
    pub fn measure(kernels: &Kernels, pool: &Pool, buffer: &Buffer) -> Self {
        Self {
            bytes: read_bandwidth(kernels, pool, buffer),
            integers: integer_peak(kernels, pool),
            matrices: matrix_peak(kernels, pool),
            floats: float_peak(kernels, pool),
        }
    }
}

/// Bytes per second of one pass over the buffer with all threads.
pub fn read_bandwidth(kernels: &Kernels, pool: &Pool, buffer: &Buffer) -> f64 {
    let stretches: Vec<&[u64]> = buffer.0.chunks(STRETCH / 8).collect();
    let total = AtomicU64::new(0);
    let started = Instant::now();
    pool.run(stretches.len(), &|tile| {
        let mut sum = 0;
        kernels.read_words(stretches[tile].as_chunks().0, &mut sum);
        total.fetch_add(sum, Ordering::Relaxed);
    });
    let elapsed = started.elapsed();
    assert_eq!(total.into_inner(), buffer.0.len() as u64, "every word was read once");
    buffer.bytes() as f64 / elapsed.as_secs_f64()
}

/// Products of 8-bit integers per second, with all threads.
pub fn integer_peak(kernels: &Kernels, pool: &Pool) -> f64 {
    products_per_second(pool, &|products| kernels.multiply_integers(products))
}

/// Products of 8-bit integers per second by matrices, with all threads; `None` where kernels use none.
pub fn matrix_peak(kernels: &Kernels, pool: &Pool) -> Option<f64> {
    let mut once = 0;
    kernels.multiply_matrices(&mut once);
    (once > 0).then(|| products_per_second(pool, &|products| kernels.multiply_matrices(products)))
}

/// Products of f32 per second, with all threads.
pub fn float_peak(kernels: &Kernels, pool: &Pool) -> f64 {
    products_per_second(pool, &|products| kernels.multiply_floats(products))
}

fn products_per_second(pool: &Pool, multiply: &(dyn Fn(&mut u64) + Sync)) -> f64 {
    let done = AtomicU64::new(0);
    let started = Instant::now();
    pool.run(TILES * pool.threads(), &|_| {
        let mut products = 0;
        multiply(&mut products);
        done.fetch_add(products, Ordering::Relaxed);
    });
    done.into_inner() as f64 / started.elapsed().as_secs_f64()
}

#[inline(always)]
pub(crate) fn read<P: Probe>(probe: P, words: &[[u64; 64]], sum: &mut u64) {
    *sum = probe.read(words);
}

#[inline(always)]
pub(crate) fn multiply_integers<P: Probe>(probe: P, products: &mut u64) {
    let rounds = PRODUCTS / P::PRODUCTS;
    black_box(probe.multiply(rounds));
    *products = rounds * P::PRODUCTS;
}

/// For instruction sets without registers that are matrices.
#[inline(always)]
pub(crate) fn no_matrices<P>(_: P, products: &mut u64) {
    *products = 0;
}

/// Products of as many rounds as take about a millisecond, each of `each` products.
#[inline(always)]
pub(crate) fn multiply_matrices(each: u64, multiply: impl FnOnce(u64), products: &mut u64) {
    let rounds = 8 * PRODUCTS / each;
    multiply(rounds);
    *products = rounds * each;
}

#[inline(always)]
pub(crate) fn multiply_floats<L: Lanes>(lanes: L, products: &mut u64) {
    *products = match L::ACCUMULATORS {
        0..12 => chains::<L, 5>(lanes),
        _ => chains::<L, 12>(lanes),
    };
}

/// Float products on N chains that do not wait for each other, and how many they were.
#[inline(always)]
fn chains<L: Lanes, const N: usize>(lanes: L) -> u64 {
    // Fewer, as a float product moves four times the bytes.
    let rounds = PRODUCTS / 4 / (N * LANES) as u64;
    let (x, y) = (lanes.load(&black_box([0.5; LANES])), lanes.load(&black_box([1e-3; LANES])));
    let starts: [[f32; LANES]; N] = black_box(std::array::from_fn(|i| [i as f32; LANES]));
    let mut sums = starts.map(|start| lanes.load(&start));
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = lanes.fma(*sum, x, y);
        }
    }
    for sum in sums {
        let mut out = [0.0; LANES];
        lanes.store(sum, &mut out);
        black_box(out);
    }
    rounds * (N * LANES) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;

    #[test]
    fn every_instruction_set_reads_everything_and_multiplies() {
        let pool = Pool::new(2);
        let buffer = Buffer::new(&pool, 5 << 20).unwrap();
        assert_eq!(buffer.bytes(), 6 << 20);
        for isa in Isa::available() {
            let kernels = Kernels::of(isa).unwrap();
            // It asserts that every word was read.
            assert!(read_bandwidth(kernels, &pool, &buffer) > 1e6, "{isa}");
            let (integers, floats) = (integer_peak(kernels, &pool), float_peak(kernels, &pool));
            assert!(integers > 1e6 && floats > 1e6, "{isa}: {integers} {floats}");
            let matrices = matrix_peak(kernels, &pool);
            assert_eq!(matrices.is_some_and(|matrices| matrices > 1e6), isa == Isa::Amx, "{isa}: {matrices:?}");
        }
    }
}
