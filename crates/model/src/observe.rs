//! Looking into a forward pass: what a drafter taps, what tests compare, where a NaN arose.

use glimmer_backend::Backend;

/// A place in a forward pass where a tensor can be seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Site {
    /// The embedded rows that enter the first layer.
    Embed,
    /// A drafter's context rows after its encoder.
    Encoder,
    /// A layer's input after its first norm.
    InputNorm(usize),
    /// A layer's attention after `o_proj`.
    AttentionOut(usize),
    /// The same after its post norm, as added to the residual stream.
    PostAttentionNorm(usize),
    /// A layer's MLP after `down_proj`, before its post norm.
    MlpOut(usize),
    /// A sub-layer's input after its norm, where a convolution follows.
    ConvNorm(Sublayer, usize),
    /// The kernels of the convolutions around a sub-layer, of every row.
    ConvKernels(Sublayer, usize),
    /// A sub-layer's input after the convolution before it.
    ConvBefore(Sublayer, usize),
    /// A sub-layer's output after the convolution behind it.
    ConvBehind(Sublayer, usize),
    /// The residual stream after a layer.
    Layer(usize),
    /// After the final norm.
    FinalNorm,
}

/// A part of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sublayer {
    /// Attention.
    Attention,
    /// The MLP.
    Mlp,
}

/// Sees tensors as a forward pass makes them.
pub trait Observer<B: Backend> {
    /// Called once per site and pass.
    fn see(&mut self, backend: &B, site: Site, x: &B::Tensor);

    /// Called instead where a verb keeps its tensor inside: `x` makes it once more, for those who want to see it.
    fn see_inside(&mut self, _: &B, _: Site, _: impl FnOnce() -> B::Tensor) {}
}

/// Sees nothing, at no cost.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unobserved;

impl<B: Backend> Observer<B> for Unobserved {
    #[inline(always)]
    fn see(&mut self, _: &B, _: Site, _: &B::Tensor) {}
}

/// Keeps the residual stream after chosen layers.
pub struct Taps<'a, B: Backend> {
    layers: &'a [usize],
    seen: Vec<Option<B::Tensor>>,
}

impl<'a, B: Backend> Taps<'a, B> {
    /// Taps after `layers`, in the order in which [`concat`](Self::concat) puts them side by side.
    pub fn new(layers: &'a [usize]) -> Self {
        Self { layers, seen: vec![None; layers.len()] }
    }

    /// The tapped states side by side: (rows, layers * hidden).
    ///
    /// # Panics
    /// If no forward pass went by.
    pub fn concat(&self, backend: &B) -> B::Tensor {
        let parts: Vec<&B::Tensor> = self.seen.iter().flatten().collect();
        assert_eq!(parts.len(), self.layers.len(), "every tapped layer was seen");
        backend.concat_cols(&parts)
    }
}

impl<B: Backend> Observer<B> for Taps<'_, B> {
    fn see(&mut self, _: &B, site: Site, x: &B::Tensor) {
        if let Site::Layer(layer) = site {
            for (kept, _) in self.seen.iter_mut().zip(self.layers).filter(|(_, tapped)| **tapped == layer) {
                *kept = Some(x.clone());
            }
        }
    }
}

/// Finds the first layer and row whose residual stream is not finite.
#[derive(Clone, Copy, Debug, Default)]
pub struct FirstNonFinite {
    /// Layer (`None`: the embedding) and row in the pass.
    pub found: Option<(Option<usize>, usize)>,
}

impl<B: Backend> Observer<B> for FirstNonFinite {
    fn see(&mut self, backend: &B, site: Site, x: &B::Tensor) {
        let layer = match site {
            Site::Embed => None,
            Site::Layer(layer) => Some(layer),
            _ => return,
        };
        if self.found.is_none() {
            let (_, cols) = backend.shape(x);
            let bad = backend.read(x).iter().position(|x| !x.is_finite());
            self.found = bad.map(|at| (layer, at / cols));
        }
    }
}
