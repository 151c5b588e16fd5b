//! What DFlash 2, `DFlash2DraftModel`, adds: convolutions around the sub-layers of every layer, and a selector that makes a path of
//! candidates.

use super::DFlash2Config;
use crate::ModelError;
use crate::layers::{bare_table, vector, weight};
use crate::observe::{Observer, Site, Sublayer};
use glimmer_backend::Backend;
use glimmer_checkpoint::Cursor;

/// Convolutions along the rows of a block, before and behind a sub-layer. Their kernels are the sum of one for all rows and of one
/// that each row brings, which its neighbouring channels share.
pub(super) struct DynamicConv<B: Backend> {
    base_kernel: B::Vector,       // (2, taps, hidden): before, behind
    kernel_projection: B::Weight, // (2 * taps * groups, hidden)
    site: (Sublayer, usize),
}

impl<B: Backend> DynamicConv<B> {
    pub fn load(
        backend: &B,
        at: &Cursor<'_>,
        config: &DFlash2Config,
        hidden: usize,
        site: (Sublayer, usize),
    ) -> Result<Self, ModelError> {
        let base = vector(at, "base_kernel", &[2, config.conv_kernel_size, hidden])?;
        Ok(Self {
            base_kernel: backend.load_vector(base),
            kernel_projection: weight(backend, &at.at("kernel_projection"), config.dynamic(hidden), hidden)?,
            site,
        })
    }

    /// The sub-layer's input, of the normed residual stream (rows, hidden) with so many rows of each block, and the kernels that the
    /// rows bring, (rows, 2 * taps * groups): those behind the sub-layer come from what it is given as well, not from what it gives.
    pub fn before(
        &self,
        b: &B,
        x: &B::Tensor,
        blocks: &[usize],
        observer: &mut impl Observer<B>,
    ) -> (B::Tensor, B::Tensor) {
        let (sublayer, layer) = self.site;
        observer.see(b, Site::ConvNorm(sublayer, layer), x);
        let kernels = b.linear(x, &self.kernel_projection);
        observer.see(b, Site::ConvKernels(sublayer, layer), &kernels);
        let out = b.dynamic_conv(x, &self.base_kernel, &kernels, 0, blocks);
        observer.see(b, Site::ConvBefore(sublayer, layer), &out);
        (out, kernels)
    }

    /// What is added to the residual stream, of the sub-layer's output (rows, hidden).
    pub fn behind(
        &self,
        b: &B,
        x: &B::Tensor,
        kernels: &B::Tensor,
        blocks: &[usize],
        observer: &mut impl Observer<B>,
    ) -> B::Tensor {
        let (sublayer, layer) = self.site;
        let out = b.dynamic_conv(x, &self.base_kernel, kernels, 1, blocks);
        observer.see(b, Site::ConvBehind(sublayer, layer), &out);
        out
    }
}

/// Says how well a candidate follows the token before it: logits alone do not know what was proposed there.
pub struct Selector<B: Backend> {
    predecessors: B::Table,       // (vocab, rank)
    successors: B::Table,         // (vocab, rank)
    hidden_projection: B::Weight, // (rank, hidden)
    top_k: usize,
}

impl<B: Backend> Selector<B> {
    pub(super) fn load(
        backend: &B,
        at: &Cursor<'_>,
        config: &DFlash2Config,
        hidden: usize,
    ) -> Result<Self, ModelError> {
        let codebook = |name| bare_table(backend, at, name, config.vocab_size, config.selector_rank);
        Ok(Self {
            predecessors: codebook("predecessor_codebook")?,
            successors: codebook("successor_codebook")?,
            hidden_projection: weight(backend, &at.at("hidden_projection"), config.selector_rank, hidden)?,
            top_k: config.selector_top_k,
        })
    }

    /// How many tokens are candidates at a position, those of the largest logits.
    pub fn top_k(&self) -> usize {
        self.top_k
    }

    /// What [`edges`](Self::edges) needs of normalised hidden states (rows, hidden): a code for each row.
    pub fn codes(&self, b: &B, hidden: &B::Tensor) -> Vec<Vec<f32>> {
        let codes = b.linear(hidden, &self.hidden_projection); // (rows, rank)
        let (_, rank) = b.shape(&codes);
        b.read(&codes).chunks_exact(rank).map(<[f32]>::to_vec).collect()
    }

    /// What is added to the logits of `candidates` where `previous` stands before them and the row's code is `code`: the sum over
    /// r of predecessors\[previous, r\] * code\[r\] * successors\[candidate, r\], in f64.
    pub fn edges(&self, b: &B, previous: u32, code: &[f32], candidates: &[u32]) -> Vec<f32> {
        let predecessor = b.read(&b.embed(&self.predecessors, &[previous]));
        let query: Vec<f64> = predecessor.iter().zip(code).map(|(&p, &h)| f64::from(p) * f64::from(h)).collect();
        let edge = |successor: &[f32]| query.iter().zip(successor).map(|(q, &s)| q * f64::from(s)).sum::<f64>() as f32;
        b.read(&b.embed(&self.successors, candidates)).chunks_exact(code.len()).map(edge).collect()
    }
}
