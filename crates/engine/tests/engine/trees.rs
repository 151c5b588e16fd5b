//! What a tree of candidates would add to a chain of proposals: a measurement.
//!
//! A candidate is accepted when it equals the target's own draw, and draws depend on positions alone. So whatever is verified, the
//! text is the same, and a branch is accepted as far as it spells that text: trees are tried against it, without another pass.

use crate::support::{Pair, fresh, greedy, load, request, tower};
use glimmer_backend::{Backend, CpuBackend, CpuOptions, KvType, KvTypes};
use glimmer_engine::sampling::{Chain, Noise, SHARPNESS, Sampling};
use glimmer_engine::{Engine, NanoDrafter, Source};
use glimmer_model::dflash::{DFlash, DFlashConfig};
use glimmer_model::muse::MuseText;
use glimmer_model::observe::{Taps, Unobserved};
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;

/// Tokens that each sequence is followed for, and the widest block.
const TOKENS: usize = 100;
const WIDEST: usize = 16;
/// Candidates of a position, and logits that are looked at for them.
const RANKS: usize = 4;
const LOGITS: usize = 64;
/// Seconds of a pass over so many rows, in passes over one: 16 GB of Q4_K on two cores of a Zen 4.
const VERIFY: [(usize, f64); 9] =
    [(1, 1.0), (2, 1.02), (3, 1.04), (4, 1.06), (5, 1.08), (6, 1.2), (7, 1.35), (8, 1.5), (16, 3.1)];
const DRAFT: f64 = 0.12;

fn seconds(rows: usize) -> f64 {
    let after = VERIFY.iter().position(|&(known, _)| known >= rows).unwrap();
    let ((r1, t1), (r0, t0)) = (VERIFY[after], VERIFY[after.saturating_sub(1)]);
    let share = if r1 == r0 { 1.0 } else { (rows - r0) as f64 / (r1 - r0) as f64 };
    DRAFT + t0 + share * (t1 - t0)
}

struct Drafting {
    b: CpuBackend,
    target: MuseText<CpuBackend>,
    drafter: DFlash<CpuBackend>,
    /// How much of its logits the target says: what a better drafter might be like.
    told: f32,
}

impl Drafting {
    fn new(pair: Pair, told: f32) -> Self {
        let b = CpuBackend::new(CpuOptions { threads: Some(1), ..CpuOptions::default() }).unwrap();
        let target = tower(&b, &Source::Nano);
        let source = if pair == Pair::Nano { NanoDrafter::Assistant } else { NanoDrafter::DFlash2 };
        let checkpoint = Source::NanoDrafter(source).open_drafter().unwrap();
        let config = DFlashConfig::bind(&checkpoint, target.config(), "nano").unwrap();
        let drafter = DFlash::load(&b, &checkpoint, config, &mut |_| {}).unwrap();
        Self { b, target, drafter, told }
    }

    /// The blocks of `width` rows whose anchors are the tokens of `text` from `start` on, `TOKENS` of them.
    fn blocks(self: &Rc<Self>, text: &[u32], start: usize, width: usize, sampling: &Sampling) -> Vec<Block> {
        let (b, config) = (&self.b, self.drafter.config());
        let mut cache = self.target.cache(text.len(), text.len(), KvTypes::both(KvType::F32));
        let mut taps = Taps::new(&config.target_layer_ids);
        let x = self.target.forward(b, &mut cache, text, &mut taps).unwrap();
        let truth = b.read(&self.target.logits(b, &x, 0..text.len(), &mut Unobserved));
        let states = taps.concat(b);
        let mut context = self.drafter.context();
        let mut seen = 0;
        let block = |position: usize| {
            let new = b.rows(&states, seen..position);
            self.drafter.observe(b, &mut context, &new, seen, &mut Unobserved).unwrap();
            seen = position;
            let mut ids = vec![config.mask_token_id; width];
            ids[0] = text[position];
            let hidden = self.drafter.draft(b, &mut context, self.target.embed_raw(b, &ids), &mut Unobserved).unwrap();
            let proposing = b.rows(&hidden, 1..width);
            let c = self.target.config();
            let logits = self.target.bare_logits(b, &proposing);
            let mut logits = b.read(&b.softcap(logits, c.output_multiplier, c.final_logit_softcapping));
            let truth = &truth[position * c.vocab_size..];
            if self.told > 0.0 {
                logits.iter_mut().zip(truth).for_each(|(logit, truth)| *logit += self.told * (truth - *logit));
            }
            Block {
                from: Rc::clone(self),
                sampling: sampling.clone(),
                position,
                logits: logits.chunks_exact(c.vocab_size).map(best).collect(),
                codes: self.drafter.selector().map(|selector| selector.codes(b, &proposing)),
                text: text[position..position + WIDEST + 1].to_vec(),
                known: RefCell::default(),
            }
        };
        (start..start + TOKENS).map(block).collect()
    }
}

/// The largest logits with their tokens, largest first, then by id.
fn best(logits: &[f32]) -> Vec<(u32, f32)> {
    let mut all: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    all.truncate(LOGITS);
    all
}

#[derive(Clone, Copy)]
struct Candidate {
    token: u32,
    /// The softmax of the scores by which candidates are ordered, the noise among them.
    share: f64,
}

type Candidates = Rc<Vec<Candidate>>;

/// What the drafter says of the rows behind an anchor, and the text from the anchor on.
struct Block {
    from: Rc<Drafting>,
    sampling: Sampling,
    position: usize,
    logits: Vec<Vec<(u32, f32)>>,
    codes: Option<Vec<Vec<f32>>>,
    text: Vec<u32>,
    known: RefCell<HashMap<(usize, u32), Candidates>>,
}

impl Block {
    /// The candidates of a row, best first, where `previous` stands before it: the first is what a chain proposes.
    fn candidates(&self, row: usize, previous: u32) -> Candidates {
        let key = (row, if self.codes.is_some() { previous } else { 0 });
        let known = self.known.borrow().get(&key).cloned();
        known.unwrap_or_else(|| {
            let found = Rc::new(self.find(row, previous));
            self.known.borrow_mut().insert(key, Rc::clone(&found));
            found
        })
    }

    fn find(&self, row: usize, previous: u32) -> Vec<Candidate> {
        let mut logits = self.logits[row].clone();
        if let (Some(codes), Some(selector)) = (&self.codes, self.from.drafter.selector()) {
            logits.truncate(selector.top_k());
            let tokens: Vec<u32> = logits.iter().map(|(token, _)| *token).collect();
            let edges = selector.edges(&self.from.b, previous, &codes[row], &tokens);
            logits.iter_mut().zip(edges).for_each(|((_, logit), edge)| *logit += edge);
        }
        let mut scores: Vec<(u32, f64)> = match self.sampling.temperature == 0.0 {
            true => logits.iter().map(|&(token, logit)| (token, f64::from(logit))).collect(),
            false => {
                let vocab_size = self.from.target.config().vocab_size;
                let mut all = vec![f32::NEG_INFINITY; vocab_size];
                logits.iter().for_each(|&(token, logit)| all[token as usize] = logit);
                let kept = Chain::new(self.sampling.clone(), vocab_size).unwrap().distribution(&all).unwrap();
                let noise = Noise::new(self.sampling.seed, self.sampling.sample_index);
                let at = (self.position + 1 + row) as u64;
                kept.iter().map(|&(token, q)| (token, SHARPNESS * q.ln() + noise.gumbel(token, at))).collect()
            }
        };
        scores.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        let weight = |score: f64| (score - scores[0].1).exp();
        let total: f64 = scores.iter().map(|&(_, score)| weight(score)).sum();
        scores.iter().take(RANKS).map(|&(token, score)| Candidate { token, share: weight(score) / total }).collect()
    }

    /// The rank of the text's own token at a row, if it is among the candidates.
    fn rank(&self, row: usize) -> Option<usize> {
        self.candidates(row, self.text[row]).iter().position(|candidate| candidate.token == self.text[row + 1])
    }

    /// Rows from `row` on whose first candidate the text goes on with.
    fn agreed(&self, row: usize) -> usize {
        (row..self.logits.len()).take_while(|&row| self.rank(row) == Some(0)).count()
    }

    /// How many tokens a round gives that verifies this tree.
    fn tokens(&self, tree: &[Node]) -> usize {
        let mut at = 0;
        let child = |at: usize, token: u32| tree.iter().position(|node| node.parent == Some(at) && node.token == token);
        while let Some(next) = child(at, self.text[tree[at].depth + 1]) {
            at = next;
        }
        tree[at].depth + 1
    }
}

/// How often a candidate is accepted where the one before it was, by what can be known before.
#[derive(Default)]
struct Odds(HashMap<(bool, usize, usize, usize), (f64, f64)>);

impl Odds {
    fn key(strayed: bool, rank: usize, share: f64, depth: usize) -> (bool, usize, usize, usize) {
        // Even in the logit, finer than by tenths where it matters.
        let logit = (share.max(1e-9) / (1.0 - share).max(1e-9)).ln();
        (strayed, rank, ((logit + 7.0).max(0.0) as usize).min(14), depth.min(3))
    }

    fn learn(&mut self, block: &Block) {
        let mut strayed = false;
        for row in 0..block.logits.len() {
            let found = block.rank(row);
            for (rank, candidate) in block.candidates(row, block.text[row]).iter().enumerate() {
                let (hits, tries) = self.0.entry(Self::key(strayed, rank, candidate.share, row)).or_default();
                *hits += f64::from(found == Some(rank));
                *tries += 1.0;
            }
            match found {
                None => return,
                Some(rank) => strayed |= rank > 0,
            }
        }
    }

    fn of(&self, strayed: bool, rank: usize, share: f64, depth: usize) -> f64 {
        let (hits, tries) = self.0.get(&Self::key(strayed, rank, share, depth)).copied().unwrap_or_default();
        (hits + 2.0 * share) / (tries + 2.0)
    }
}

/// A row of a tree; the anchor is the first.
#[derive(Clone, Copy)]
struct Node {
    parent: Option<usize>,
    depth: usize,
    rank: usize,
    token: u32,
    /// It or one before it is not a first candidate.
    strayed: bool,
    /// How likely the target is held to get here.
    likely: f64,
}

/// What may grow beside the chain of first candidates.
#[derive(Clone, Copy, PartialEq)]
enum Shape {
    Chain,
    /// So many other candidates, which nothing follows; as many as are likely enough.
    Leaves(Option<usize>),
    /// One other candidate, and first candidates behind it.
    Branch,
    Any,
}

const SHAPES: [(&str, Shape); 7] = [
    ("chain", Shape::Chain),
    ("1 leaf", Shape::Leaves(Some(1))),
    ("2 leaves", Shape::Leaves(Some(2))),
    ("3 leaves", Shape::Leaves(Some(3))),
    ("leaves", Shape::Leaves(None)),
    ("branch", Shape::Branch),
    ("any", Shape::Any),
];

impl Shape {
    fn allows(self, tree: &[Node], node: &Node, rows: usize) -> bool {
        let strays = tree.iter().filter(|other| other.strayed).count();
        let first = node.rank == 0;
        match self {
            Shape::Any => true,
            Shape::Chain => first,
            Shape::Leaves(None) => !node.strayed || !first,
            Shape::Leaves(Some(leaves)) if node.strayed => !first && strays < leaves,
            Shape::Leaves(Some(leaves)) => tree.len() - strays < rows - leaves,
            Shape::Branch => first || (node.strayed && strays == 0),
        }
    }

    /// The tree of at most so many rows, the likeliest first.
    fn grow(self, block: &Block, odds: &Odds, rows: usize) -> Vec<Node> {
        let anchor = Node { parent: None, depth: 0, rank: 0, token: block.text[0], strayed: false, likely: 1.0 };
        let child = |tree: &[Node], at: usize, rank: usize| {
            let parent = tree[at];
            let row = parent.depth;
            let candidates = (row < block.logits.len()).then(|| block.candidates(row, parent.token))?;
            let &Candidate { token, share } = candidates.get(rank)?;
            let strayed = parent.strayed || rank > 0;
            let likely = parent.likely * odds.of(parent.strayed, rank, share, row);
            Some(Node { parent: Some(at), depth: row + 1, rank, token, strayed, likely })
        };
        let mut tree = vec![anchor];
        let mut open: Vec<Node> = child(&tree, 0, 0).into_iter().collect();
        while tree.len() < rows {
            open.sort_by(|a, b| a.likely.total_cmp(&b.likely));
            let Some(at) = open.iter().rposition(|node| self.allows(&tree, node, rows)) else { break };
            let node = open.remove(at);
            tree.push(node);
            open.extend(child(&tree, tree.len() - 1, 0));
            open.extend(node.parent.and_then(|parent| child(&tree, parent, node.rank + 1)));
        }
        tree
    }
}

/// What rounds gave, one after the other through every sequence.
#[derive(Default)]
struct Sum {
    rounds: f64,
    tokens: f64,
    rows: f64,
    seconds: f64,
    /// Tokens and seconds of each sequence.
    each: Vec<(f64, f64)>,
}

impl Sum {
    fn each_round(&self) -> f64 {
        self.tokens / self.rounds
    }

    fn rate(&self) -> f64 {
        self.tokens / self.seconds
    }

    /// By how many per cent the rate is above another's, and the standard error of that: the jackknife, by sequences.
    fn gain(&self, other: &Sum) -> (f64, f64) {
        let rate = |sum: &Sum, (tokens, seconds): (f64, f64)| (sum.tokens - tokens) / (sum.seconds - seconds);
        let gain = |mine, others| 100.0 * (rate(self, mine) / rate(other, others) - 1.0);
        let without: Vec<f64> = self.each.iter().zip(&other.each).map(|(&mine, &others)| gain(mine, others)).collect();
        let n = without.len() as f64;
        let mean = without.iter().sum::<f64>() / n;
        let variance = without.iter().map(|gain| (gain - mean).powi(2)).sum::<f64>() * (n - 1.0) / n;
        (gain((0.0, 0.0), (0.0, 0.0)), variance.sqrt())
    }
}

/// The blocks of every anchor of every sequence, and odds of the half of the sequences that one is not in.
struct Sequences {
    blocks: Vec<Vec<Block>>,
    odds: [Odds; 2],
}

impl Sequences {
    fn new(blocks: Vec<Vec<Block>>) -> Self {
        let mut odds: [Odds; 2] = Default::default();
        for (i, blocks) in blocks.iter().enumerate() {
            blocks.iter().for_each(|block| odds[1 - i % 2].learn(block));
        }
        Self { blocks, odds }
    }

    fn walk(&self, tree: impl Fn(&Block, &Odds) -> Vec<Node>, mut see: impl FnMut(&Block, usize)) -> Sum {
        let mut sum = Sum::default();
        for (i, blocks) in self.blocks.iter().enumerate() {
            let (mut at, before) = (0, (sum.tokens, sum.seconds));
            while let Some(block) = blocks.get(at) {
                let tree = tree(block, &self.odds[i % 2]);
                let tokens = block.tokens(&tree);
                see(block, tokens);
                sum.rounds += 1.0;
                sum.tokens += tokens as f64;
                sum.rows += tree.len() as f64;
                sum.seconds += seconds(tree.len());
                at += tokens;
            }
            sum.each.push((sum.tokens - before.0, sum.seconds - before.1));
        }
        sum
    }

    fn fixed(&self, shape: Shape, rows: usize) -> Sum {
        self.walk(|block, odds| shape.grow(block, odds, rows), |_, _| {})
    }

    /// Each round as many rows as pay, where a second is worth what all of it makes of it.
    fn paying(&self, shape: Shape) -> Sum {
        let mut sum = Sum::default();
        let mut worth = 1.0;
        for _ in 0..4 {
            let cut = |block: &Block, odds: &Odds| {
                let mut tree = shape.grow(block, odds, WIDEST);
                let (mut tokens, mut best) = (0.0, (f64::NEG_INFINITY, 1));
                for (node, rows) in tree.iter().zip(1..) {
                    tokens += node.likely;
                    let gain = tokens - worth * seconds(rows);
                    best = if gain > best.0 { (gain, rows) } else { best };
                }
                tree.truncate(best.1);
                tree
            };
            sum = self.walk(cut, |_, _| {});
            worth = sum.rate();
        }
        sum
    }

    /// Where the text goes on when a chain is rejected: with which candidate, and how far along the path behind it.
    fn rejections(&self, rows: usize) -> String {
        let (mut rejected, mut ranks, mut further) = (0.0, [0.0; RANKS], 0.0);
        let chain = self.walk(
            |block, odds| Shape::Chain.grow(block, odds, rows),
            |block, tokens| {
                if tokens < rows {
                    let row = tokens - 1;
                    rejected += 1.0;
                    if let Some(rank) = block.rank(row) {
                        ranks[rank] += 1.0;
                        further += if rank == 1 { block.agreed(row + 1) as f64 } else { 0.0 };
                    }
                }
            },
        );
        let share = |rank: usize| format!("{:.1} %", 100.0 * ranks[rank] / rejected);
        let (chain, shares, further) = (chain.each_round(), [1, 2, 3].map(share).join(", "), further / ranks[1]);
        format!("{chain:.3}; of the rejected the 2nd, 3rd, 4th: {shares}; behind the 2nd {further:.3} more")
    }

    /// Tokens per round and per second of every shape, of a fixed number of rows and of as many as pay.
    fn report(&self, rows: usize) {
        let chain = (self.fixed(Shape::Chain, rows), self.paying(Shape::Chain));
        for (name, shape) in SHAPES {
            let fixed = self.fixed(shape, rows);
            let (gain, error) = fixed.gain(&chain.0);
            let mut line =
                format!("  {name:8} {:.3} {:.3} ({gain:+.1} ± {error:.1} %)", fixed.each_round(), fixed.rate());
            if !matches!(shape, Shape::Leaves(Some(_))) {
                let paying = self.paying(shape);
                let (gain, error) = paying.gain(&chain.1);
                let (tokens, rows) = (paying.each_round(), paying.rows / paying.rounds);
                line += &format!("; as pays {tokens:.3} of {rows:.1} {:.3} ({gain:+.1} ± {error:.1} %)", paying.rate());
            }
            println!("{line}");
        }
    }
}

/// Texts that the target writes, each with where it begins to be followed, and how it was sampled. Greedy ones go on from sampled
/// beginnings, so that there are many.
fn texts(engine: &Engine, sampled: bool, seeds: u64) -> Vec<(Vec<u32>, usize, Sampling)> {
    let write = |prompt: &[u32], sampling: &Sampling, tokens: usize| {
        [prompt, &fresh(engine, &request(prompt, sampling, 1, tokens)).token_ids].concat()
    };
    let prompts = Pair::Nano.prompts();
    let of = |(prompt, seed): (&Vec<u32>, u64)| {
        let sampling = Sampling { seed, ..Sampling::default() };
        let (prompt, sampling) = match sampled {
            true => (prompt.clone(), sampling),
            false => (write(prompt, &sampling, 24), greedy()),
        };
        (write(&prompt, &sampling, TOKENS + WIDEST + 1), prompt.len(), sampling)
    };
    prompts.iter().take(5).flat_map(|prompt| (0..seeds).map(move |seed| (prompt, seed))).map(of).collect()
}

/// Tokens per round and per second of chains and trees.
#[test]
#[ignore = "a measurement"]
fn trees_beside_chains() {
    for (pair, told) in [(Pair::Nano, 0.0), (Pair::Nano2, 0.0), (Pair::Nano, 0.3)] {
        let (engine, drafting) = (load(&pair.options()), Rc::new(Drafting::new(pair, told)));
        for sampled in [false, true] {
            let texts = texts(&engine, sampled, 8);
            for width in [5, 8, WIDEST] {
                let of = |(text, start, sampling): &(Vec<u32>, usize, Sampling)| {
                    drafting.blocks(text, *start, width, sampling)
                };
                let blocks: Vec<Vec<Block>> = texts.iter().map(of).collect();
                // What the engine proposes is the first candidates.
                for (blocks, (text, start, sampling)) in blocks.iter().zip(&texts).step_by(7).filter(|_| told == 0.0) {
                    let mut at = 0;
                    for round in fresh(&engine, &request(&text[..*start], sampling, width, TOKENS)).rounds {
                        let chain = Shape::Chain.grow(&blocks[at], &Odds::default(), width);
                        assert!(chain[1..].iter().map(|node| node.token).eq(round.proposals));
                        at += round.emitted;
                    }
                }
                let sequences = Sequences::new(blocks);
                println!("{pair:?}, told {told}, sampled {sampled}, drafted {width}: {}", sequences.rejections(width));
                sequences.report(width);
            }
        }
    }
}
