//! Pages that own their memory, and where they come from.

use super::cache::{KvData, KvDataMut, KvLayout, KvPage, KvType, store_keys, store_values};
use crate::memory::{Block, Blocks, elements, elements_mut};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes that parts of a page begin at multiples of.
const ALIGN: usize = 64;

/// Gives out pages of one shape, and takes their memory back.
pub struct Pages {
    shape: Shape,
    blocks: Blocks,
    taken: AtomicU64,
}

/// The keys and values of one layer at [`CHUNK`](super::CHUNK) positions.
pub struct Page {
    shape: Shape,
    memory: Block,
}

/// Where everything lies in the memory of a page.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Shape {
    layout: KvLayout,
    keys: KvType,
    values: KvType,
}

impl Shape {
    /// Elements and scales of keys, elements and scales of values; and the bytes of all.
    fn parts(&self) -> ([Range<usize>; 4], usize) {
        let (layout, mut end) = (self.layout, 0);
        let mut part = |bytes: usize| {
            let start = end;
            end = (start + bytes).next_multiple_of(ALIGN);
            start..start + bytes
        };
        let scales = |kind| if kind == KvType::Q8 { layout.scale_len() * size_of::<f32>() } else { 0 };
        let element = |kind| match kind {
            KvType::F32 => 4,
            KvType::F16 | KvType::BF16 => 2,
            KvType::Q8 => 1,
        };
        let parts = [
            part(layout.key_len() * element(self.keys)),
            part(scales(self.keys)),
            part(layout.value_len() * element(self.values)),
            part(scales(self.values)),
        ];
        (parts, end)
    }
}

impl Pages {
    /// Pages of this shape; memory is taken as they are asked for.
    pub fn new(layout: KvLayout, keys: KvType, values: KvType) -> Self {
        let shape = Shape { layout, keys, values };
        Self { shape, blocks: Blocks::new(shape.parts().1), taken: AtomicU64::new(0) }
    }

    /// Whether they have this shape.
    pub fn are(&self, layout: KvLayout, keys: KvType, values: KvType) -> bool {
        self.shape == Shape { layout, keys, values }
    }

    /// Bytes of a page.
    pub fn page_bytes(&self) -> usize {
        self.shape.parts().1
    }

    /// Pages that were taken so far, whether they came back or not.
    pub fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// A page with anything in it, or `None` where the system has no memory for it.
    pub fn take(&self) -> Option<Page> {
        self.taken.fetch_add(1, Ordering::Relaxed);
        Some(Page { shape: self.shape, memory: self.blocks.take()? })
    }
}

impl Page {
    /// How it lies.
    pub fn layout(&self) -> KvLayout {
        self.shape.layout
    }

    /// How keys and values are stored.
    pub fn types(&self) -> [KvType; 2] {
        [self.shape.keys, self.shape.values]
    }

    /// Everything in it, as bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.memory
    }

    /// Takes over the bytes of another page of the same shape.
    ///
    /// # Panics
    /// If there are more or fewer.
    pub fn copy_from(&mut self, bytes: &[u8]) {
        self.memory.copy_from_slice(bytes);
    }

    /// What is in it.
    pub fn view(&self) -> KvPage<'_> {
        let [keys, key_scales, values, value_scales] = self.shape.parts().0;
        let data = |kind, of: Range<usize>, scales: Range<usize>| {
            let (of, scales) = (&self.memory[of], &self.memory[scales]);
            match kind {
                KvType::F32 => KvData::F32(elements(of)),
                KvType::F16 => KvData::F16(elements(of)),
                KvType::BF16 => KvData::BF16(elements(of)),
                KvType::Q8 => KvData::Q8 { codes: elements(of), scales: elements(scales) },
            }
        };
        KvPage { keys: data(self.shape.keys, keys, key_scales), values: data(self.shape.values, values, value_scales) }
    }

    /// Stores rows of keys and of values (rows, heads * head_dim each) from position `at` of the page on.
    ///
    /// # Panics
    /// If the lengths do not belong together, or the page has not so many rows.
    pub fn write(&mut self, at: usize, k: &[f32], v: &[f32]) {
        let Shape { layout, keys: key_type, values: value_type } = self.shape;
        let [keys, key_scales, values, value_scales] = self.shape.parts().0;
        let memory = &mut *self.memory;
        store_keys(layout, data_mut(memory, key_type, keys, key_scales), at, k);
        store_values(layout, data_mut(memory, value_type, values, value_scales), at, v);
    }
}

/// Elements at `of`, and their scales behind them.
fn data_mut(memory: &mut [u8], kind: KvType, of: Range<usize>, scales: Range<usize>) -> KvDataMut<'_> {
    let (before, behind) = memory.split_at_mut(scales.start);
    let (of, scales) = (&mut before[of], &mut behind[..scales.len()]);
    match kind {
        KvType::F32 => KvDataMut::F32(elements_mut(of)),
        KvType::F16 => KvDataMut::F16(elements_mut(of)),
        KvType::BF16 => KvDataMut::BF16(elements_mut(of)),
        KvType::Q8 => KvDataMut::Q8 { codes: elements_mut(of), scales: elements_mut(scales) },
    }
}
