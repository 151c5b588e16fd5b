//! [`Lanes`] over an array of sixteen f32.

use crate::isa::Scalar;
use crate::lanes::{BF16, Element, F16, LANES, Lanes};
use std::array::from_fn;

type V = [f32; LANES];

impl Lanes for Scalar {
    type V = V;
    const ACCUMULATORS: usize = 4;

    #[inline(always)]
    fn splat(self, x: f32) -> V {
        [x; LANES]
    }
    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> V {
        *from
    }
    #[inline(always)]
    fn load_bf16(self, from: &[u16; LANES]) -> V {
        from.map(BF16::widen)
    }
    #[inline(always)]
    fn load_bf16_pairs(self, from: &[u16; 2 * LANES]) -> [V; 2] {
        from_fn(|which| from_fn(|i| BF16::widen(from[2 * i + which])))
    }
    #[inline(always)]
    fn load_f16(self, from: &[u16; LANES]) -> V {
        from.map(F16::widen)
    }
    #[inline(always)]
    fn load_i8(self, from: &[i8; LANES]) -> V {
        from.map(f32::from)
    }
    #[inline(always)]
    fn store(self, v: V, to: &mut [f32; LANES]) {
        *to = v;
    }
    #[inline(always)]
    fn add(self, a: V, b: V) -> V {
        from_fn(|i| a[i] + b[i])
    }
    #[inline(always)]
    fn sub(self, a: V, b: V) -> V {
        from_fn(|i| a[i] - b[i])
    }
    #[inline(always)]
    fn mul(self, a: V, b: V) -> V {
        from_fn(|i| a[i] * b[i])
    }
    #[inline(always)]
    fn div(self, a: V, b: V) -> V {
        from_fn(|i| a[i] / b[i])
    }
    #[inline(always)]
    fn fma(self, a: V, b: V, c: V) -> V {
        from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    fn max(self, a: V, b: V) -> V {
        from_fn(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn min(self, a: V, b: V) -> V {
        from_fn(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn select_lt(self, a: V, b: V, x: V, y: V) -> V {
        from_fn(|i| if a[i] < b[i] { x[i] } else { y[i] })
    }
    #[inline(always)]
    fn abs(self, a: V) -> V {
        a.map(f32::abs)
    }
    #[inline(always)]
    fn round(self, a: V) -> V {
        a.map(f32::round_ties_even)
    }
    #[inline(always)]
    fn exp2_int(self, n: V) -> V {
        n.map(|n| f32::from_bits(((n as i32 + 127) as u32) << 23))
    }
    #[inline(always)]
    fn sum(self, v: V) -> f32 {
        let eight: [f32; 8] = from_fn(|i| v[i] + v[i + 8]);
        let four: [f32; 4] = from_fn(|i| eight[i] + eight[i + 4]);
        (four[0] + four[2]) + (four[1] + four[3])
    }
    #[inline(always)]
    fn max_lane(self, v: V) -> f32 {
        let larger = |a: f32, b: f32| if a > b { a } else { b };
        let eight: [f32; 8] = from_fn(|i| larger(v[i], v[i + 8]));
        let four: [f32; 4] = from_fn(|i| larger(eight[i], eight[i + 4]));
        larger(larger(four[0], four[2]), larger(four[1], four[3]))
    }
}
