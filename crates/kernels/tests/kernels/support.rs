//! Memory with unreadable neighbours, random numbers, and the tables of this machine.

use glimmer_kernels::dispatch::Kernels;
use glimmer_kernels::isa::Isa;
use glimmer_kernels::lanes::Element;
use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::fmt::Debug;
use std::ops::{Deref, DerefMut};

/// Which end of the slice touches an unreadable page.
#[derive(Clone, Copy, Debug)]
pub enum Flush {
    Start,
    End,
}

pub const ENDS: [Flush; 2] = [Flush::Start, Flush::End];

/// A slice between unreadable pages: reading or writing past the chosen end is a crash.
pub struct Guarded<T> {
    map: *mut libc::c_void,
    map_len: usize,
    start: *mut T,
    len: usize,
}

impl<T: Copy> Guarded<T> {
    pub fn new(values: &[T], flush: Flush) -> Self {
        const PAGE: usize = 16384; // at least the page of every system that tests run on
        let bytes = size_of_val(values);
        let inner = bytes.next_multiple_of(PAGE).max(PAGE);
        let map_len = inner + 2 * PAGE;
        // SAFETY: a fresh anonymous mapping; the protected ranges lie inside it, and so does `start..start + len`.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let map = libc::mmap(std::ptr::null_mut(), map_len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0);
            assert_ne!(map, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(map, PAGE, libc::PROT_NONE), 0);
            assert_eq!(libc::mprotect(map.byte_add(PAGE + inner), PAGE, libc::PROT_NONE), 0);
            let offset = match flush {
                Flush::Start => PAGE,
                Flush::End => PAGE + inner - bytes,
            };
            let start = map.byte_add(offset).cast::<T>();
            start.copy_from_nonoverlapping(values.as_ptr(), values.len());
            Self { map, map_len, start, len: values.len() }
        }
    }
}

impl<T> Deref for Guarded<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        // SAFETY: initialised in `new`, inside the mapping.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

impl<T> DerefMut for Guarded<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: initialised in `new`, inside the mapping, borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}

impl<T> Drop for Guarded<T> {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, and nothing borrows from it any more.
        unsafe { libc::munmap(self.map, self.map_len) };
    }
}

/// The tables of this machine, scalar first.
pub fn tables() -> Vec<&'static Kernels> {
    Isa::available().into_iter().map(|isa| Kernels::of(isa).unwrap()).collect()
}

/// Reproducible numbers around zero, of varying size.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.next() >> 33) as usize % n
    }

    pub fn value(&mut self) -> f32 {
        let unit = (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0;
        unit * [0.1, 1.0, 4.0][self.below(3)]
    }

    pub fn values(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.value()).collect()
    }
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

pub fn narrow<E: Element>(values: &[f32]) -> Vec<E::Bits> {
    values.iter().map(|&x| E::narrow(x)).collect()
}

/// Checks `count` values of a strategy, always the same ones, and says which is the smallest that fails.
pub fn cases<S: Strategy>(count: u32, strategy: &S, check: impl Fn(&S::Value))
where
    S::Value: Debug,
{
    let config = Config { cases: count, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]));
    let result = runner.run(strategy, |value| {
        check(&value);
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}
