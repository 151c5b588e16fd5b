//! Products and attention on every core, in bytes and multiply-adds per second, beside what the machine can do at most.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use glimmer_encoding::{Encoding, FloatType, GgmlType, WeightView, encode_rows};
use glimmer_kernels::attention::{Attention, CHUNK, KvLayout, KvType, Pages, Workspace, attend};
use glimmer_kernels::dispatch::Kernels;
use glimmer_kernels::limits::{Buffer, Limits};
use glimmer_kernels::matmul;
use glimmer_kernels::packed::{self, Activations, Packed, Product};
use glimmer_kernels::pool::Pool;
use std::time::Duration;

/// A matrix that no cache holds.
const OUTS: usize = 49_152;
const INPUTS: usize = 6144;
const ROWS: [usize; 5] = [1, 5, 8, 16, 512];

fn pool() -> Pool {
    Pool::new(glimmer_kernels::cores::usable())
}

/// Numbers from -1 to 1 that look random.
fn noise(len: usize) -> Vec<f32> {
    let mut state = 1u32;
    let next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    std::iter::repeat_with(next).take(len).collect()
}

fn group<'a>(
    criterion: &'a mut Criterion,
    name: &str,
) -> criterion::BenchmarkGroup<'a, criterion::measurement::WallTime> {
    let mut group = criterion.benchmark_group(name);
    group.sample_size(10).warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2));
    group
}

/// What the throughputs are to be compared with.
fn limits(_: &mut Criterion) {
    let (pool, kernels) = (pool(), Kernels::best());
    let Some(buffer) = Buffer::new(&pool, 1 << 30) else { return };
    let all: Vec<Limits> = (0..10).map(|_| Limits::measure(kernels, &pool, &buffer)).collect();
    let best = |of: fn(&Limits) -> f64| all.iter().map(of).fold(0.0, f64::max) / 1e9;
    println!(
        "this machine at most ({}, {} threads): {:.1} GB/s, {:.1} GMAC/s of int8, {:.1} GMAC/s of f32",
        kernels.isa(),
        pool.threads(),
        best(|l| l.bytes),
        best(|l| l.integers),
        best(|l| l.floats)
    );
}

/// Every encoding that has a packed layout.
fn encodings() -> Vec<Encoding> {
    let affine = |bits, group| Encoding::Affine { bits, group, scale: FloatType::BF16 };
    let mut all: Vec<Encoding> = GgmlType::ALL.map(Encoding::Ggml).to_vec();
    all.extend([Encoding::MxFp4, Encoding::MxFp8, Encoding::NvFp4]);
    all.extend([2, 3, 4, 5, 6, 8].map(|bits| affine(bits, 64)));
    all.extend([affine(4, 32), affine(4, 128)]);
    all.retain(|&encoding| Packed::exists(encoding));
    all
}

fn products(criterion: &mut Criterion) {
    let (pool, kernels) = (pool(), Kernels::best());
    // A few rows over and over: encoding is not what is measured.
    const DISTINCT: usize = 16;
    let rows = noise(DISTINCT * INPUTS);
    for encoding in encodings() {
        let Some(part) = encode_rows(encoding, &rows, DISTINCT, INPUTS) else {
            println!("{encoding}: not measured, there is no encoder");
            continue;
        };
        let repeat = |part: &[u8]| part.repeat(OUTS / DISTINCT);
        let (codes, scales, biases) = (repeat(&part.codes), repeat(&part.scales), repeat(&part.biases));
        let parts = glimmer_encoding::Parts { codes: &codes, scales: &scales, biases: &biases, global_scale: None };
        let shape = [OUTS, INPUTS];
        let Ok(view) = WeightView::new(encoding, &shape, parts) else { continue };
        let bytes = parts.sizes().total() as u64;
        let Some(mut weight) = Packed::zeros(None, encoding, OUTS, INPUTS) else { continue };
        weight.pieces(OUTS).into_iter().for_each(|mut piece| piece.fill(&view));
        let mut group = group(criterion, &encoding.to_string());
        for rows in ROWS {
            let x = Activations::quantize(kernels, &pool, &noise(rows * INPUTS), INPUTS);
            let mut out = vec![0.0; rows * OUTS];
            group.throughput(Throughput::ElementsAndBytes { elements: (rows * OUTS * INPUTS) as u64, bytes });
            group.bench_function(BenchmarkId::from_parameter(rows), |b| {
                b.iter(|| packed::matmul(kernels, &pool, &x, &mut [Product { weight: &weight, out: &mut out }]));
            });
        }
        group.finish();
    }
}

fn dense(criterion: &mut Criterion) {
    let (pool, kernels) = (pool(), Kernels::best());
    let outs = OUTS / 4;
    let weight: Vec<u16> = noise(INPUTS * outs).iter().map(|x| (x.to_bits() >> 16) as u16).collect();
    let mut group = group(criterion, "bf16");
    for rows in ROWS {
        let x = noise(rows * INPUTS);
        let mut out = vec![0.0; rows * outs];
        let (elements, bytes) = ((rows * outs * INPUTS) as u64, 2 * weight.len() as u64);
        group.throughput(Throughput::ElementsAndBytes { elements, bytes });
        group.bench_function(BenchmarkId::new("f32 activations", rows), |b| {
            b.iter(|| matmul::matmul(kernels, &pool, &x, matmul::Dense::BF16(&weight), INPUTS, &mut out));
        });
        let x = matmul::round_bf16(&x);
        group.bench_function(BenchmarkId::new("bf16 activations", rows), |b| {
            b.iter(|| matmul::matmul_bf16(kernels, &pool, &x, &weight, INPUTS, &mut out));
        });
    }
    group.finish();
}

fn attention(criterion: &mut Criterion) {
    const HEADS: usize = 2;
    const Q_HEADS: usize = 32;
    const HEAD_DIM: usize = 128;
    const DEPTH: usize = 32_768;
    let (pool, kernels, workspace) = (pool(), Kernels::best(), Workspace::default());
    let layout = KvLayout { heads: HEADS, head_dim: HEAD_DIM };
    let all = Pages::new(layout, KvType::F16, KvType::F16);
    let (keys, values) = (noise(CHUNK * HEADS * HEAD_DIM), noise(CHUNK * HEADS * HEAD_DIM));
    let pages: Option<Vec<_>> = (0..DEPTH / CHUNK)
        .map(|_| {
            let mut page = all.take()?;
            page.write(0, &keys, &values);
            Some(page)
        })
        .collect();
    let Some(pages) = pages else { return };
    let pages: Vec<_> = pages.iter().map(|page| page.view()).collect();
    let mut group = group(criterion, "attention over 32768 positions of f16");
    for rows in [1, 5, 16] {
        let q = noise(rows * Q_HEADS * HEAD_DIM);
        let mut out = vec![0.0; q.len()];
        let visible: Vec<_> = (0..rows).map(|row| 0..DEPTH - rows + row + 1).collect();
        let (elements, bytes) = ((2 * q.len() * DEPTH) as u64, (2 * 2 * HEADS * HEAD_DIM * DEPTH) as u64);
        group.throughput(Throughput::ElementsAndBytes { elements, bytes });
        group.bench_function(BenchmarkId::from_parameter(rows), |b| {
            let (q_heads, scale) = (Q_HEADS, 0.088);
            let attention = Attention { q: &q, q_heads, layout, first: 0, pages: &pages, scale, visible: &visible };
            b.iter(|| attend(kernels, &pool, &workspace, &attention, &mut out));
        });
    }
    group.finish();
}

criterion_group!(benches, limits, products, dense, attention);
criterion_main!(benches);
