//! [`Lanes`] over four 128-bit registers.

use crate::isa::Neon;
use crate::lanes::{LANES, Lanes};
use std::arch::aarch64::*;
use std::array::from_fn;

type V = [float32x4_t; 4];

// SAFETY of every block below: a `Neon` exists only where detection found NEON; the pointers come from references to
// arrays of sixteen elements.
impl<const MATRICES: bool> Lanes for Neon<MATRICES> {
    type V = V;
    const ACCUMULATORS: usize = 4;

    #[inline(always)]
    fn splat(self, x: f32) -> V {
        // SAFETY: see above.
        [unsafe { vdupq_n_f32(x) }; 4]
    }
    #[inline(always)]
    fn load(self, from: &[f32; LANES]) -> V {
        // SAFETY: see above; 16 f32 are readable.
        from_fn(|i| unsafe { vld1q_f32(from.as_ptr().add(4 * i)) })
    }
    #[inline(always)]
    fn load_bf16(self, from: &[u16; LANES]) -> V {
        // SAFETY: see above; 16 bf16 are readable.
        from_fn(|i| unsafe { vreinterpretq_f32_u32(vshll_n_u16::<16>(vld1_u16(from.as_ptr().add(4 * i)))) })
    }
    #[inline(always)]
    fn load_bf16_pairs(self, from: &[u16; 2 * LANES]) -> [V; 2] {
        // SAFETY: see above; 32 bf16 are readable.
        let pairs: [uint32x4_t; 4] = from_fn(|i| unsafe { vreinterpretq_u32_u16(vld1q_u16(from.as_ptr().add(8 * i))) });
        // SAFETY: see above.
        let first = from_fn(|i| unsafe { vreinterpretq_f32_u32(vshlq_n_u32::<16>(pairs[i])) });
        // SAFETY: see above.
        let second = from_fn(|i| unsafe { vreinterpretq_f32_u32(vandq_u32(pairs[i], vdupq_n_u32(!0xffff))) });
        [first, second]
    }
    #[inline(always)]
    fn load_f16(self, from: &[u16; LANES]) -> V {
        // SAFETY: see above; 16 f16 are readable.
        from_fn(|i| unsafe { vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from.as_ptr().add(4 * i)))) })
    }
    #[inline(always)]
    fn load_i8(self, from: &[i8; LANES]) -> V {
        // SAFETY: see above; 16 bytes are readable.
        unsafe {
            let all = vld1q_s8(from.as_ptr());
            let (low, high) = (vmovl_s8(vget_low_s8(all)), vmovl_high_s8(all));
            [
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))),
                vcvtq_f32_s32(vmovl_high_s16(low)),
                vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))),
                vcvtq_f32_s32(vmovl_high_s16(high)),
            ]
        }
    }
    #[inline(always)]
    fn prefetch(self, at: *const u8) {
        super::prefetch(at);
    }
    #[inline(always)]
    fn store(self, v: V, to: &mut [f32; LANES]) {
        for (i, part) in v.into_iter().enumerate() {
            // SAFETY: see above; 16 f32 are writable.
            unsafe { vst1q_f32(to.as_mut_ptr().add(4 * i), part) }
        }
    }
    #[inline(always)]
    fn add(self, a: V, b: V) -> V {
        // SAFETY: see above.
        from_fn(|i| unsafe { vaddq_f32(a[i], b[i]) })
    }
    #[inline(always)]
    fn sub(self, a: V, b: V) -> V {
        // SAFETY: see above.
        from_fn(|i| unsafe { vsubq_f32(a[i], b[i]) })
    }
    #[inline(always)]
    fn mul(self, a: V, b: V) -> V {
        // SAFETY: see above.
        from_fn(|i| unsafe { vmulq_f32(a[i], b[i]) })
    }
    #[inline(always)]
    fn div(self, a: V, b: V) -> V {
        // SAFETY: see above.
        from_fn(|i| unsafe { vdivq_f32(a[i], b[i]) })
    }
    #[inline(always)]
    fn fma(self, a: V, b: V, c: V) -> V {
        // SAFETY: see above.
        from_fn(|i| unsafe { vfmaq_f32(c[i], a[i], b[i]) })
    }
    #[inline(always)]
    fn max(self, a: V, b: V) -> V {
        // SAFETY: see above.
        from_fn(|i| unsafe { vbslq_f32(vcgtq_f32(a[i], b[i]), a[i], b[i]) })
    }
    #[inline(always)]
    fn min(self, a: V, b: V) -> V {
        // SAFETY: see above.
        from_fn(|i| unsafe { vbslq_f32(vcltq_f32(a[i], b[i]), a[i], b[i]) })
    }
    #[inline(always)]
    fn select_lt(self, a: V, b: V, x: V, y: V) -> V {
        // SAFETY: see above.
        from_fn(|i| unsafe { vbslq_f32(vcltq_f32(a[i], b[i]), x[i], y[i]) })
    }
    #[inline(always)]
    fn abs(self, a: V) -> V {
        // SAFETY: see above.
        from_fn(|i| unsafe { vabsq_f32(a[i]) })
    }
    #[inline(always)]
    fn round(self, a: V) -> V {
        // SAFETY: see above.
        from_fn(|i| unsafe { vrndnq_f32(a[i]) })
    }
    #[inline(always)]
    fn exp2_int(self, n: V) -> V {
        // SAFETY: see above.
        from_fn(|i| unsafe {
            let biased = vaddq_s32(vcvtnq_s32_f32(n[i]), vdupq_n_s32(127));
            vreinterpretq_f32_s32(vshlq_n_s32::<23>(biased))
        })
    }
    #[inline(always)]
    fn sum(self, v: V) -> f32 {
        // SAFETY: see above.
        unsafe {
            let four = vaddq_f32(vaddq_f32(v[0], v[2]), vaddq_f32(v[1], v[3]));
            let two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
            vget_lane_f32::<0>(two) + vget_lane_f32::<1>(two)
        }
    }
    #[inline(always)]
    fn max_lane(self, v: V) -> f32 {
        let [a, b, c, d] = v;
        let larger = |a: float32x4_t, b: float32x4_t| {
            // SAFETY: see above.
            unsafe { vbslq_f32(vcgtq_f32(a, b), a, b) }
        };
        let mut four = [0.0; 4];
        // SAFETY: see above; four f32 are writable.
        unsafe { vst1q_f32(four.as_mut_ptr(), larger(larger(a, c), larger(b, d))) };
        let larger = |a: f32, b: f32| if a > b { a } else { b };
        larger(larger(four[0], four[2]), larger(four[1], four[3]))
    }
}
