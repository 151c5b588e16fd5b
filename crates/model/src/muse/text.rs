//! The text tower: token ids to logits.

use super::{MuseConfig, TextConfig};
use crate::ModelError;
use crate::kv_cache::{CannotTruncate, KvCache};
use crate::layers::{Mlp, centred_norm, counted, norm, table, weight};
use crate::observe::{Observer, Site};
use glimmer_backend::{Backend, BackendError, KvTypes};
use glimmer_checkpoint::{Checkpoint, Cursor};
use std::ops::Range;

/// The text tower's weights.
pub struct MuseText<B: Backend> {
    config: TextConfig,
    embed_tokens: B::Table, // (vocab, hidden)
    layers: Vec<DecoderLayer<B>>,
    norm: B::Vector,    // (hidden)
    lm_head: B::Weight, // (vocab, hidden)
}

/// Keys and values of every layer of one sequence.
pub struct TextCache<B: Backend> {
    layers: Vec<KvCache<B>>,
}

/// One sequence of a pass, and what is appended to it.
pub struct Rows<'a, B: Backend> {
    /// Its keys and values.
    pub cache: &'a mut TextCache<B>,
    /// The tokens.
    pub ids: &'a [u32],
}

fn no_memory(cause: BackendError) -> ModelError {
    ModelError::Backend { what: "the context".into(), cause }
}

impl<B: Backend> MuseText<B> {
    /// Loads the text tower. The checkpoint has been [accounted for](super::account). `loaded` is told the bytes of
    /// weights read so far, as they come in.
    pub fn load(
        backend: &B,
        checkpoint: &Checkpoint,
        config: &MuseConfig,
        loaded: &mut (dyn FnMut(u64) + Send),
    ) -> Result<Self, ModelError> {
        let config = config.text.clone();
        let (vocab, hidden) = (config.vocab_size, config.hidden_size);
        let watch = counted(loaded);
        let all = checkpoint.at("").watched(&watch);
        let model = all.at("model.language_model");
        let embed_tokens = table(backend, &model.at("embed_tokens"), vocab, hidden)?;
        let lm_head = weight(backend, &all.at("lm_head"), vocab, hidden)?;
        let norm = norm(backend, &model.at("norm"), hidden)?;
        let layer = |i| DecoderLayer::load(backend, &model.at("layers").at(i), &config);
        let layers = (0..config.layers.len()).map(layer).collect::<Result<_, _>>()?;
        Ok(Self { config, embed_tokens, layers, norm, lm_head })
    }

    /// The configuration it was loaded with.
    pub fn config(&self) -> &TextConfig {
        &self.config
    }

    /// An empty cache for up to `context` positions, of which at most `widest` are added in one pass.
    pub fn cache(&self, context: usize, widest: usize, types: KvTypes) -> TextCache<B> {
        let c = &self.config;
        let spec = c.pages(types);
        TextCache { layers: c.layers.iter().map(|layer| KvCache::new(layer.span, context, widest, spec)).collect() }
    }

    /// Takes the first `len` positions as given, their keys and values drawn from `values`: for timing, where what they say does
    /// not matter. What the cache held is lost.
    pub fn fill(
        &self,
        b: &B,
        cache: &mut TextCache<B>,
        len: usize,
        values: &mut dyn FnMut() -> f32,
    ) -> Result<(), ModelError> {
        let width = self.config.num_key_value_heads * self.config.head_dim;
        cache.layers.iter_mut().try_for_each(|layer| layer.fill(b, len, width, values)).map_err(no_memory)
    }

    /// Appends `ids` to one sequence and returns the residual stream after the last layer: (ids, hidden).
    pub fn forward(
        &self,
        b: &B,
        cache: &mut TextCache<B>,
        ids: &[u32],
        observer: &mut impl Observer<B>,
    ) -> Result<B::Tensor, ModelError> {
        self.forward_all(b, &mut [Rows { cache, ids }], observer)
    }

    /// Appends to each sequence, in one pass, and returns the residual stream after the last layer of all rows, one sequence's after
    /// the other's: (rows, hidden). Memory for keys and values is taken before anything is computed; what fails changes nothing.
    pub fn forward_all(
        &self,
        b: &B,
        batch: &mut [Rows<'_, B>],
        observer: &mut impl Observer<B>,
    ) -> Result<B::Tensor, ModelError> {
        let c = &self.config;
        for Rows { cache, ids } in &mut *batch {
            cache.layers.iter_mut().try_for_each(|layer| layer.reserve(b, ids.len())).map_err(no_memory)?;
        }
        let ids: Vec<u32> = batch.iter().flat_map(|rows| rows.ids).copied().collect();
        let positions: Vec<usize> =
            batch.iter().flat_map(|rows| rows.cache.len()..rows.cache.len() + rows.ids.len()).collect();
        let mut x = b.rms_norm(&self.embed_raw(b, &ids), None, c.rms_norm_eps); // (rows, hidden)
        observer.see(b, Site::Embed, &x);
        let mut rotation: Option<(f64, B::Rotation)> = None;
        for (i, layer) in self.layers.iter().enumerate() {
            if let Some(theta) = c.layers[i].rope_theta
                && rotation.as_ref().is_none_or(|(had, _)| *had != theta)
            {
                rotation = Some((theta, b.rotation(&positions, c.head_dim, theta)));
            }
            let rotation = rotation.as_ref().filter(|_| c.layers[i].rope_theta.is_some()).map(|(_, r)| r);
            x = layer.forward(b, c, i, x, rotation, batch, observer);
            observer.see(b, Site::Layer(i), &x);
        }
        Ok(x)
    }

    /// Logits (rows, vocab) of the given rows of what [`forward`](Self::forward) returned.
    pub fn logits(&self, b: &B, x: &B::Tensor, rows: Range<usize>, observer: &mut impl Observer<B>) -> B::Tensor {
        let c = &self.config;
        let x = b.rms_norm(&b.rows(x, rows), Some(&self.norm), c.rms_norm_eps);
        observer.see(b, Site::FinalNorm, &x);
        b.softcap(self.bare_logits(b, &x), c.output_multiplier, c.final_logit_softcapping)
    }

    /// Embedding rows as stored, without the norm: (ids, hidden). What drafters take.
    pub fn embed_raw(&self, b: &B, ids: &[u32]) -> B::Tensor {
        b.embed(&self.embed_tokens, ids)
    }

    /// `lm_head` alone, of rows that have been normalised: (rows, vocab). What drafters share.
    pub fn bare_logits(&self, b: &B, normed: &B::Tensor) -> B::Tensor {
        b.linear(normed, &self.lm_head)
    }
}

impl<B: Backend> TextCache<B> {
    /// The cache of each layer.
    pub fn layers(&self) -> &[KvCache<B>] {
        &self.layers
    }

    /// The same, to be changed; all have to stay equally long.
    pub fn layers_mut(&mut self) -> &mut [KvCache<B>] {
        &mut self.layers
    }

    /// Positions held.
    pub fn len(&self) -> usize {
        self.layers.first().map_or(0, KvCache::len)
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Forgets every position from `len` on; all layers or, where one cannot, none.
    pub fn truncate(&mut self, len: usize) -> Result<(), CannotTruncate> {
        let shortest = self.layers.iter().map(KvCache::shortest).max().unwrap_or(0);
        if len > 0 && len < shortest {
            return Err(CannotTruncate { shortest });
        }
        self.layers.iter_mut().try_for_each(|layer| layer.truncate(len))
    }
}

struct DecoderLayer<B: Backend> {
    input_layernorm: B::Vector,
    self_attn: Attention<B>,
    post_attention_layernorm: B::Vector,
    pre_feedforward_layernorm: B::Vector,
    mlp: Mlp<B>,
    post_feedforward_layernorm: B::Vector,
}

impl<B: Backend> DecoderLayer<B> {
    fn load(backend: &B, at: &Cursor<'_>, c: &TextConfig) -> Result<Self, ModelError> {
        let norm = |name: &str| centred_norm(backend, &at.at(name), c.hidden_size);
        Ok(Self {
            input_layernorm: norm("input_layernorm")?,
            self_attn: Attention::load(backend, &at.at("self_attn"), c)?,
            post_attention_layernorm: norm("post_attention_layernorm")?,
            pre_feedforward_layernorm: norm("pre_feedforward_layernorm")?,
            mlp: Mlp::load(backend, &at.at("mlp"), c.hidden_size, c.intermediate_size)?,
            post_feedforward_layernorm: norm("post_feedforward_layernorm")?,
        })
    }

    #[expect(clippy::too_many_arguments, reason = "a layer's whole context, once")]
    fn forward(
        &self,
        b: &B,
        c: &TextConfig,
        layer: usize,
        x: B::Tensor, // (rows, hidden)
        rotation: Option<&B::Rotation>,
        batch: &mut [Rows<'_, B>],
        observer: &mut impl Observer<B>,
    ) -> B::Tensor {
        let norm = Some(&self.input_layernorm);
        observer.see_inside(b, Site::InputNorm(layer), || b.rms_norm(&x, norm, c.rms_norm_eps));
        let caches = batch.iter_mut().map(|rows| (rows.ids.len(), &mut rows.cache.layers[layer]));
        let attention = self.self_attn.forward(b, c, &x, norm, rotation, caches);
        observer.see(b, Site::AttentionOut(layer), &attention);
        let norm = Some(&self.post_attention_layernorm);
        observer.see_inside(b, Site::PostAttentionNorm(layer), || b.rms_norm(&attention, norm, c.post_norm_eps));
        let x = b.add_norm(x, attention, norm, c.post_norm_eps);

        let mlp = self.mlp.forward_normed(b, &x, &self.pre_feedforward_layernorm, c.rms_norm_eps);
        observer.see(b, Site::MlpOut(layer), &mlp);
        b.add_norm(x, mlp, Some(&self.post_feedforward_layernorm), c.post_norm_eps)
    }
}

struct Attention<B: Backend> {
    q_proj: B::Weight,    // (q_heads * head_dim, hidden)
    k_proj: B::Weight,    // (kv_heads * head_dim, hidden)
    v_proj: B::Weight,    // (kv_heads * head_dim, hidden)
    gate_proj: B::Weight, // (q_heads * head_dim, hidden)
    o_proj: B::Weight,    // (hidden, q_heads * head_dim)
}

impl<B: Backend> Attention<B> {
    fn load(backend: &B, at: &Cursor<'_>, c: &TextConfig) -> Result<Self, ModelError> {
        let (q, kv) = (c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim);
        Ok(Self {
            q_proj: weight(backend, &at.at("q_proj"), q, c.hidden_size)?,
            k_proj: weight(backend, &at.at("k_proj"), kv, c.hidden_size)?,
            v_proj: weight(backend, &at.at("v_proj"), kv, c.hidden_size)?,
            gate_proj: weight(backend, &at.at("gate_proj"), q, c.hidden_size)?,
            o_proj: weight(backend, &at.at("o_proj"), c.hidden_size, q)?,
        })
    }

    fn forward<'a>(
        &self,
        b: &B,
        c: &TextConfig,
        x: &B::Tensor, // (rows, hidden)
        norm: Option<&B::Vector>,
        rotation: Option<&B::Rotation>,
        caches: impl Iterator<Item = (usize, &'a mut KvCache<B>)>,
    ) -> B::Tensor {
        let head_dim = c.head_dim;
        let weights = [&self.q_proj, &self.k_proj, &self.v_proj, &self.gate_proj];
        let [q, k, v, gate] = b.norm_linears(x, norm, c.rms_norm_eps, weights);
        // Queries and keys are normalised per head without a weight, queries scaled, both before the rotation.
        let q = b.rms_norm_heads(q, head_dim, None, c.rms_norm_eps, c.qk_scale_factor);
        let k = b.rms_norm_heads(k, head_dim, None, c.rms_norm_eps, 1.0);
        let (q, k) = match rotation {
            Some(rotation) => (b.rope(q, rotation), b.rope(k, rotation)),
            None => (q, k),
        };
        let scale = 1.0 / (head_dim as f32).sqrt();
        let mut row = 0;
        let caches: Vec<&KvCache<B>> = caches
            .map(|(rows, kv)| {
                kv.write(b, &k, &v, row..row + rows);
                row += rows;
                &*kv
            })
            .collect();
        let sequences: Vec<_> = caches.iter().map(|kv| kv.attended()).collect();
        let attended = b.attend(&q, &sequences, scale); // (rows, q_heads * head_dim)
        b.gate_linear(attended, &gate, &self.o_proj)
    }
}
