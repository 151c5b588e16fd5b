//! Rounds of several sequences at once, against those of each alone.

use super::*;
use crate::sampling::{DrawError, Sampling};
use crate::speculative::{Asked, Draft, DraftError, Drafter, Proposer};
use crate::{Engine, EngineOptions, NanoDrafter, Source};
use glimmer_backend::KvSpec;
use glimmer_model::ModelError;
use glimmer_model::dflash::{DFlashContext, Seen};
use glimmer_model::muse::MuseText;
use std::sync::{Arc, Mutex};

/// A drafter whose passes are counted, and which can be told to fail.
struct Watched {
    inner: Arc<dyn Drafter<Active>>,
    calls: Mutex<Calls>,
}

#[derive(Default)]
struct Calls {
    /// Sequences of each pass over what was verified.
    observed: Vec<usize>,
    /// Widths of the blocks of each pass over blocks.
    drafted: Vec<Vec<usize>>,
    /// The place in the next of these of a block that fails.
    fails: Option<usize>,
    /// How far it says that it looks back, if that is to be something else.
    reach: Option<usize>,
}

impl Drafter<Active> for Watched {
    fn kind(&self) -> &'static str {
        self.inner.kind()
    }

    fn block_size(&self) -> usize {
        self.inner.block_size()
    }

    fn pages(&self) -> KvSpec {
        self.inner.pages()
    }

    fn context_bytes(&self) -> u64 {
        self.inner.context_bytes()
    }

    fn context(&self) -> DFlashContext<Active> {
        self.inner.context()
    }

    fn taps(&self) -> &[usize] {
        self.inner.taps()
    }

    fn reach(&self) -> usize {
        self.calls.lock().unwrap().reach.unwrap_or_else(|| self.inner.reach())
    }

    fn observe(&self, b: &Active, batch: &mut [Seen<'_, Active>]) -> Vec<Result<(), ModelError>> {
        self.calls.lock().unwrap().observed.push(batch.len());
        self.inner.observe(b, batch)
    }

    fn draft(
        &self,
        b: &Active,
        target: &MuseText<Active>,
        batch: &mut [Asked<'_, Active>],
    ) -> Vec<Result<Draft, DraftError>> {
        let mut calls = self.calls.lock().unwrap();
        calls.drafted.push(batch.iter().map(|asked| asked.width).collect());
        let mut drafts = self.inner.draft(b, target, batch);
        if let Some(at) = calls.fails.take() {
            drafts[at] = Err(DraftError::Output { position: 0, cause: DrawError::NothingLeft });
        }
        drafts
    }
}

/// Nano with a drafter that is watched.
fn watched(drafter: NanoDrafter, ngram: bool) -> (Engine, Arc<Watched>) {
    let drafter = Some(Source::NanoDrafter(drafter));
    let options = EngineOptions { drafter, ngram, context: Some(2300), ..EngineOptions::new(Source::Nano) };
    let mut engine = Engine::load(&options, &mut |_| {}).unwrap();
    let loaded = Arc::get_mut(&mut engine.loaded).unwrap();
    let watched = Arc::new(Watched { inner: loaded.drafter.take().unwrap(), calls: Mutex::default() });
    loaded.drafter = Some(Arc::clone(&watched) as Arc<dyn Drafter<Active>>);
    (engine, watched)
}

struct Sequence {
    session: Session,
    chain: Chain,
    anchor: u32,
    width: DraftWidth,
}

impl Sequence {
    /// Behind a prompt, greedy or not.
    fn new(engine: &Engine, prompt: &[u32], seed: Option<u64>, width: impl Into<DraftWidth>) -> Self {
        let sampling = match seed {
            Some(seed) => Sampling { seed, ..Sampling::default() },
            None => Sampling { temperature: 0.0, ..Sampling::default() },
        };
        let (mut session, mut chain) = (engine.session().unwrap(), Chain::new(sampling, engine.vocab_size()).unwrap());
        chain.start(prompt);
        let (_, logits) = session.prefill(prompt, true, &mut |_, _| true).unwrap();
        let anchor = session.draw_first(&logits.unwrap(), &mut chain).unwrap();
        Self { session, chain, anchor, width: width.into() }
    }

    /// Rounds until so many tokens are there.
    fn go_to(&mut self, tokens: usize) {
        while self.session.tokens().len() < tokens {
            self.alone();
        }
    }

    /// Positions that the drafter remembers.
    fn held(&mut self) -> std::ops::Range<usize> {
        let loaded = Arc::clone(&self.session.loaded);
        self.session.speculating().0.context(&loaded.backend).unwrap().held
    }

    fn alone(&mut self) -> Round {
        let round = self.session.round(self.anchor, self.width, &mut self.chain).unwrap();
        self.anchor = *round.tokens.last().unwrap();
        round
    }
}

/// Four that have little in common: below a page and above, one whose blocks cross into the next, and one that repeats itself.
fn four(engine: &Engine) -> Vec<Sequence> {
    let prompt = |step: u32, len: u32| (0..len).map(|i| 40 + i * step % 301).collect::<Vec<u32>>();
    // To which nano answers with the same lines twice.
    let mut written = Sequence::new(engine, &(0..160).map(|i| 40 + i % 8).collect::<Vec<u32>>(), None, 1);
    while written.session.tokens().len() < 202 {
        written.alone();
    }
    let repeats = written.session.tokens();
    vec![
        Sequence::new(engine, &prompt(7, 5), None, 2),
        Sequence::new(engine, &prompt(11, 248), Some(3), 16),
        Sequence::new(engine, repeats, None, 9),
        Sequence::new(engine, &prompt(13, 300), Some(4), 5),
    ]
}

/// A round of each.
fn together<'a>(engine: &Engine, sequences: impl Iterator<Item = &'a mut Sequence>) -> Vec<Round> {
    let mut sequences: Vec<&mut Sequence> = sequences.collect();
    let batch = batch(sequences.iter_mut().map(|sequence| &mut **sequence));
    let rounds: Vec<Round> = batch.step(&engine.loaded).unwrap().rounds.into_iter().map(Result::unwrap).collect();
    sequences.iter_mut().zip(&rounds).for_each(|(sequence, round)| sequence.anchor = *round.tokens.last().unwrap());
    rounds
}

fn batch<'a>(sequences: impl Iterator<Item = &'a mut Sequence>) -> Batch<'a> {
    let rounds = sequences.map(|Sequence { session, chain, anchor, width }| {
        let (anchor, width) = (*anchor, *width);
        Begun { session, chain, anchor, width }
    });
    Batch { rounds: rounds.collect(), prompts: Vec::new() }
}

/// A round without its times, and the bits of its logits.
fn told(round: &Round) -> (Round, Vec<u32>) {
    let mut told = round.clone();
    [told.trace.observe, told.trace.draft, told.trace.verify] = Default::default();
    let bits = std::mem::take(&mut told.logits).iter().map(|x| x.to_bits()).collect();
    (told, bits)
}

#[test]
fn a_drafter_makes_one_pass_for_all_and_each_gets_what_it_gets_alone() {
    for (drafter, ngram) in
        [(NanoDrafter::Assistant, false), (NanoDrafter::DFlash2, false), (NanoDrafter::Assistant, true)]
    {
        let ((engine, watched), (other, lone)) = (self::watched(drafter, ngram), self::watched(drafter, ngram));
        let (mut sequences, mut alone) = (four(&engine), four(&other));
        let calls = |watched: &Watched| std::mem::take(&mut *watched.calls.lock().unwrap());
        for watched in [&watched, &lone] {
            calls(watched);
        }
        let (mut passes, mut passes_alone, mut looked_up, mut all) = (0, 0, 0, 0);
        for number in 0..14 {
            // All of them at first, then not always the same.
            let takes_part = |at: usize| number == 0 || !(number + at).is_multiple_of(3);
            let here = || (0..4).filter(|&at| takes_part(at));
            let rounds = together(
                &engine,
                sequences.iter_mut().enumerate().filter(|(at, _)| takes_part(*at)).map(|(_, sequence)| sequence),
            );
            for (at, round) in here().zip(&rounds) {
                assert!(told(round) == told(&alone[at].alone()), "{drafter:?} {number} {at}: {:?}", round.proposals);
            }
            let (one, each) = (calls(&watched), calls(&lone));
            let asked = rounds.iter().filter(|round| round.trace.proposer == Some(Proposer::Drafter));
            let widths: Vec<usize> = asked.clone().map(|round| round.width).collect();
            assert_eq!(one.drafted, if widths.is_empty() { Vec::new() } else { vec![widths.clone()] });
            assert_eq!(each.drafted.concat(), widths);
            assert_eq!(one.observed.len(), usize::from(!widths.is_empty()));
            for round in asked {
                let (draft, verify) = (round.trace.draft, round.trace.verify);
                assert_eq!((draft.sequences, draft.rows), (widths.len(), widths.iter().sum()));
                assert_eq!(
                    (verify.sequences, verify.rows),
                    (rounds.len(), rounds.iter().map(|round| round.width).sum())
                );
            }
            (passes, passes_alone) = (passes + one.drafted.len(), passes_alone + each.drafted.len());
            all += rounds.len();
            looked_up += rounds.iter().filter(|round| round.trace.proposer == Some(Proposer::Lookup)).count();
        }
        println!("{drafter:?}, looking up {ngram}: {passes} passes over blocks, {passes_alone} one by one");
        assert!(passes <= 14 && passes_alone + looked_up == all && all == 39 && (looked_up > 0) == ngram);
    }
}

/// A drafter that is not asked is shown nothing of what it will not look back to, and what it sees when it is asked at last is
/// what it would have seen all along.
#[test]
fn what_a_drafter_will_not_look_back_to_is_never_shown() {
    let prompt: Vec<u32> = (0..60).map(|i| 40 + i * 7 % 301).collect();
    for drafter in [NanoDrafter::Assistant, NanoDrafter::DFlash2] {
        let ((engine, watched), (other, _)) = (self::watched(drafter, false), self::watched(drafter, false));
        let reach = watched.reach();
        let mut late = Sequence::new(&engine, &prompt, None, 1);
        let mut asked = Sequence::new(&other, &prompt, None, 2);
        late.go_to(400);
        assert!(watched.calls.lock().unwrap().observed.is_empty(), "nobody asked");
        let mut proposed = std::collections::HashMap::new();
        while asked.session.tokens().len() < 440 {
            let at = asked.session.tokens().len();
            proposed.insert(at, asked.alone().proposals);
        }
        late.width = DraftWidth::Fixed(2);
        let (mut first, mut equal) = (true, 0);
        while late.session.tokens().len() < 430 {
            let at = late.session.tokens().len();
            let round = late.alone();
            let seen = round.trace.observe.rows;
            assert!(if first { (reach..reach + prompt.len()).contains(&seen) } else { seen <= 2 }, "{seen}");
            first = false;
            if let Some(all_along) = proposed.get(&at) {
                assert_eq!(&round.proposals, all_along, "at {at}");
                equal += 1;
            }
        }
        assert!(equal > 5, "{equal}");
        // Cut back to what nothing was kept of, it begins anew there.
        let mut cut = Sequence::new(&engine, &prompt, None, 1);
        cut.go_to(330);
        assert_eq!(cut.session.rewind(150), 150);
        assert_eq!(cut.held(), 150..150);
        cut.width = DraftWidth::Fixed(4);
        assert_eq!(cut.alone().proposals.len(), 3);
        assert_eq!(cut.held().start, 150);
    }
}

/// What waits to be shown is shown when it takes too much memory, though nobody asks.
#[test]
fn a_drafter_that_looks_far_back_catches_up() {
    let (engine, watched) = watched(NanoDrafter::Assistant, false);
    watched.calls.lock().unwrap().reach = Some(1 << 20);
    let mut sequence = Sequence::new(&engine, &[50; 10], None, 1);
    // Of five layers of 192 elements, 8 MiB hold so many.
    let most = (8 << 20) / (5 * 192 * 4);
    sequence.go_to(most - 1);
    assert!(watched.calls.lock().unwrap().observed.is_empty());
    sequence.go_to(most + 1);
    assert_eq!(watched.calls.lock().unwrap().observed, [1]);
    sequence.go_to(most + 20);
    assert_eq!(watched.calls.lock().unwrap().observed, [1]);
}

#[test]
fn a_drafter_that_fails_for_one_goes_on_for_the_others() {
    let (engine, watched) = watched(NanoDrafter::Assistant, false);
    let mut sequences = four(&engine);
    let tokens = |sequences: &[Sequence]| -> Vec<Vec<u32>> {
        sequences.iter().map(|sequence| sequence.session.tokens().to_vec()).collect()
    };
    watched.calls.lock().unwrap().fails = Some(2);
    for number in 0..3 {
        let rounds = together(&engine, sequences.iter_mut());
        for (at, round) in rounds.iter().enumerate() {
            let notice = round.notice.as_deref().unwrap_or_default();
            assert_eq!(notice.contains("the drafter is off"), (number, at) == (0, 2), "{number} {at}: {notice}");
            assert_eq!(round.proposals.is_empty(), at == 2, "{number} {at}");
        }
    }
    // And what they say is what they say without it.
    for (sequence, reference) in tokens(&sequences).iter().zip(four(&engine).iter_mut()) {
        reference.width = DraftWidth::Fixed(1);
        while reference.session.tokens().len() < sequence.len() {
            reference.alone();
        }
        assert_eq!(reference.session.tokens(), sequence);
    }
}

#[test]
fn sequences_that_share_a_pass_choose_their_widths_by_it() {
    let (engine, _) = watched(NanoDrafter::Assistant, false);
    let mut sequences = four(&engine);
    sequences.iter_mut().for_each(|sequence| sequence.width = DraftWidth::Auto);
    // One of them has decoded plainly before, so that is known; the first drafts in company are narrow.
    let rounds = together(&engine, sequences.iter_mut());
    let (draft, verify) = (rounds[0].trace.draft, rounds[0].trace.verify);
    assert_eq!((draft.sequences, draft.rows), (4, 12));
    assert_eq!((verify.sequences, verify.rows), (4, rounds.iter().map(|round| round.width).sum()));
    // Whoever decides next to them knows what such a pass takes.
    let known = |rows: usize| engine.loaded.experience.has_measured(rows);
    assert!(known(1) && known(verify.rows) && !known(20));
}

/// Seconds of a round of eight sequences, by width: the drafter asked for one after the other, and for all at once.
#[test]
#[ignore = "a measurement"]
fn rounds_of_eight() {
    for drafter in [NanoDrafter::Assistant, NanoDrafter::DFlash2] {
        for width in [2, 4, 8, 16] {
            let (engine, _) = watched(drafter, false);
            let eight = || -> Vec<Sequence> {
                let mut all: Vec<Sequence> = four(&engine).into_iter().chain(four(&engine)).collect();
                all.iter_mut().for_each(|sequence| sequence.width = width.into());
                all
            };
            let (mut each, mut all) = (eight(), eight());
            let mut times: [Vec<[f64; 2]>; 2] = Default::default();
            for number in 0..30 {
                for (way, sequences) in [&mut each, &mut all].into_iter().enumerate() {
                    let started = Instant::now();
                    let proposed = match way {
                        0 => {
                            let one = |sequence: &mut Sequence| batch([sequence].into_iter()).propose(&engine.loaded);
                            let rounds = sequences.iter_mut().flat_map(|sequence| one(sequence).rounds).collect();
                            Proposals { rounds, ..Proposals::default() }
                        }
                        _ => batch(sequences.iter_mut()).propose(&engine.loaded),
                    };
                    let drafted = started.elapsed().as_secs_f64();
                    let done = batch(sequences.iter_mut()).verify(&engine.loaded, proposed).unwrap();
                    for (sequence, round) in sequences.iter_mut().zip(done.rounds) {
                        sequence.anchor = *round.unwrap().tokens.last().unwrap();
                    }
                    if number >= 5 {
                        times[way].push([drafted, started.elapsed().as_secs_f64()]);
                    }
                }
            }
            let median = |way: usize, part: usize| {
                let mut sorted: Vec<f64> = times[way].iter().map(|times| times[part]).collect();
                sorted.sort_by(f64::total_cmp);
                1e3 * sorted[sorted.len() / 2]
            };
            let [a, b, c, d] = [median(0, 0), median(1, 0), median(0, 1), median(1, 1)];
            println!("{drafter:?}, width {width}: drafting {a:.2} ms, at once {b:.2} ms; a round {c:.2} ms, {d:.2} ms");
        }
    }
}
