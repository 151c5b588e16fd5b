//! Signs of a conversion that went wrong: statistics of weights that are as trained models never have them.
//!
//! Conversions between programs add one to norms or take it away, reorder the rows of queries and keys, and fold norms into
//! tables. Done twice or not at all it leaves a model that loads, runs at full speed and writes nonsense. What is looked at here is
//! cheap, some tens of megabytes at most, and silent about random weights: a suspicion is worth a warning, not an error.

use crate::EngineError;
use glimmer_checkpoint::Checkpoint;
use glimmer_encoding::{RowSource, Scratch};
use glimmer_model::dflash::DFlashConfig;
use glimmer_model::muse::TextConfig;

/// Layers whose queries and keys are looked at, and heads of each.
const LAYERS: usize = 12;
const HEADS: usize = 4;
/// Rows of the table of embeddings that are looked at.
const TOKENS: usize = 64;

const CENTRED: [&str; 4] =
    ["input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm"];
const PLAIN: [&str; 4] = ["input_layernorm", "post_attention_layernorm", "self_attn.q_norm", "self_attn.k_norm"];

/// What is suspicious about a target.
pub(crate) fn of_target(checkpoint: &Checkpoint, text: &TextConfig) -> Result<Vec<String>, EngineError> {
    let layers = "model.language_model.layers";
    let rotated = text.layers.iter().enumerate().filter(|(_, layer)| layer.rope_theta.is_some()).map(|(i, _)| i);
    let found = [
        norms(checkpoint, layers, text.layers.len(), &CENTRED, 1.0)?.or(final_norm(checkpoint, text.hidden_size)?),
        order(checkpoint, layers, rotated.collect(), text.head_dim)?,
        table(checkpoint, [text.vocab_size, text.hidden_size])?,
    ];
    let label = checkpoint.label();
    Ok(found.into_iter().flatten().map(|what| format!("{label}: {what}")).collect())
}

/// What is suspicious about a drafter.
pub(crate) fn of_drafter(checkpoint: &Checkpoint, config: &DFlashConfig) -> Result<Vec<String>, EngineError> {
    let layers = config.num_hidden_layers;
    let found = [
        norms(checkpoint, "layers", layers, &PLAIN, 0.0)?,
        order(checkpoint, "layers", (0..layers).collect(), config.head_dim)?,
    ];
    let label = checkpoint.label();
    Ok(found
        .into_iter()
        .flatten()
        .map(|what| format!("{label}: {what}; the output stays right, and is slow"))
        .collect())
}

/// How many factors of norms there are, and how many are small.
#[derive(Clone, Copy, Default)]
struct Factors {
    count: usize,
    below_zero: usize,
    below_one: usize,
}

impl Factors {
    fn add(&mut self, weights: &[f32], centre: f32) {
        let below = |limit: f32| weights.iter().filter(|&&w| w + centre < limit).count();
        self.count += weights.len();
        self.below_zero += below(0.0);
        self.below_one += below(1.0);
    }

    /// A factor below zero turns a channel around, which training hardly ever does.
    fn too_small(self) -> bool {
        4 * self.below_zero > self.count
    }
}

fn read(checkpoint: &Checkpoint, name: &str) -> Result<Vec<f32>, EngineError> {
    Ok(checkpoint.read(name)?.view().to_f32())
}

/// Norms of layers multiply with `centre` + w. Factors lie around 1 or, behind a sub-layer, well below it.
fn norms(
    checkpoint: &Checkpoint,
    prefix: &str,
    layers: usize,
    kinds: &[&str],
    centre: f32,
) -> Result<Option<String>, EngineError> {
    let mut all = Factors::default();
    for kind in kinds {
        let mut own = Factors::default();
        for layer in 0..layers {
            own.add(&read(checkpoint, &format!("{prefix}.{layer}.{kind}.weight"))?, centre);
        }
        if own.too_small() {
            return Ok(Some(too_small(kind, own)));
        }
        all = Factors {
            count: all.count + own.count,
            below_zero: all.below_zero + own.below_zero,
            below_one: all.below_one + own.below_one,
        };
    }
    Ok((100 * all.below_one <= all.count).then(|| {
        let form = if centre == 0.0 { "w" } else { "1 + w" };
        format!("norms look as if 1 had been added once too often: of their factors, {form}, none is below 1")
    }))
}

/// The norm behind the last layer is stored as it is, and may have any size.
fn final_norm(checkpoint: &Checkpoint, hidden: usize) -> Result<Option<String>, EngineError> {
    let mut own = Factors::default();
    let weights = checkpoint.at("model.language_model.norm").read("weight", &[hidden])?.view().to_f32();
    own.add(&weights, 0.0);
    Ok(own.too_small().then(|| too_small("norm", own)))
}

fn too_small(kind: &str, factors: Factors) -> String {
    let percent = 100 * factors.below_zero / factors.count;
    format!("norms look as if 1 were missing: {percent} % of the factors of `{kind}` are below 0")
}

/// Whether rows of queries and keys are in the order of llama.cpp, where the two rows that a rotation turns lie side by side.
///
/// Such two are of about one size, since turning makes one of the other. Where rows are in order, those half a head apart are
/// alike (and neighbours as well, as they turn nearly as fast); where they are not, only neighbours are. In random weights
/// none are.
fn order(
    checkpoint: &Checkpoint,
    prefix: &str,
    layers: Vec<usize>,
    head_dim: usize,
) -> Result<Option<String>, EngineError> {
    let (mut apart, mut neighbours) = (Likeness::default(), Likeness::default());
    for layer in layers.iter().step_by(layers.len().div_ceil(LAYERS).max(1)) {
        for part in ["q_proj", "k_proj"] {
            let name = format!("{prefix}.{layer}.self_attn.{part}.weight");
            for sizes in sizes(checkpoint, &name, head_dim)?.chunks_exact(head_dim) {
                let mean = sizes.iter().sum::<f64>() / head_dim as f64;
                let at = |row: usize| sizes[row] - mean;
                for i in 0..head_dim / 2 {
                    apart.add(at(i), at(i + head_dim / 2));
                    neighbours.add(at(2 * i), at(2 * i + 1));
                }
            }
        }
    }
    // By chance, likeness is about 1 / sqrt(pairs).
    let chance = (apart.pairs as f64).sqrt().recip();
    let interleaved = neighbours.share() > (4.0 * chance).max(0.1) && apart.share() < neighbours.share() / 4.0;
    Ok(interleaved.then(|| {
        "rows of q_proj and k_proj look interleaved, as llama.cpp stores them, where halves of heads are expected"
            .into()
    }))
}

/// Logarithms of the lengths of rows, of the first few heads.
fn sizes(checkpoint: &Checkpoint, name: &str, head_dim: usize) -> Result<Vec<f64>, EngineError> {
    let Some(&[rows, cols]) = checkpoint.tensor(name).and_then(|info| info.shape.first_chunk()) else {
        return Ok(Vec::new());
    };
    let source = checkpoint.at("").rows(name, [rows, cols])?;
    let (mut scratch, mut values) = (Scratch::default(), vec![0.0; cols]);
    let view = source.read(0..rows.min(HEADS * head_dim), &mut scratch)?;
    let size = |row: usize| {
        view.encoding().decode_row(view.row(row), &mut values);
        // Rows of zeros have a size too.
        0.5 * (1e-30 + values.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>()).ln()
    };
    Ok((0..view.rows()).map(size).collect())
}

/// How alike pairs of numbers are whose mean is 0: from -1 to 1.
#[derive(Default)]
struct Likeness {
    pairs: usize,
    products: f64,
    squares: f64,
}

impl Likeness {
    fn add(&mut self, a: f64, b: f64) {
        self.pairs += 1;
        self.products += 2.0 * a * b;
        self.squares += a * a + b * b;
    }

    fn share(&self) -> f64 {
        if self.squares > 0.0 { self.products / self.squares } else { 0.0 }
    }
}

/// Whether the norm behind the table of embeddings, which has no weight, was folded into it. The target would not mind, but what
/// a drafter takes are the rows as they were.
fn table(checkpoint: &Checkpoint, shape: [usize; 2]) -> Result<Option<String>, EngineError> {
    let source = checkpoint.at("model.language_model.embed_tokens").rows("weight", shape)?;
    let (mut scratch, mut values) = (Scratch::default(), vec![0.0; shape[1]]);
    let (mut normal, mut count) = (0, 0);
    for row in (0..shape[0]).step_by(shape[0].div_ceil(TOKENS).max(1)) {
        let view = source.read(row..row + 1, &mut scratch)?;
        view.encoding().decode_row(view.row(0), &mut values);
        let mean = values.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / shape[1] as f64;
        normal += usize::from((0.95..1.05).contains(&mean));
        count += 1;
    }
    Ok((10 * normal > 9 * count).then(|| {
        "rows of embed_tokens are normalised already, as if the norm behind them were left out: drafters expect them as they were"
            .into()
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn likeness_is_between_minus_one_and_one() {
        let of = |pairs: &[(f64, f64)]| {
            let mut likeness = Likeness::default();
            pairs.iter().for_each(|&(a, b)| likeness.add(a, b));
            likeness.share()
        };
        assert_eq!(of(&[(1.0, 1.0), (-3.0, -3.0)]), 1.0);
        assert_eq!(of(&[(1.0, -1.0), (-3.0, 3.0)]), -1.0);
        assert_eq!(of(&[(1.0, 0.0), (0.0, 2.0)]), 0.0);
        assert_eq!(of(&[]), 0.0);
    }
}
