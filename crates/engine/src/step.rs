//! Single forward passes of the target, timed beside what the machine can do.
//!
//! A pass reads every matrix once, so it takes at least as long as reading their bytes; and it makes a product of every weight
//! and row, so it takes at least as long as those. [`StepReport::bound`] is the larger of the two, at the shares of
//! the limits that are thought to be within reach.

use crate::engine::Loaded;
use crate::random::Random;
use crate::sampling::argmax;
use crate::{Engine, EngineError, memory};
use glimmer_backend::{Backend, Buffer, Limits};
use glimmer_model::muse::TextCache;
use glimmer_model::observe::Unobserved;
use std::ops::Range;
use std::time::{Duration, Instant};

/// The share of the read bandwidth that a pass should reach.
pub const READ_SHARE: f64 = 0.88;
/// The share of the peak of its arithmetic that a pass should reach.
pub const PRODUCT_SHARE: f64 = 0.62;

/// What is timed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepPlan {
    /// Rows of the passes: each once a round, in this order.
    pub widths: Vec<usize>,
    /// Positions in the cache before a pass, filled with random keys and values.
    pub depth: usize,
    /// Tokens of a prompt; 0 for none.
    pub prefill: usize,
    /// Tokens that are decoded one after the other; 0 for none.
    pub decode: usize,
    /// The fewest rounds.
    pub rounds: usize,
    /// Rounds are added until so much time has passed.
    pub time: Duration,
    /// Decides tokens, keys and values.
    pub seed: u64,
}

/// What reading and multiplying a pass's matrices takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Bytes of the matrices in the file.
    pub bytes: u64,
    /// Products of one row with weights that meet 8-bit activations.
    pub integers: u64,
    /// Products of one row with weights that meet f32 or bf16 activations, which are held against the peak of f32: an instruction
    /// for bf16 makes twice the products at half the rate.
    pub floats: u64,
}

impl Work {
    /// All products of one row.
    pub fn products(&self) -> u64 {
        self.integers + self.floats
    }
}

impl std::ops::Add for Work {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            bytes: self.bytes + other.bytes,
            integers: self.integers + other.integers,
            floats: self.floats + other.floats,
        }
    }
}

/// The matrices of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Matrices {
    /// Those of the layers, which every row meets.
    pub layers: Work,
    /// The output's, which rows meet whose logits are wanted.
    pub head: Work,
}

/// What was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct StepReport {
    /// What the passes had to do.
    pub matrices: Matrices,
    /// The highest limits that were measured, each for itself.
    pub best: Limits,
    /// The medians.
    pub median: Limits,
    /// Passes of each width, in the plan's order, all logits wanted.
    pub widths: Vec<Timing>,
    /// The prompt, the last row's logits wanted.
    pub prefill: Option<Timing>,
    /// Tokens decoded one after the other, in all.
    pub decode: Option<Timing>,
    /// Rounds that were timed.
    pub rounds: usize,
}

/// How long the same took several times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    /// Rows of a pass, or tokens.
    pub rows: usize,
    /// The shortest time.
    pub min: Duration,
    /// The median time.
    pub median: Duration,
    /// The median of the processor time, all threads added up; `None` where the system does not say.
    pub cpu: Option<Duration>,
}

/// Tokens to be timed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenPlan {
    /// Positions in the cache before them, filled with random keys and values.
    pub depth: usize,
    /// Tokens of a prompt; 0 for none.
    pub prefill: usize,
    /// Tokens that are decoded one after the other; 0 for none.
    pub decode: usize,
    /// How often each is timed.
    pub repeats: usize,
    /// Decides tokens, keys and values.
    pub seed: u64,
}

/// How long tokens took, each time that they were timed; nothing where there were none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenTimes {
    /// The prompt's.
    pub prefill: Vec<Duration>,
    /// Those that were decoded.
    pub decode: Vec<Duration>,
}

impl StepReport {
    /// The time that passes should take by vectors, whose rows meet the layers `rows` times and the head `logits` times, in one
    /// pass: the larger of reading at [`READ_SHARE`] and multiplying at [`PRODUCT_SHARE`] of the limits.
    pub fn bound(&self, limits: &Limits, rows: usize, logits: usize) -> Duration {
        let read = self.bytes() as f64 / (READ_SHARE * limits.bytes);
        let multiply = self.arithmetic(limits, rows, logits).as_secs_f64() / PRODUCT_SHARE;
        Duration::from_secs_f64(read.max(multiply))
    }

    /// The time that the products of such a pass take at the peak of vectors, in the arithmetic that they are made with.
    pub fn arithmetic(&self, limits: &Limits, rows: usize, logits: usize) -> Duration {
        let Matrices { layers, head } = self.matrices;
        let (rows, logits) = (rows as f64, logits as f64);
        let integers = rows * layers.integers as f64 + logits * head.integers as f64;
        let floats = rows * layers.floats as f64 + logits * head.floats as f64;
        Duration::from_secs_f64(integers / limits.integers + floats / limits.floats)
    }

    /// Products of a pass whose rows meet the layers `rows` times and the head `logits` times.
    pub fn products(&self, rows: usize, logits: usize) -> f64 {
        rows as f64 * self.matrices.layers.products() as f64 + logits as f64 * self.matrices.head.products() as f64
    }

    /// Bytes that a pass reads.
    pub fn bytes(&self) -> u64 {
        (self.matrices.layers + self.matrices.head).bytes
    }
}

impl Engine {
    /// Times passes of the target. The engine's context and prefill chunk have to have room for them.
    pub fn time_steps(&self, plan: &StepPlan) -> Result<StepReport, EngineError> {
        let loaded = &*self.loaded;
        check(plan, loaded)?;
        let mut bench = Bench::new(loaded, plan.depth, plan.seed)?;
        let buffer = buffer(loaded)?;
        let measure = || loaded.backend.limits(&buffer);
        let mut widths = vec![Vec::new(); plan.widths.len()];
        let mut limits = Vec::new();
        // Everything once, untimed: memory is touched, clocks go up.
        for &rows in &plan.widths {
            bench.pass(plan.depth, rows)?;
        }
        measure();
        let started = Instant::now();
        let mut rounds = 0;
        while rounds < plan.rounds || started.elapsed() < plan.time {
            for (&rows, samples) in plan.widths.iter().zip(&mut widths) {
                samples.push(bench.pass(plan.depth, rows)?);
            }
            limits.push(measure());
            rounds += 1;
        }
        let mut again = || limits.push(measure());
        let decode = bench.repeat(plan.depth, plan.decode, &mut again, Bench::decode)?;
        let prefill = bench.repeat(plan.depth, plan.prefill, &mut again, Bench::prefill)?;
        let of = |at: fn(&Limits) -> f64| {
            let mut all: Vec<f64> = limits.iter().map(at).collect();
            all.sort_by(f64::total_cmp);
            (all[all.len() - 1], all[all.len() / 2])
        };
        let (bytes, integers, floats) = (of(|l| l.bytes), of(|l| l.integers), of(|l| l.floats));
        let products = of(|l| l.matrices.unwrap_or(0.0));
        let [best, median] = [products.0, products.1].map(|products| Some(products).filter(|&p| p > 0.0));
        Ok(StepReport {
            matrices: loaded.matrices,
            best: Limits { bytes: bytes.0, integers: integers.0, matrices: best, floats: floats.0 },
            median: Limits { bytes: bytes.1, integers: integers.1, matrices: median, floats: floats.1 },
            widths: plan.widths.iter().zip(&widths).map(|(&rows, samples)| timing(rows, samples)).collect(),
            prefill,
            decode,
            rounds,
        })
    }

    /// Times a prompt, and tokens that are decoded, by turns. The engine's context has to have room for them.
    pub fn time_tokens(&self, plan: &TokenPlan) -> Result<TokenTimes, EngineError> {
        let TokenPlan { depth, prefill, decode, repeats, seed } = *plan;
        let loaded = &*self.loaded;
        check_depth(depth, prefill.max(decode), loaded)?;
        let mut bench = Bench::new(loaded, depth, seed)?;
        let mut times = TokenTimes::default();
        // The first round is not timed: memory is touched, clocks go up.
        for round in 0..=repeats {
            let counts = if round == 0 { (prefill, decode.min(WARM_UP)) } else { (prefill, decode) };
            for (tokens, work, times) in [
                (counts.0, Bench::prefill as Timed<'_>, &mut times.prefill),
                (counts.1, Bench::decode as Timed<'_>, &mut times.decode),
            ] {
                if tokens > 0 {
                    let sample = work(&mut bench, depth, tokens)?;
                    times.extend((round > 0).then_some(sample.wall));
                }
            }
        }
        Ok(times)
    }
}

/// Something that is timed, at a depth, of so many tokens.
type Timed<'a> = fn(&mut Bench<'a>, usize, usize) -> Result<Sample, EngineError>;

/// Tokens that are decoded before any are timed.
const WARM_UP: usize = 4;

/// What the processor calls itself, where the system says so.
pub fn cpu_model() -> Option<String> {
    let info = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = info.lines().find(|line| line.starts_with("model name"))?;
    line.split_once(':').map(|(_, name)| name.trim().to_string())
}

/// How often a prompt and a decoding are timed.
const REPEATS: usize = 3;
/// Bytes of the buffer that measures the memory, where there are as many: several times what caches hold.
const BUFFER: u64 = 1 << 30;

/// Refuses what the engine was not made for.
fn check(plan: &StepPlan, loaded: &Loaded) -> Result<(), EngineError> {
    let widest = loaded.geometry.widest();
    let range = |what, found, expected| Err(EngineError::Range { what, found, expected });
    if let Some(&rows) = plan.widths.iter().find(|rows| !(1..=widest).contains(rows)) {
        return range("the width of a pass", rows, format!("1 to {widest}, the rows that one pass may have"));
    }
    if plan.widths.is_empty() || plan.rounds == 0 {
        return range("the number of passes", 0, "at least 1".into());
    }
    check_depth(plan.depth, plan.widths.iter().copied().chain([plan.prefill, plan.decode]).max().unwrap_or(0), loaded)
}

/// Refuses a depth that leaves no room for the longest pass.
fn check_depth(depth: usize, longest: usize, loaded: &Loaded) -> Result<(), EngineError> {
    let context = loaded.geometry.context;
    if depth.saturating_add(longest) <= context {
        return Ok(());
    }
    let most = context.saturating_sub(longest);
    let expected = format!("at most {most}, which leaves {longest} of {context} positions");
    Err(EngineError::Range { what: "the depth", found: depth, expected })
}

/// What the bandwidth is measured on.
fn buffer(loaded: &Loaded) -> Result<Buffer, EngineError> {
    let bytes = memory::available().map_or(BUFFER, |available| BUFFER.min(available / 4)) as usize;
    let what = "the measurement of the memory";
    Ok(loaded.backend.buffer(bytes).ok_or(glimmer_backend::BackendError::Memory { what, bytes })?)
}

struct Bench<'a> {
    loaded: &'a Loaded,
    cache: TextCache<crate::engine::Active>,
    random: Random,
}

/// One measurement.
#[derive(Clone, Copy)]
struct Sample {
    wall: Duration,
    cpu: Option<Duration>,
}

impl<'a> Bench<'a> {
    fn new(loaded: &'a Loaded, depth: usize, seed: u64) -> Result<Self, EngineError> {
        let (positions, widest) = (loaded.geometry.positions(), loaded.geometry.widest());
        let cache = loaded.target.cache(positions, widest, loaded.settings.cache);
        let mut bench = Self { loaded, cache, random: Random::new(seed) };
        bench.fill(depth)?;
        Ok(bench)
    }

    /// Brings the cache to `depth` positions of random keys and values, each of variance 1 as normalised keys are.
    fn fill(&mut self, depth: usize) -> Result<(), EngineError> {
        let Self { loaded, cache, random, .. } = self;
        Ok(loaded.target.fill(&loaded.backend, cache, depth, &mut || random.normal())?)
    }

    /// Back to `depth` positions.
    fn rewind(&mut self, depth: usize) -> Result<(), EngineError> {
        self.cache.truncate(depth).or_else(|_| self.fill(depth))
    }

    fn ids(&mut self, count: usize) -> Vec<u32> {
        let vocab = self.loaded.target.config().vocab_size as u32;
        (0..count).map(|_| self.random.below(vocab)).collect()
    }

    /// One pass of `rows` rows with all logits.
    fn pass(&mut self, depth: usize, rows: usize) -> Result<Sample, EngineError> {
        let ids = self.ids(rows);
        let sample = timed(self.loaded, || self.forward(&ids, 0..rows))?;
        self.rewind(depth)?;
        Ok(sample)
    }

    /// A prompt in passes of the prefill chunk, with the last row's logits.
    fn prefill(&mut self, depth: usize, tokens: usize) -> Result<Sample, EngineError> {
        let ids = self.ids(tokens);
        let sample = timed(self.loaded, || {
            let chunks = ids.chunks(self.loaded.geometry.prefill_chunk);
            let last = chunks.len() - 1;
            for (i, chunk) in chunks.enumerate() {
                let logits = if i == last { chunk.len() - 1..chunk.len() } else { 0..0 };
                self.forward(chunk, logits)?;
            }
            Ok(())
        })?;
        self.rewind(depth)?;
        Ok(sample)
    }

    /// Tokens one after the other, each the likeliest after the one before.
    fn decode(&mut self, depth: usize, tokens: usize) -> Result<Sample, EngineError> {
        let mut id = self.ids(1)[0];
        let sample = timed(self.loaded, || {
            for _ in 0..tokens {
                let logits = self.forward(&[id], 0..1)?;
                id = argmax(&logits).unwrap_or(0);
            }
            Ok(())
        })?;
        self.rewind(depth)?;
        Ok(sample)
    }

    /// The same tokens' worth of work a few times, after `before` each; `None` for no tokens.
    fn repeat(
        &mut self,
        depth: usize,
        tokens: usize,
        before: &mut dyn FnMut(),
        work: Timed<'a>,
    ) -> Result<Option<Timing>, EngineError> {
        let mut sample = |_| {
            before();
            work(self, depth, tokens)
        };
        if tokens == 0 {
            return Ok(None);
        }
        let samples: Vec<_> = (0..REPEATS).map(&mut sample).collect::<Result<_, _>>()?;
        Ok(Some(timing(tokens, &samples)))
    }

    fn forward(&mut self, ids: &[u32], logits: Range<usize>) -> Result<Vec<f32>, EngineError> {
        let (b, target) = (&self.loaded.backend, &self.loaded.target);
        let x = target.forward(b, &mut self.cache, ids, &mut Unobserved)?;
        Ok(match logits.is_empty() {
            true => Vec::new(),
            false => b.read(&target.logits(b, &x, logits, &mut Unobserved)),
        })
    }
}

fn timed<T>(loaded: &Loaded, work: impl FnOnce() -> Result<T, EngineError>) -> Result<Sample, EngineError> {
    let (before, started) = (loaded.backend.cpu_time(), Instant::now());
    std::hint::black_box(work()?);
    let wall = started.elapsed();
    let cpu = before.zip(loaded.backend.cpu_time()).map(|(before, after)| after.saturating_sub(before));
    Ok(Sample { wall, cpu })
}

fn timing(rows: usize, samples: &[Sample]) -> Timing {
    let sorted = |mut all: Vec<Duration>| {
        all.sort();
        all
    };
    let wall = sorted(samples.iter().map(|sample| sample.wall).collect());
    let cpu = sorted(samples.iter().filter_map(|sample| sample.cpu).collect());
    Timing { rows, min: wall[0], median: wall[wall.len() / 2], cpu: cpu.get(cpu.len() / 2).copied() }
}
