//! Attention over pages of keys and values.

use crate::support::{ENDS, Flush, Guarded, Random, bits, cases, tables};
use glimmer_kernels::attention::{
    Attention, CHUNK, KvData, KvDataMut, KvLayout, KvPage, KvType, Pages, Workspace, attend, store_keys, store_values,
};
use glimmer_kernels::dispatch::Kernels;
use glimmer_kernels::lanes::{BF16, Element, F16};
use glimmer_kernels::pool::Pool;
use proptest::prelude::*;
use std::ops::Range;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    F32,
    F16,
    BF16,
    Q8,
}

const KINDS: [Kind; 4] = [Kind::F32, Kind::F16, Kind::BF16, Kind::Q8];

impl Kind {
    /// What a head becomes when it is stored.
    fn round(self, head: &[f32]) -> Vec<f32> {
        let max = head.iter().map(|x| x.abs()).fold(0.0, f32::max);
        let each = |x: &f32| match self {
            Kind::F32 => *x,
            Kind::F16 => F16::widen(F16::narrow(*x)),
            Kind::BF16 => BF16::widen(BF16::narrow(*x)),
            Kind::Q8 if max == 0.0 => 0.0,
            Kind::Q8 => (x * (127.0 / max)).round_ties_even() * (max / 127.0),
        };
        head.iter().map(each).collect()
    }
}

/// Keys or values as they are stored; of one kind, and the rest is empty.
#[derive(Clone)]
struct Stored {
    kind: Kind,
    wide: Vec<f32>,
    half: Vec<u16>,
    codes: Vec<i8>,
    scales: Vec<f32>,
}

impl Stored {
    fn zeros(kind: Kind, len: usize, scales: usize) -> Self {
        let len = |kinds: &[Kind]| if kinds.contains(&kind) { len } else { 0 };
        Self {
            kind,
            wide: vec![0.0; len(&[Kind::F32])],
            half: vec![0; len(&[Kind::F16, Kind::BF16])],
            codes: vec![0; len(&[Kind::Q8])],
            scales: vec![0.0; if kind == Kind::Q8 { scales } else { 0 }],
        }
    }

    fn data_mut(&mut self) -> KvDataMut<'_> {
        match self.kind {
            Kind::F32 => KvDataMut::F32(&mut self.wide),
            Kind::F16 => KvDataMut::F16(&mut self.half),
            Kind::BF16 => KvDataMut::BF16(&mut self.half),
            Kind::Q8 => KvDataMut::Q8 { codes: &mut self.codes, scales: &mut self.scales },
        }
    }
}

/// The same between unreadable pages.
struct GuardedStored {
    kind: Kind,
    wide: Guarded<f32>,
    half: Guarded<u16>,
    codes: Guarded<i8>,
    scales: Guarded<f32>,
}

impl GuardedStored {
    fn new(stored: &Stored, end: Flush) -> Self {
        Self {
            kind: stored.kind,
            wide: Guarded::new(&stored.wide, end),
            half: Guarded::new(&stored.half, end),
            codes: Guarded::new(&stored.codes, end),
            scales: Guarded::new(&stored.scales, end),
        }
    }

    fn data(&self) -> KvData<'_> {
        match self.kind {
            Kind::F32 => KvData::F32(&self.wide),
            Kind::F16 => KvData::F16(&self.half),
            Kind::BF16 => KvData::BF16(&self.half),
            Kind::Q8 => KvData::Q8 { codes: &self.codes, scales: &self.scales },
        }
    }
}

/// Pages that hold the last of `written` positions, and rows that attend to them.
#[derive(Clone, Debug)]
struct Case {
    heads: usize,
    group: usize,
    head_dim: usize,
    first: usize,
    written: usize,
    visible: Vec<Range<usize>>,
    keys: Kind,
    values: Kind,
    seed: u64,
}

struct Buffers {
    layout: KvLayout,
    q: Vec<f32>,
    keys: Vec<f32>,   // rounded
    values: Vec<f32>, // rounded
    /// From page `first` of the case on.
    pages: Vec<(Stored, Stored)>,
}

impl Buffers {
    /// Stores a row of keys or of values over what was there.
    fn put(&mut self, first: usize, position: usize, keys: bool, row: &[f32]) {
        let (layout, page) = (self.layout, &mut self.pages[position / CHUNK - first]);
        match keys {
            true => store_keys(layout, page.0.data_mut(), position % CHUNK, row),
            false => store_values(layout, page.1.data_mut(), position % CHUNK, row),
        }
    }
}

impl Case {
    fn buffers(&self) -> Buffers {
        let layout = KvLayout { heads: self.heads, head_dim: self.head_dim };
        let mut random = Random::new(self.seed);
        let width = self.heads * self.head_dim;
        let (keys, values) = (random.values(self.written * width), random.values(self.written * width));
        let q = random.values(self.visible.len() * width * self.group);
        let pages = self.first..self.written.div_ceil(CHUNK);
        let pages = pages.map(|page| {
            let mut stored = (
                Stored::zeros(self.keys, layout.key_len(), layout.scale_len()),
                Stored::zeros(self.values, layout.value_len(), layout.scale_len()),
            );
            let rows = page * CHUNK * width..self.written.min((page + 1) * CHUNK) * width;
            // Row by row and in one piece is the same.
            store_keys(layout, stored.0.data_mut(), 0, &keys[rows.clone()]);
            for (at, values) in values[rows].chunks_exact(width).enumerate() {
                store_values(layout, stored.1.data_mut(), at, values);
            }
            stored
        });
        let pages = pages.collect();
        let round = |kind: Kind, x: &[f32]| x.chunks_exact(self.head_dim).flat_map(|head| kind.round(head)).collect();
        Buffers { layout, q, keys: round(self.keys, &keys), values: round(self.values, &values), pages }
    }

    fn run(&self, kernels: &Kernels, pool: &Pool, b: &Buffers, rows: Range<usize>, end: Flush) -> Vec<f32> {
        self.run_in(&Workspace::default(), kernels, pool, b, rows, end)
    }

    fn run_in(
        &self,
        workspace: &Workspace,
        kernels: &Kernels,
        pool: &Pool,
        b: &Buffers,
        rows: Range<usize>,
        end: Flush,
    ) -> Vec<f32> {
        let width = self.heads * self.group * self.head_dim;
        let q = Guarded::new(&b.q[rows.start * width..rows.end * width], end);
        let guarded = b.pages.iter().map(|(k, v)| (GuardedStored::new(k, end), GuardedStored::new(v, end)));
        let guarded: Vec<_> = guarded.collect();
        let pages: Vec<_> = guarded.iter().map(|(k, v)| KvPage { keys: k.data(), values: v.data() }).collect();
        let mut out = Guarded::new(&vec![f32::NAN; rows.len() * width], end);
        let attention = Attention {
            q: &q,
            q_heads: self.heads * self.group,
            layout: b.layout,
            first: self.first,
            pages: &pages,
            scale: self.scale(),
            visible: &self.visible[rows],
        };
        attend(kernels, pool, workspace, &attention, &mut out);
        out.to_vec()
    }

    fn scale(&self) -> f32 {
        1.0 / (self.head_dim as f32).sqrt()
    }

    /// Softmax attention in f64.
    fn exact(&self, b: &Buffers) -> Vec<f64> {
        let (width, dim) = (self.heads * self.head_dim, self.head_dim);
        let mut out = Vec::new();
        for (row, visible) in self.visible.iter().enumerate() {
            for head in 0..self.heads * self.group {
                let q = &b.q[(row * self.heads * self.group + head) * dim..][..dim];
                let at = |position: usize| position * width + head / self.group * dim;
                let score = |position: usize| -> f64 {
                    let k = &b.keys[at(position)..][..dim];
                    q.iter().zip(k).map(|(&q, &k)| q as f64 * k as f64).sum::<f64>() * self.scale() as f64
                };
                let scores: Vec<f64> = visible.clone().map(score).collect();
                let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
                let sum: f64 = weights.iter().sum();
                for d in 0..dim {
                    let values = visible.clone().map(|position| b.values[at(position) + d] as f64);
                    out.push(values.zip(&weights).map(|(v, w)| v * w).sum::<f64>() / sum);
                }
            }
        }
        out
    }
}

fn check(case: &Case) {
    let b = case.buffers();
    let rows = case.visible.len();
    let width = case.heads * case.group * case.head_dim;
    let scalar = case.run(tables()[0], &Pool::new(1), &b, 0..rows, Flush::End);
    for (i, (ours, exact)) in scalar.iter().zip(case.exact(&b)).enumerate() {
        assert!((*ours as f64 - exact).abs() < 2e-5, "{case:?} at {i}: {ours} against {exact}");
    }
    // What an earlier call left in the workspace does not matter.
    let workspace = Workspace::default();
    let pools = [Pool::new(1), Pool::new(2), Pool::new(4)];
    for kernels in tables() {
        for end in ENDS {
            for pool in &pools {
                let out = case.run_in(&workspace, kernels, pool, &b, 0..rows, end);
                assert!(bits(&out) == bits(&scalar), "{} {end:?} {} threads: {case:?}", kernels.isa(), pool.threads());
            }
        }
        for row in 0..rows {
            for pool in &pools {
                let alone = case.run_in(&workspace, kernels, pool, &b, row..row + 1, Flush::End);
                let expected = &scalar[row * width..(row + 1) * width];
                assert!(bits(&alone) == bits(expected), "{} row {row} alone: {case:?}", kernels.isa());
            }
        }
    }
}

fn sequences() -> impl Strategy<Value = Case> {
    let shape = (1..=3usize, prop::sample::select(vec![1usize, 2, 3, 4, 5, 8, 13, 16]), 1..=20usize);
    let cache = (0..=3usize, 1..=700usize);
    let kinds = (prop::sample::select(KINDS.to_vec()), prop::sample::select(KINDS.to_vec()));
    (shape, cache, prop::sample::select(vec![1usize, 2, 3, 8, 9, 20]), kinds, any::<u64>()).prop_map(
        |((heads, group, half_dim), (first, held), rows, (keys, values), seed)| {
            let mut random = Random::new(seed ^ 0xabc);
            let oldest = first * CHUNK;
            let written = oldest + held;
            let visible = (0..rows)
                .map(|_| {
                    let start = oldest + random.below(written - oldest);
                    start..start + 1 + random.below(written - start)
                })
                .collect();
            Case { heads, group, head_dim: 2 * half_dim, first, written, visible, keys, values, seed }
        },
    )
}

#[test]
fn every_run_of_pages_and_range() {
    cases(48, &sequences(), check);
}

#[test]
fn borders_of_chunks_and_blocks() {
    for written in [15, 16, 17, 255, 256, 257, 512, 777] {
        for first in 0..=(written - 1) / CHUNK {
            let oldest = first * CHUNK;
            let visible: Vec<Range<usize>> = [oldest, oldest + 1, written - 1, (written - 1) / CHUNK * CHUNK]
                .into_iter()
                .filter(|&start| start >= oldest && start < written)
                .map(|start| start..written)
                .collect();
            let (keys, values) = (KINDS[written % 4], KINDS[(written + first) / 2 % 4]);
            check(&Case { heads: 2, group: 4, head_dim: 16, first, written, visible, keys, values, seed: 3 });
        }
    }
}

#[test]
fn a_page_keeps_what_is_written_and_passes_on_its_bytes() {
    let (layout, pool, width) = (KvLayout { heads: 2, head_dim: 6 }, Pool::new(1), 12);
    let mut random = Random::new(4);
    let (k, v, q) = (random.values(40 * width), random.values(40 * width), random.values(2 * width));
    for types in [[KvType::F32, KvType::Q8], [KvType::Q8, KvType::F16], [KvType::BF16, KvType::F32]] {
        let pages = Pages::new(layout, types[0], types[1]);
        let mut page = pages.take().unwrap();
        page.write(0, &k[..7 * width], &v[..7 * width]);
        page.write(7, &k[7 * width..], &v[7 * width..]);
        let mut copy = pages.take().unwrap();
        copy.copy_from(page.bytes());
        assert!(page.layout() == layout && page.types() == types && page.bytes().len() == pages.page_bytes());
        let attend_to = |view: KvPage<'_>| {
            let mut out = vec![0.0; 2 * width];
            let visible = [0..40, 5..20];
            let attention =
                Attention { q: &q, q_heads: 2, layout, first: 0, pages: &[view], scale: 0.4, visible: &visible };
            attend(Kernels::best(), &pool, &Workspace::default(), &attention, &mut out);
            bits(&out)
        };
        let kind = |of: KvType| KINDS[KvType::ALL.iter().position(|kind| *kind == of).unwrap()];
        let mut stored = (
            Stored::zeros(kind(types[0]), layout.key_len(), layout.scale_len()),
            Stored::zeros(kind(types[1]), layout.value_len(), layout.scale_len()),
        );
        store_keys(layout, stored.0.data_mut(), 0, &k);
        store_values(layout, stored.1.data_mut(), 0, &v);
        let guarded = (GuardedStored::new(&stored.0, Flush::End), GuardedStored::new(&stored.1, Flush::End));
        let expected = attend_to(KvPage { keys: guarded.0.data(), values: guarded.1.data() });
        assert_eq!(attend_to(page.view()), expected, "{types:?}");
        // What is written later, the copy does not see.
        page.write(3, &v[..width], &k[..width]);
        assert_eq!(attend_to(copy.view()), expected, "{types:?}");
        assert_ne!(attend_to(page.view()), expected, "{types:?}");
    }
}

#[test]
fn what_is_not_visible_weighs_nothing() {
    let case = Case {
        heads: 1,
        group: 2,
        head_dim: 8,
        first: 0,
        written: 600,
        visible: vec![100..101, 37..300, 256..512],
        keys: Kind::F32,
        values: Kind::F32,
        seed: 8,
    };
    let b = case.buffers();
    let clean = case.run(Kernels::best(), &Pool::new(1), &b, 0..3, Flush::End);
    // Keys and values of all other positions become NaN.
    let mut dirty = case.buffers();
    for position in (0..600).filter(|p| !case.visible.iter().any(|r| r.contains(p))) {
        dirty.put(0, position, true, &[f32::NAN; 8]);
        dirty.put(0, position, false, &[f32::NAN; 8]);
    }
    for kernels in tables() {
        assert_eq!(bits(&case.run(kernels, &Pool::new(1), &dirty, 0..3, Flush::End)), bits(&clean));
    }
    // One key only: its value comes back as it is.
    assert_eq!(clean[..8], b.values[800..808]);
}

#[test]
fn what_is_not_a_number_is_not_hidden() {
    for kind in KINDS {
        let case = Case {
            heads: 1,
            group: 1,
            head_dim: 8,
            first: 0,
            written: 600,
            visible: vec![0..600, 1..2],
            keys: kind,
            values: kind,
            seed: 8,
        };
        for (position, bad) in [(0, f32::NAN), (300, f32::INFINITY), (599, f32::NEG_INFINITY)] {
            for keys in [true, false] {
                let mut b = case.buffers();
                // One element is enough, whatever the others are.
                let row = [1.0, bad, -2.0, 0.0, bad, 3.0, 4.0, 5.0];
                b.put(0, position, keys, &row);
                for kernels in tables() {
                    let out = case.run(kernels, &Pool::new(1), &b, 0..2, Flush::End);
                    // A key that is stored as infinite may weigh nothing: a score of minus infinity is one.
                    let may_weigh_nothing = keys && bad.is_infinite() && kind != Kind::Q8;
                    let shown = out[..8].iter().any(|x| !x.is_finite()) || may_weigh_nothing;
                    assert!(shown, "{} {kind:?} {position} {keys}", kernels.isa());
                    assert!(out[8..].iter().all(|x| x.is_finite()), "another row");
                }
            }
        }
    }
}

#[test]
fn the_shape_of_the_model() {
    let sliding = |end: usize| end.saturating_sub(500)..end;
    for (keys, values) in [(Kind::F16, Kind::F16), (Kind::BF16, Kind::Q8), (Kind::Q8, Kind::F32)] {
        for rows in [1, 5, 10] {
            check(&Case {
                heads: 2,
                group: 16,
                head_dim: 128,
                first: 1,
                written: 1000,
                visible: (0..rows).map(|row| sliding(1001 - rows + row)).collect(),
                keys,
                values,
                seed: 5,
            });
        }
    }
}

#[test]
fn more_parts_than_wait_at_a_time() {
    let written = 60_000;
    let case = Case {
        heads: 3,
        group: 16,
        head_dim: 2,
        first: 0,
        written,
        visible: (0..16).map(|row| 700 * row..written - 300 * row).collect(),
        keys: Kind::F16,
        values: Kind::F16,
        seed: 9,
    };
    let b = case.buffers();
    let alone = case.run(Kernels::best(), &Pool::new(1), &b, 0..16, Flush::End);
    let shared = case.run(Kernels::best(), &Pool::new(2), &b, 0..16, Flush::End);
    assert!(bits(&shared) == bits(&alone));
}

#[test]
fn eight_bits_keep_what_they_can() {
    let layout = KvLayout { heads: 1, head_dim: 4 };
    for (row, codes, scale) in [
        ([1.0, -0.5, 0.25, 0.0], [127, -64, 32, 0], 1.0 / 127.0),
        ([0.0, -0.0, 0.0, 0.0], [0; 4], 0.0),
        ([f32::MAX, f32::MIN, 0.0, 1.0], [127, -127, 0, 0], f32::MAX / 127.0),
        ([3.0, f32::INFINITY, 1.0, 2.0], [0; 4], f32::NAN),
    ] {
        let mut stored = Stored::zeros(Kind::Q8, layout.value_len(), layout.scale_len());
        store_values(layout, stored.data_mut(), 0, &row);
        assert_eq!(stored.codes[..4], codes);
        assert_eq!(stored.scales[0].to_bits(), f32::to_bits(scale));
    }
    // Too small for their inverse: the largest is off by less than 1e-36.
    let mut stored = Stored::zeros(Kind::Q8, layout.value_len(), layout.scale_len());
    store_values(layout, stored.data_mut(), 0, &[1e-40, -1e-41, 0.0, 0.0]);
    assert_eq!(stored.codes[..4], [0; 4]);
}
