//! DFlash v1, `MuseGlimmerAssistantModel`: a few bidirectional layers over [anchor, mask, mask, ...] that also see the
//! target's tapped states as context keys and values.

use super::DFlashConfig;
use super::context::Context;
use crate::ModelError;
use crate::layers::{Mlp, counted, norm, weight};
use crate::observe::{Observer, Site};
use glimmer_backend::Backend;
use glimmer_checkpoint::{Checkpoint, Cursor};

/// The drafter's weights.
pub struct DFlashV1<B: Backend> {
    config: DFlashConfig,
    fc: B::Weight,          // (hidden, taps * hidden)
    hidden_norm: B::Vector, // (hidden)
    layers: Vec<Layer<B>>,
    norm: B::Vector, // (hidden)
}

/// What the drafter remembers of one sequence.
pub type DFlashV1Context<B> = Context<B>;

impl<B: Backend> DFlashV1<B> {
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
        let encoder = all.at("encoder");
        let layers = (0..config.num_hidden_layers)
            .map(|i| Layer::load(backend, &all.at("layers").at(i), &config))
            .collect::<Result<_, _>>()?;
        Ok(Self {
            fc: weight(backend, &encoder.at("fc"), hidden, config.target_layer_ids.len() * hidden)?,
            hidden_norm: norm(backend, &encoder.at("output_norm_enc"), hidden)?,
            layers,
            norm: norm(backend, &all.at("norm"), hidden)?,
            config,
        })
    }

    /// The configuration it was loaded with.
    pub fn config(&self) -> &DFlashConfig {
        &self.config
    }

    /// An empty context.
    pub fn context(&self, backend: &B) -> Result<Context<B>, ModelError> {
        let c = &self.config;
        Context::new(backend, c.num_hidden_layers, c.sliding_window, c.block_size, c.num_key_value_heads, c.head_dim)
            .map_err(|cause| ModelError::Backend { what: "the drafter's context".into(), cause })
    }

    /// Adds the target's tapped states (rows, taps * hidden) of verified positions from `position` on.
    ///
    /// Context rows are encoded once and go un-normed into every layer's keys and values.
    pub fn observe(
        &self,
        b: &B,
        context: &mut Context<B>,
        states: &B::Tensor,
        position: usize,
        observer: &mut impl Observer<B>,
    ) {
        let c = &self.config;
        let (rows, _) = b.shape(states);
        // More rows than the context holds would overwrite each other.
        let skip = rows.saturating_sub(c.sliding_window + c.block_size);
        let (states, position, rows) = (b.rows(states, skip..rows), position + skip, rows - skip);
        let encoded = b.rms_norm(&b.linear(&states, &self.fc), Some(&self.hidden_norm), c.rms_norm_eps);
        observer.see(b, Site::Encoder, &encoded);
        let rotation = b.rotation(position..position + rows, c.head_dim, c.rope_theta);
        context.extend(position, rows);
        for (i, layer) in self.layers.iter().enumerate() {
            let [k, v] = b.linears(&encoded, [&layer.k_proj, &layer.v_proj]);
            let k = layer.turn_keys(b, c, k, &rotation);
            context.write(b, i, position, &k, &v);
        }
    }

    /// One pass over a block of raw target embeddings (rows, hidden), the anchor's first, which stands at the end of the
    /// context. Returns the normalised hidden states (rows, hidden), ready for the target's `lm_head`.
    pub fn draft(
        &self,
        b: &B,
        context: &mut Context<B>,
        block: B::Tensor,
        observer: &mut impl Observer<B>,
    ) -> B::Tensor {
        let c = &self.config;
        let (rows, _) = b.shape(&block);
        let position = context.end();
        let rotation = b.rotation(position..position + rows, c.head_dim, c.rope_theta);
        let visible = context.visible(rows);
        let scale = 1.0 / (c.head_dim as f32).sqrt();
        let mut x = block;
        for (i, layer) in self.layers.iter().enumerate() {
            let weights = [&layer.q_proj, &layer.k_proj, &layer.v_proj];
            let [q, k, v] = b.norm_linears(&x, Some(&layer.input_layernorm), c.rms_norm_eps, weights);
            let k = layer.turn_keys(b, c, k, &rotation);
            context.write(b, i, position, &k, &v);
            let q = b.rope(b.rms_norm_heads(q, c.head_dim, Some(&layer.q_norm), c.rms_norm_eps, 1.0), &rotation);
            let attended = context.attend(b, i, &q, &visible, scale);
            x = b.add(x, &b.linear(&attended, &layer.o_proj));
            let mlp = layer.mlp.forward(b, &x, &layer.post_attention_layernorm, c.rms_norm_eps);
            x = b.add(x, &mlp);
            observer.see(b, Site::Layer(i), &x);
        }
        let x = b.rms_norm(&x, Some(&self.norm), c.rms_norm_eps);
        observer.see(b, Site::FinalNorm, &x);
        x
    }
}

struct Layer<B: Backend> {
    input_layernorm: B::Vector,
    q_proj: B::Weight, // (q_heads * head_dim, hidden)
    k_proj: B::Weight, // (kv_heads * head_dim, hidden)
    v_proj: B::Weight, // (kv_heads * head_dim, hidden)
    o_proj: B::Weight, // (hidden, q_heads * head_dim)
    q_norm: B::Vector, // (head_dim)
    k_norm: B::Vector, // (head_dim)
    post_attention_layernorm: B::Vector,
    mlp: Mlp<B>,
}

impl<B: Backend> Layer<B> {
    fn load(backend: &B, at: &Cursor<'_>, c: &DFlashConfig) -> Result<Self, ModelError> {
        let (hidden, q, kv) = (c.hidden_size, c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim);
        let attention = at.at("self_attn");
        Ok(Self {
            input_layernorm: norm(backend, &at.at("input_layernorm"), hidden)?,
            q_proj: weight(backend, &attention.at("q_proj"), q, hidden)?,
            k_proj: weight(backend, &attention.at("k_proj"), kv, hidden)?,
            v_proj: weight(backend, &attention.at("v_proj"), kv, hidden)?,
            o_proj: weight(backend, &attention.at("o_proj"), hidden, q)?,
            q_norm: norm(backend, &attention.at("q_norm"), c.head_dim)?,
            k_norm: norm(backend, &attention.at("k_norm"), c.head_dim)?,
            post_attention_layernorm: norm(backend, &at.at("post_attention_layernorm"), hidden)?,
            mlp: Mlp::load(backend, &at.at("mlp"), hidden, c.intermediate_size)?,
        })
    }

    /// Keys (rows, kv_heads * head_dim) normalised per head and rotated.
    fn turn_keys(&self, b: &B, c: &DFlashConfig, k: B::Tensor, rotation: &B::Rotation) -> B::Tensor {
        b.rope(b.rms_norm_heads(k, c.head_dim, Some(&self.k_norm), c.rms_norm_eps, 1.0), rotation)
    }
}
