//! The pass of a DFlash drafter: a few bidirectional layers over [anchor, mask, mask, ...] that also see the target's tapped
//! states as context keys and values.

use super::DFlashConfig;
use super::context::Context;
use super::v2::{DynamicConv, Selector};
use crate::ModelError;
use crate::layers::{Mlp, counted, norm, weight};
use crate::observe::{Observer, Site, Sublayer};
use glimmer_backend::{Backend, BackendError};
use glimmer_checkpoint::{Checkpoint, Cursor};
use std::ops::Range;

/// The drafter's weights: of `MuseGlimmerAssistantModel`, and of `DFlash2DraftModel`, which has more.
pub struct DFlash<B: Backend> {
    config: DFlashConfig,
    fc: B::Weight,          // (hidden, taps * hidden)
    hidden_norm: B::Vector, // (hidden)
    layers: Vec<Layer<B>>,
    norm: B::Vector, // (hidden)
    selector: Option<Selector<B>>,
}

/// What the drafter is shown of one sequence.
pub struct Seen<'a, B: Backend> {
    /// What it remembers.
    pub context: &'a mut Context<B>,
    /// The target's tapped states (rows, taps * hidden) of verified positions.
    pub states: &'a B::Tensor,
    /// The first of them.
    pub position: usize,
}

/// What is to be drafted of one sequence.
pub struct Block<'a, B: Backend> {
    /// What the drafter remembers; the block stands at its end.
    pub context: &'a mut Context<B>,
    /// Raw target embeddings (rows, hidden): the anchor's, and the mask's.
    pub embeds: B::Tensor,
}

impl<B: Backend> DFlash<B> {
    /// Loads a drafter whose configuration is bound to its target, and whose tensors have been accounted for. `loaded` is
    /// told the bytes of weights read so far, as they come in.
    pub fn load(
        backend: &B,
        checkpoint: &Checkpoint,
        config: DFlashConfig,
        loaded: &mut (dyn FnMut(u64) + Send),
    ) -> Result<Self, ModelError> {
        let hidden = config.hidden_size;
        let watch = counted(loaded);
        let all = checkpoint.at("").watched(&watch);
        let [fc, hidden_norm] = config.encoder();
        let layers =
            (0..config.num_hidden_layers).map(|i| Layer::load(backend, &all, i, &config)).collect::<Result<_, _>>()?;
        let selector = |dflash2| Selector::load(backend, &all.at("candidate_selector"), dflash2, hidden);
        Ok(Self {
            fc: weight(backend, &all.at(fc), hidden, config.target_layer_ids.len() * hidden)?,
            hidden_norm: norm(backend, &all.at(hidden_norm), hidden)?,
            layers,
            norm: norm(backend, &all.at("norm"), hidden)?,
            selector: config.dflash2.as_ref().map(selector).transpose()?,
            config,
        })
    }

    /// What chooses among the tokens of the largest logits, in DFlash 2.
    pub fn selector(&self) -> Option<&Selector<B>> {
        self.selector.as_ref()
    }

    /// The configuration it was loaded with.
    pub fn config(&self) -> &DFlashConfig {
        &self.config
    }

    /// An empty context.
    pub fn context(&self) -> Context<B> {
        let c = &self.config;
        Context::new(c.num_hidden_layers, c.reach(), c.block_size, c.pages())
    }

    /// Adds the target's tapped states (rows, taps * hidden) of verified positions from `position` on.
    pub fn observe(
        &self,
        b: &B,
        context: &mut Context<B>,
        states: &B::Tensor,
        position: usize,
        observer: &mut impl Observer<B>,
    ) -> Result<(), ModelError> {
        self.observe_all(b, &mut [Seen { context, states, position }], observer).remove(0)
    }

    /// The same for several sequences at once, whose rows share all products. A sequence that there is no memory for fails alone.
    ///
    /// Context rows are encoded once and go un-normed into every layer's keys and values.
    pub fn observe_all(
        &self,
        b: &B,
        batch: &mut [Seen<'_, B>],
        observer: &mut impl Observer<B>,
    ) -> Vec<Result<(), ModelError>> {
        let c = &self.config;
        let extend = |seen: &mut Seen<'_, B>| {
            let (rows, _) = b.shape(seen.states);
            // More rows than the context holds would overwrite each other.
            let skip = rows.saturating_sub(seen.context.capacity());
            seen.context.extend(b, seen.position + skip, rows - skip).map_err(no_memory)?;
            Ok(skip..rows)
        };
        let taken: Vec<Result<Range<usize>, ModelError>> = batch.iter_mut().map(extend).collect();
        let mut there: Vec<_> = batch
            .iter_mut()
            .zip(&taken)
            .filter_map(|(seen, rows)| rows.as_ref().ok().map(|rows| (seen, rows)))
            .collect();
        if !there.is_empty() {
            let states = there.iter().map(|(seen, rows)| b.rows(seen.states, (*rows).clone())).collect();
            let encoded = b.linear(&below(b, states), &self.fc);
            let encoded = b.rms_norm(&encoded, Some(&self.hidden_norm), c.rms_norm_eps); // (rows of all, hidden)
            observer.see(b, Site::Encoder, &encoded);
            let positions = there.iter().flat_map(|(seen, rows)| seen.position + rows.start..seen.position + rows.end);
            let rotation = b.rotation(&positions.collect::<Vec<_>>(), c.head_dim, c.rope_theta);
            for (i, layer) in self.layers.iter().enumerate() {
                let [k, v] = b.linears(&encoded, [&layer.k_proj, &layer.v_proj]);
                let k = layer.turn_keys(b, c, k, &rotation);
                let mut row = 0;
                for (seen, rows) in &mut there {
                    seen.context.write(b, i, seen.position + rows.start, &k, &v, row..row + rows.len());
                    row += rows.len();
                }
            }
        }
        taken.into_iter().map(|taken| taken.map(drop)).collect()
    }

    /// One pass over a block of raw target embeddings (rows, hidden), the anchor's first, which stands at the end of the
    /// context. Returns the normalised hidden states (rows, hidden), ready for the target's `lm_head`.
    pub fn draft(
        &self,
        b: &B,
        context: &mut Context<B>,
        block: B::Tensor,
        observer: &mut impl Observer<B>,
    ) -> Result<B::Tensor, ModelError> {
        self.draft_all(b, &mut [Block { context, embeds: block }], observer).remove(0)
    }

    /// The same over a block of each of several sequences, whose rows share all products and see nothing of each other. A block that
    /// there is no memory for fails alone.
    pub fn draft_all(
        &self,
        b: &B,
        blocks: &mut [Block<'_, B>],
        observer: &mut impl Observer<B>,
    ) -> Vec<Result<B::Tensor, ModelError>> {
        let room = |block: &mut Block<'_, B>| block.context.block(b, b.shape(&block.embeds).0).map_err(no_memory);
        let visible: Vec<Result<Vec<Range<usize>>, ModelError>> = blocks.iter_mut().map(room).collect();
        let there =
            blocks.iter_mut().zip(&visible).filter_map(|(block, visible)| Some((block, visible.as_deref().ok()?)));
        let mut there: Vec<(&mut Block<'_, B>, &[Range<usize>])> = there.collect();
        let drafted = if there.is_empty() { Vec::new() } else { self.forward(b, &mut there, observer) };
        let mut drafted = drafted.into_iter();
        let given = |visible: Result<_, _>| visible.map_or_else(|error| Some(Err(error)), |_| drafted.next().map(Ok));
        visible.into_iter().filter_map(given).collect()
    }

    /// The pass over blocks that there is room for, each with what its rows see.
    fn forward(
        &self,
        b: &B,
        blocks: &mut [(&mut Block<'_, B>, &[Range<usize>])],
        observer: &mut impl Observer<B>,
    ) -> Vec<B::Tensor> {
        let c = &self.config;
        let lengths: Vec<usize> = blocks.iter().map(|(_, visible)| visible.len()).collect();
        let positions = blocks.iter().flat_map(|(block, visible)| (block.context.end()..).take(visible.len()));
        let rotation = b.rotation(&positions.collect::<Vec<_>>(), c.head_dim, c.rope_theta);
        let scale = 1.0 / (c.head_dim as f32).sqrt();
        let mut x = below(b, blocks.iter().map(|(block, _)| block.embeds.clone()).collect()); // (rows of all, hidden)
        for (i, layer) in self.layers.iter().enumerate() {
            let weights = [&layer.q_proj, &layer.k_proj, &layer.v_proj];
            let ([q, k, v], kernels) = layer.around_attention.enter(b, &x, &lengths, weights, observer);
            let k = layer.turn_keys(b, c, k, &rotation);
            let q = b.rope(b.rms_norm_heads(q, c.head_dim, Some(&layer.q_norm), c.rms_norm_eps, 1.0), &rotation);
            let mut row = 0;
            for (block, visible) in &mut *blocks {
                let position = block.context.end();
                block.context.write(b, i, position, &k, &v, row..row + visible.len());
                row += visible.len();
            }
            let sequences: Vec<_> = blocks.iter().map(|(block, visible)| block.context.attended(i, visible)).collect();
            let attended = b.linear(&b.attend(&q, &sequences, scale), &layer.o_proj);
            observer.see(b, Site::AttentionOut(i), &attended);
            x = layer.around_attention.leave(b, x, attended, &lengths, kernels, observer);
            let (out, kernels) = layer.around_mlp.enter_mlp(b, &x, &lengths, &layer.mlp, observer);
            observer.see(b, Site::MlpOut(i), &out);
            x = layer.around_mlp.leave(b, x, out, &lengths, kernels, observer);
            observer.see(b, Site::Layer(i), &x);
        }
        let x = b.rms_norm(&x, Some(&self.norm), c.rms_norm_eps);
        observer.see(b, Site::FinalNorm, &x);
        let mut start = 0;
        let rows = lengths.iter().map(|rows| {
            start += rows;
            b.rows(&x, start - rows..start)
        });
        rows.collect()
    }
}

/// Tensors below each other.
fn below<B: Backend>(b: &B, mut parts: Vec<B::Tensor>) -> B::Tensor {
    match parts.len() {
        1 => parts.remove(0),
        _ => b.concat_rows(&parts.iter().collect::<Vec<_>>()),
    }
}

fn no_memory(cause: BackendError) -> ModelError {
    ModelError::Backend { what: "the drafter's context".into(), cause }
}

struct Layer<B: Backend> {
    around_attention: Around<B>,
    q_proj: B::Weight, // (q_heads * head_dim, hidden)
    k_proj: B::Weight, // (kv_heads * head_dim, hidden)
    v_proj: B::Weight, // (kv_heads * head_dim, hidden)
    o_proj: B::Weight, // (hidden, q_heads * head_dim)
    q_norm: B::Vector, // (head_dim)
    k_norm: B::Vector, // (head_dim)
    around_mlp: Around<B>,
    mlp: Mlp<B>,
}

impl<B: Backend> Layer<B> {
    fn load(backend: &B, all: &Cursor<'_>, number: usize, c: &DFlashConfig) -> Result<Self, ModelError> {
        let (hidden, q, kv) = (c.hidden_size, c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim);
        let at = all.at("layers").at(number);
        let attention = at.at("self_attn");
        Ok(Self {
            around_attention: Around::load(backend, &at, (Sublayer::Attention, number), c)?,
            q_proj: weight(backend, &attention.at("q_proj"), q, hidden)?,
            k_proj: weight(backend, &attention.at("k_proj"), kv, hidden)?,
            v_proj: weight(backend, &attention.at("v_proj"), kv, hidden)?,
            o_proj: weight(backend, &attention.at("o_proj"), hidden, q)?,
            q_norm: norm(backend, &attention.at("q_norm"), c.head_dim)?,
            k_norm: norm(backend, &attention.at("k_norm"), c.head_dim)?,
            around_mlp: Around::load(backend, &at, (Sublayer::Mlp, number), c)?,
            mlp: Mlp::load(backend, &at.at("mlp"), hidden, c.intermediate_size)?,
        })
    }

    /// Keys (rows, kv_heads * head_dim) normalised per head and rotated.
    fn turn_keys(&self, b: &B, c: &DFlashConfig, k: B::Tensor, rotation: &B::Rotation) -> B::Tensor {
        b.rope(b.rms_norm_heads(k, c.head_dim, Some(&self.k_norm), c.rms_norm_eps, 1.0), rotation)
    }
}

/// What the residual stream passes on its way into a sub-layer, and what comes out on its way back: a norm, and convolutions on
/// both sides in DFlash 2.
struct Around<B: Backend> {
    norm: B::Vector, // (hidden)
    eps: f32,
    conv: Option<DynamicConv<B>>,
}

impl<B: Backend> Around<B> {
    fn load(backend: &B, layer: &Cursor<'_>, site: (Sublayer, usize), c: &DFlashConfig) -> Result<Self, ModelError> {
        let (norm_at, conv_at) = match site {
            (Sublayer::Attention, _) => ("input_layernorm", "attention_conv"),
            (Sublayer::Mlp, _) => ("post_attention_layernorm", "mlp_conv"),
        };
        let conv = |dflash2| DynamicConv::load(backend, &layer.at(conv_at), dflash2, c.hidden_size, site);
        Ok(Self {
            norm: norm(backend, &layer.at(norm_at), c.hidden_size)?,
            eps: c.rms_norm_eps,
            conv: c.dflash2.as_ref().map(conv).transpose()?,
        })
    }

    /// The sub-layer's first products, of x (rows, hidden) with so many rows of each block, and what [`leave`](Self::leave) needs.
    fn enter<const N: usize>(
        &self,
        b: &B,
        x: &B::Tensor,
        blocks: &[usize],
        weights: [&B::Weight; N],
        observer: &mut impl Observer<B>,
    ) -> ([B::Tensor; N], Option<B::Tensor>) {
        match self.input(b, x, blocks, observer) {
            None => (b.norm_linears(x, Some(&self.norm), self.eps, weights), None),
            Some((input, kernels)) => (b.linears(&input, weights), Some(kernels)),
        }
    }

    /// The same with an MLP, whole.
    fn enter_mlp(
        &self,
        b: &B,
        x: &B::Tensor,
        blocks: &[usize],
        mlp: &Mlp<B>,
        observer: &mut impl Observer<B>,
    ) -> (B::Tensor, Option<B::Tensor>) {
        match self.input(b, x, blocks, observer) {
            None => (mlp.forward_normed(b, x, &self.norm, self.eps), None),
            Some((input, kernels)) => (mlp.forward(b, &input), Some(kernels)),
        }
    }

    /// What a convolution makes of the norm of x, where there is one, and the kernels of the other.
    fn input(
        &self,
        b: &B,
        x: &B::Tensor,
        blocks: &[usize],
        observer: &mut impl Observer<B>,
    ) -> Option<(B::Tensor, B::Tensor)> {
        let conv = self.conv.as_ref()?;
        Some(conv.before(b, &b.rms_norm(x, Some(&self.norm), self.eps), blocks, observer))
    }

    /// x plus the sub-layer's output, both (rows, hidden).
    fn leave(
        &self,
        b: &B,
        x: B::Tensor,
        out: B::Tensor,
        blocks: &[usize],
        kernels: Option<B::Tensor>,
        observer: &mut impl Observer<B>,
    ) -> B::Tensor {
        match self.conv.as_ref().zip(kernels) {
            None => b.add(x, &out),
            Some((conv, kernels)) => b.add(x, &conv.behind(b, &out, &kernels, blocks, observer)),
        }
    }
}
