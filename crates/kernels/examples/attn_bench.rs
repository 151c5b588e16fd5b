use glimmer_kernels::attention::*;
use glimmer_kernels::dispatch::Kernels;
use glimmer_kernels::isa::Isa;

use glimmer_kernels::pool::Pool;
fn cpu() -> f64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    t.tv_sec as f64 + t.tv_nsec as f64 * 1e-9
}
#[target_feature(enable = "avx512f")]
fn peak512() -> f64 {
    use std::arch::x86_64::*;
    let (x, y) = (std::hint::black_box(_mm512_set1_ps(1.0)), std::hint::black_box(_mm512_set1_ps(0.0)));
    let mut a = [_mm512_set1_ps(0.0); 16];
    let t = cpu();
    let n = 4_000_000;
    for _ in 0..n {
        for a in &mut a {
            *a = _mm512_fmadd_ps(x, y, *a);
        }
    }
    let t = cpu() - t;
    std::hint::black_box(a);
    (n * 16 * 16) as f64 / t
}
#[target_feature(enable = "avx2,fma")]
fn peak256() -> f64 {
    use std::arch::x86_64::*;
    let (x, y) = (std::hint::black_box(_mm256_set1_ps(1.0)), std::hint::black_box(_mm256_set1_ps(0.0)));
    let mut a = [_mm256_set1_ps(0.0); 12];
    let t = cpu();
    let n = 4_000_000;
    for _ in 0..n {
        for a in &mut a {
            *a = _mm256_fmadd_ps(x, y, *a);
        }
    }
    let t = cpu() - t;
    std::hint::black_box(a);
    (n * 12 * 8) as f64 / t
}
fn main() {
    let isa: Isa = std::env::args().nth(1).unwrap_or("avx512".into()).parse().unwrap();
    let kernels = Kernels::of(isa).unwrap();
    let threads: usize = std::env::args().nth(4).map_or(1, |t| t.parse().unwrap());
    let pool = Pool::new(threads);
    let ws = Workspace::default();
    let (heads, q_heads, dim) = (2, 32, 128);
    for depth in [1024, 8192, 32768] {
        if std::env::args().nth(3).is_some_and(|r| r != depth.to_string()) {
            continue;
        }
        let layout = KvLayout::new(heads, dim, depth + 512);
        let mut keys = vec![0u16; layout.key_len()];
        let mut values = vec![0u16; layout.value_len()];
        let mut s = 1u32;
        let mut r = || {
            s = s.wrapping_mul(1664525).wrapping_add(1013904223);
            (s >> 8) as f32 / (1 << 23) as f32 - 1.0
        };
        for p in 0..depth + 512 {
            let k: Vec<f32> = (0..heads * dim).map(|_| r()).collect();
            store_keys(layout, KvDataMut::F16(&mut keys), p, &k);
            store_values(layout, KvDataMut::F16(&mut values), p, &k);
        }
        for rows in [1, 5, 16, 512] {
            if std::env::args().nth(2).is_some_and(|r| r != rows.to_string()) {
                continue;
            }
            if rows == 512 && depth == 32768 && isa == Isa::Scalar {
                continue;
            }
            let q: Vec<f32> = (0..rows * q_heads * dim).map(|_| r() * 3.0).collect();
            let mut out = vec![0.0; q.len()];
            let visible: Vec<_> = (0..rows).map(|i| 0..depth + i + 1).collect();
            let a = Attention {
                q: &q,
                q_heads,
                layout,
                keys: KvData::F16(&keys),
                values: KvData::F16(&values),
                scale: 0.088,
                visible: &visible,
            };
            let mut best = f64::MAX;
            let mut pk: f64 = 0.0;
            let reps = if rows == 512 { 2 } else { 60000 / depth * 16 / (rows + 1) + 5 };
            for _ in 0..reps {
                pk = pk.max(unsafe { if isa == Isa::Avx512 { peak512() } else { peak256() } });
                let (t, w) = (cpu(), std::time::Instant::now());
                attend(kernels, &pool, &ws, &a, &mut out);
                best = best.min(if threads == 1 { cpu() - t } else { w.elapsed().as_secs_f64() });
            }
            let keys: usize = visible.iter().map(|v| v.len()).sum();
            let macs = keys as f64 * (q_heads * dim * 2) as f64;
            println!(
                "{isa} depth {depth:6} rows {rows:4}: {:8.1} us per row x 1024 keys, {:5.1} GMAC/s, {:.1}% of peak {:.1}",
                best * 1e6 / keys as f64 * 1024.0,
                macs / best * 1e-9,
                macs / best / pk * 100.0,
                pk * 1e-9
            );
        }
    }
}
