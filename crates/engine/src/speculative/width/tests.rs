//! The controller in worlds whose costs and odds are known.

use super::*;
use crate::random::Random;

const BLOCK: usize = 16;

/// What passes cost and how often the drafter is right.
#[derive(Clone, Copy)]
struct World {
    name: &'static str,
    verify: fn(usize) -> f64,
    draft: fn(usize) -> f64,
}

const fn world(name: &'static str, verify: fn(usize) -> f64, draft: fn(usize) -> f64) -> World {
    World { name, verify, draft }
}

fn rows(rows: usize) -> f64 {
    rows as f64
}

const WORLDS: [World; 8] = [
    world("a block costs little more than a row", |w| 1.0 + 0.03 * (rows(w) - 1.0), |d| 0.04 + 0.003 * rows(d)),
    world("rows cost", |w| 1.0 + 0.2 * (rows(w) - 1.0), |d| 0.05 + 0.01 * rows(d)),
    world("rows cost nearly what they do alone", |w| 1.0 + 0.75 * (rows(w) - 1.0), |d| 0.05 + 0.01 * rows(d)),
    world("tiles of four rows", |w| 1.0 + 0.6 * rows((w - 1) / 4), |_| 0.06),
    world("a second row costs, more do not", |w| if w == 1 { 1.0 } else { 1.5 + 0.01 * rows(w) }, |_| 0.05),
    world("drafts are dear", |w| 1.0 + 0.05 * (rows(w) - 1.0), |d| 0.4 + 0.02 * rows(d)),
    world("drafts cost more than they can give", |w| 1.0 + 0.3 * (rows(w) - 1.0), |_| 2.5),
    world(
        "three rows cost as one, then rows cost",
        |w| 1.0 + 0.03 * rows(w.min(3) - 1) + 0.25 * rows(w.max(3) - 3),
        |_| 0.25,
    ),
];

/// What observing a row costs.
const OBSERVE: f64 = 0.01;

/// Rows that wait to be observed, at most.
const WAITING: usize = 128;

impl World {
    /// Tokens per second at a fixed width and so many accepted proposals to the place.
    fn fixed(&self, width: usize, p: f64) -> f64 {
        let tokens: f64 = (0..width).map(|i| p.powi(i as i32)).sum();
        match width {
            1 => 1.0 / (self.verify)(1),
            _ => tokens / ((self.verify)(width) + (self.draft)(width) + OBSERVE * tokens),
        }
    }

    fn best(&self, p: f64) -> f64 {
        (1..=BLOCK).map(|width| self.fixed(width, p)).fold(0.0, f64::max)
    }
}

/// How a drafter's confidence goes with its luck.
#[derive(Clone, Copy, Debug)]
enum Drafts {
    /// It is always equally sure.
    Blind,
    /// A half of its proposals are surer than they should be on average, the others less.
    Telling,
    /// It is as sure as it is right, which does not change much.
    Honest,
}

struct Sequence<'a> {
    world: &'a World,
    controller: Controller,
    random: Random,
    drafts: Drafts,
    rounds: usize,
    drafted: usize,
    /// Rows that the drafter has not seen.
    unseen: usize,
    tokens: f64,
    seconds: f64,
}

impl<'a> Sequence<'a> {
    fn new(world: &'a World, experience: &Arc<Experience>, drafts: Drafts, seed: u64) -> Self {
        let controller = Controller::new(Arc::clone(experience), BLOCK);
        let (rounds, drafted, unseen, tokens, seconds) = Default::default();
        Self { world, controller, random: Random::new(seed), drafts, rounds, drafted, unseen, tokens, seconds }
    }

    fn unit(&mut self) -> f64 {
        self.random.unit() as f64
    }

    /// What a clock says: a little noise, now and then something else has the machine.
    fn clock(&mut self, seconds: f64) -> f64 {
        let disturbed = if self.unit() < 0.03 { 4.0 } else { 1.0 };
        seconds * (1.0 + 0.06 * self.unit()) * disturbed
    }

    fn round(&mut self, p: f64) {
        let drafted = self.controller.plan(self.unseen);
        let mut odds = Vec::new();
        let mut confidence = Vec::new();
        for _ in 1..drafted {
            let (easy, spread) = (self.unit() < 0.5, 0.8 * p.min(1.0 - p));
            let (truth, told) = match (self.drafts, easy) {
                (Drafts::Blind, _) => (p, 0.6),
                (Drafts::Telling, true) => (p + spread, 0.9),
                (Drafts::Telling, false) => (p - spread, 0.5),
                (Drafts::Honest, _) => {
                    let truth = p + 0.25 * (2.0 * self.unit() - 1.0) * p.min(1.0 - p);
                    (truth, truth)
                }
            };
            odds.push(truth);
            confidence.push(told);
        }
        let rows = match drafted {
            1 => 1,
            _ => self.controller.cut(Proposer::Drafter, &confidence).0,
        };
        let accepted = odds.iter().take(rows - 1).take_while(|&&p| self.random.unit() < p as f32).count();
        let [mut observe, mut draft] = [0.0; 2];
        let mut observed = 0;
        if drafted > 1 {
            observed = std::mem::take(&mut self.unseen);
            observe = OBSERVE * observed as f64;
            draft = (self.world.draft)(drafted);
            self.drafted += 1;
        }
        self.unseen = (self.unseen + accepted + 1).min(WAITING);
        let verify = (self.world.verify)(rows);
        self.rounds += 1;
        self.tokens += (accepted + 1) as f64;
        self.seconds += observe + draft + verify;
        let [observe, draft, verify] = [observe, draft, verify].map(|seconds| self.clock(seconds));
        let drafted = if drafted > 1 { drafted } else { 0 };
        self.controller.experience.measured(true, (observed, observe), (drafted, draft), (rows, verify));
        let proposer = (drafted > 1).then_some(Proposer::Drafter);
        self.controller.learn(&Measured { proposer, confidence: &confidence, rows, accepted });
    }

    fn run(&mut self, tokens: usize, p: f64) -> f64 {
        let (before, at) = (self.tokens, self.seconds);
        while self.tokens < before + tokens as f64 {
            self.round(p);
        }
        (self.tokens - before) / (self.seconds - at)
    }
}

/// A round whose pass took so long.
fn learn(controller: &mut Controller, verify: f64, round: &Measured<'_>) {
    controller.experience.measured(true, (0, 0.0), (0, 0.0), (round.rows, verify));
    controller.learn(round);
}

/// The mean of several sequences' shares of the best that a fixed width gives, each of an engine of its own: from its `warm`th
/// token on.
fn share(world: &World, drafts: Drafts, p: f64, warm: usize) -> f64 {
    let share = |seed| {
        let mut sequence = Sequence::new(world, &Arc::new(Experience::new(BLOCK)), drafts, seed);
        sequence.run(warm, p);
        sequence.run(3000, p) / world.best(p)
    };
    (0..4).map(share).sum::<f64>() / 4.0
}

/// How a drafter's luck goes with the sequences of an engine.
type Luck = fn(n: usize, random: &mut Random) -> f64;

/// What sequences of so many tokens take, and what they would take at the fixed width that is the best for all of them, and in
/// plain decoding.
fn served(world: &World, drafts: Drafts, luck: Luck, sequences: usize, tokens: usize) -> Vec<[f64; 3]> {
    let experience = Arc::new(Experience::new(BLOCK));
    let mut random = Random::new(1000);
    let lucks: Vec<f64> = (0..sequences).map(|n| luck(n, &mut random)).collect();
    let took = |width| lucks.iter().map(|&p| 1.0 / world.fixed(width, p)).sum::<f64>();
    let best = (1..=BLOCK).min_by(|&a, &b| took(a).total_cmp(&took(b))).unwrap_or(1);
    let sequence = |(n, &p): (usize, &f64)| {
        let mut sequence = Sequence::new(world, &experience, drafts, 77 * n as u64 + 5);
        sequence.run(tokens, p);
        [sequence.seconds, sequence.tokens / world.fixed(best, p), sequence.tokens / world.fixed(1, p)]
    };
    lucks.iter().enumerate().map(sequence).collect()
}

/// Their shares of both.
fn ratio(of: &[[f64; 3]]) -> (f64, f64) {
    let sum = |i: usize| of.iter().map(|took| took[i]).sum::<f64>();
    (sum(1) / sum(0), sum(2) / sum(0))
}

/// The mean and the least.
fn summary(shares: &[f64]) -> (f64, f64) {
    (shares.iter().sum::<f64>() / shares.len() as f64, shares.iter().copied().fold(f64::INFINITY, f64::min))
}

#[test]
fn a_new_engine_learns_soon() {
    let ends = [64, 128, 256];
    let mut shares = ends.map(|_| Vec::new());
    for world in &WORLDS {
        for drafts in [Drafts::Blind, Drafts::Honest] {
            for p in [0.2, 0.5, 0.8, 0.95] {
                let mut sums = ends.map(|_| (0.0, 0.0));
                for seed in 0..16 {
                    let mut sequence = Sequence::new(world, &Arc::new(Experience::new(BLOCK)), drafts, seed * 31 + 3);
                    for (end, sum) in ends.into_iter().zip(&mut sums) {
                        sequence.run((f64::from(end) - sequence.tokens).max(0.0) as usize, p);
                        *sum = (sum.0 + sequence.tokens, sum.1 + sequence.seconds);
                    }
                }
                let found = sums.map(|(tokens, seconds)| tokens / seconds / world.best(p));
                let plain = sums[0].0 / sums[0].1 / world.fixed(1, p);
                println!("{}, {p}, {drafts:?}: {found:.2?}, {plain:.2} of plain", world.name);
                found.into_iter().zip(&mut shares).for_each(|(share, shares)| shares.push(share));
            }
        }
    }
    for (shares, least) in shares.iter().zip([(0.92, 0.78), (0.94, 0.83), (0.95, 0.86)]) {
        let found = summary(shares);
        println!("{found:.3?}");
        assert!(found.0 >= least.0 && found.1 >= least.1, "{found:?}");
    }
}

#[test]
fn many_short_requests_learn_together() {
    const LUCKS: [(&str, Luck); 8] = [
        ("0.2", |_, _| 0.2),
        ("0.5", |_, _| 0.5),
        ("0.8", |_, _| 0.8),
        ("0.95", |_, _| 0.95),
        ("0.2, 0.5 or 0.8", |_, random| [0.2, 0.5, 0.8][random.below(3) as usize]),
        ("0.1 or 0.9", |_, random| [0.1, 0.9][random.below(2) as usize]),
        ("0.1, then 0.9", |n, _| if n < 100 { 0.1 } else { 0.9 }),
        ("0.9, then 0.1", |n, _| if n < 100 { 0.9 } else { 0.1 }),
    ];
    let mut shares = Vec::new();
    for world in &WORLDS {
        for (name, luck) in LUCKS {
            let found = served(world, Drafts::Honest, luck, 200, 40);
            let (best, plain) = ratio(&found[4..]);
            let change = ratio(&found[100..104]).0;
            println!("{}, {name}: {best:.3}, {plain:.3} of plain; {change:.2} halfway", world.name);
            assert!(best >= 0.95 && plain >= 0.95, "{}, {name}: {best}, {plain}", world.name);
            shares.push(best);
        }
    }
    let found = summary(&shares);
    println!("{found:.3?}");
    assert!(found.0 > 1.03, "{found:?}");
}

#[test]
fn a_useless_drafter_costs_little() {
    for world in &WORLDS {
        for drafts in [Drafts::Blind, Drafts::Honest] {
            let (best, plain) = ratio(&served(world, drafts, |_, _| 0.05, 40, 128)[1..]);
            println!("{}, {drafts:?}: {plain:.3}", world.name);
            assert!(best.min(plain) > 0.965, "{}, {drafts:?}: {best}, {plain}", world.name);
        }
    }
}

/// Of a text that repeats itself two proposals are always right and the third never is, though the drafter is as sure of it.
#[test]
fn a_place_that_is_never_right_is_noticed() {
    const CONFIDENCE: [f64; BLOCK - 1] =
        [0.85, 0.6, 0.65, 0.65, 0.55, 0.6, 0.6, 0.5, 0.6, 0.5, 0.6, 0.5, 0.6, 0.5, 0.5];
    for world in [&WORLDS[0], &WORLDS[1], &WORLDS[3], &WORLDS[5], &WORLDS[7]] {
        let experience = Arc::new(Experience::new(BLOCK));
        let mut controller = Controller::new(Arc::clone(&experience), BLOCK);
        let (mut tokens, mut seconds) = (0.0, 0.0);
        for round in 0..60 {
            let drafted = controller.plan(0);
            let confidence = &CONFIDENCE[..drafted - 1];
            let rows = if drafted > 1 { controller.cut(Proposer::Drafter, confidence).0 } else { 1 };
            let accepted = 2.min(rows - 1);
            let (verify, draft) = ((world.verify)(rows), if drafted > 1 { (world.draft)(drafted) } else { 0.0 });
            experience.measured(true, (0, 0.0), (if drafted > 1 { drafted } else { 0 }, draft), (rows, verify));
            let proposer = (drafted > 1).then_some(Proposer::Drafter);
            controller.learn(&Measured { proposer, confidence, rows, accepted });
            if round >= 20 {
                (tokens, seconds) = (tokens + accepted as f64 + 1.0, seconds + verify + draft);
            }
        }
        let found = tokens / seconds / (3.0 / ((world.verify)(3) + (world.draft)(3)));
        println!("{}: {found:.3}", world.name);
        assert!(found > 0.94, "{}: {found}", world.name);
    }
}

#[test]
fn the_best_fixed_width_is_reached() {
    for world in &WORLDS {
        for p in [0.2, 0.5, 0.8, 0.95] {
            // Plain decoding has nothing to learn.
            let plain = world.best(p) == world.fixed(1, p);
            for drafts in [Drafts::Blind, Drafts::Telling] {
                let (found, least) = (share(world, drafts, p, 200), if plain { 0.97 } else { 0.95 });
                println!("{}, {p}, {drafts:?}: {found:.3}", world.name);
                assert!(found >= least, "{}, {p}, {drafts:?}: {found}", world.name);
            }
        }
    }
}

#[test]
fn a_drafter_that_says_what_it_knows_is_worth_more_than_any_fixed_width() {
    assert!(share(&WORLDS[1], Drafts::Telling, 0.5, 200) > 1.08);
    assert!(share(&WORLDS[4], Drafts::Telling, 0.5, 200) > 1.08);
}

#[test]
fn what_changes_is_noticed() {
    for world in &WORLDS {
        for (before, after) in [(0.05, 0.9), (0.9, 0.05), (0.8, 0.5)] {
            let share = |seed| {
                let mut sequence = Sequence::new(world, &Arc::new(Experience::new(BLOCK)), Drafts::Blind, seed);
                sequence.run(500, before);
                // Up to 128 tokens go by before another attempt, and what it finds has to be believed.
                sequence.run(400, after);
                sequence.run(1000, after) / world.best(after)
            };
            let found = (0..4).map(share).sum::<f64>() / 4.0;
            println!("{}, {before} {after}: {found:.3}", world.name);
            assert!(found > 0.93, "{}, from {before} to {after}: {found}", world.name);
        }
    }
}

#[test]
fn costs_that_change_are_noticed() {
    let (cheap, dear) = (&WORLDS[0], &WORLDS[2]);
    for (before, after) in [(cheap, dear), (dear, cheap)] {
        let share = |seed| {
            let mut sequence = Sequence::new(before, &Arc::new(Experience::new(BLOCK)), Drafts::Blind, seed);
            sequence.run(600, 0.8);
            sequence.world = after;
            sequence.run(1000, 0.8);
            sequence.run(2000, 0.8) / after.best(0.8)
        };
        let found = (0..4).map(share).sum::<f64>() / 4.0;
        println!("{}, then {}: {found:.3}", before.name, after.name);
        assert!(found > 0.95, "{}, then {}: {found}", before.name, after.name);
    }
}

#[test]
fn a_new_sequence_begins_with_what_others_taught() {
    for (world, p) in [(&WORLDS[0], 0.95), (&WORLDS[2], 0.5), (&WORLDS[6], 0.2)] {
        let experience = Arc::new(Experience::new(BLOCK));
        Sequence::new(world, &experience, Drafts::Blind, 1).run(2000, p);
        let mut next = Sequence::new(world, &experience, Drafts::Blind, 2);
        (0..4).for_each(|_| next.round(p));
        match world.best(p) > world.fixed(1, p) {
            true => assert!(next.tokens > 12.0 && next.drafted == 4, "{}: {}", world.name, next.tokens),
            false => assert_eq!(next.drafted, 0, "{}", world.name),
        }
    }
}

#[test]
fn nothing_is_drafted_before_plain_decoding_was_measured() {
    let experience = Arc::new(Experience::new(BLOCK));
    let mut controller = Controller::new(Arc::clone(&experience), BLOCK);
    assert_eq!(controller.plan(0), 1);
    assert_eq!(controller.cut(Proposer::Lookup, &[0.9; 15]).0, 1);
    learn(&mut controller, 1.0, &Measured { rows: 1, ..Measured::default() });
    // The first drafts are narrow, whatever is hoped for.
    assert_eq!(controller.plan(0), 3);
    let draft = |controller: &mut Controller, rows: usize| {
        let confidence = vec![0.99; rows - 1];
        let rows = controller.cut(Proposer::Drafter, &confidence).0;
        let proposer = Some(Proposer::Drafter);
        let drafted = confidence.len() + 1;
        controller.experience.measured(true, (0, 0.0), (drafted, 0.0), (0, 0.0));
        learn(controller, 1.0, &Measured { proposer, confidence: &confidence, rows, accepted: rows - 1 });
        rows
    };
    let widths = [3, 7, 15, 16].map(|rows| (controller.plan(0), draft(&mut controller, rows)));
    assert_eq!(widths, [(3, 3), (7, 7), (15, 15), (16, 16)]);
    // Without a drafter there is nothing to plan.
    assert_eq!(Controller::new(experience, 1).plan(0), 1);
}

#[test]
fn costs_that_are_believed_need_not_be_learned() {
    let planned = |verify: fn(usize) -> f64, draft: f64| {
        let experience = Arc::new(Experience::new(BLOCK));
        experience.believe([1, 2, 4, 8, BLOCK].into_iter().map(|rows| (rows, verify(rows), draft)));
        Controller::new(experience, BLOCK).plan(0)
    };
    // A flat world is for wide blocks from the first round on, another for none.
    assert!(planned(|_| 1.0, 0.01) >= 4);
    assert_eq!(planned(|rows| rows as f64, 1.0), 1);
    // What rounds take counts more in time.
    let experience = Arc::new(Experience::new(BLOCK));
    experience.believe([(1, 1.0, 0.0), (8, 1.0, 0.01), (BLOCK, 1.0, 0.01)].into_iter());
    let mut controller = Controller::new(Arc::clone(&experience), BLOCK);
    for rows in [1, 8, BLOCK].repeat(9) {
        learn(&mut controller, rows as f64, &Measured { rows, ..Measured::default() });
    }
    assert!(experience.look().prices(1, false).verify.at(8.0) >= 8.0);
}

/// Proposals that cost nothing and are as good as the length of the match says.
#[test]
fn looked_up_proposals_are_verified_as_far_as_pays() {
    for world in &WORLDS[..4] {
        let experience = Arc::new(Experience::new(BLOCK));
        let mut controller = Controller::new(Arc::clone(&experience), 1);
        let mut random = Random::new(5);
        let (mut auto, mut fixed) = ((0.0, 0.0), vec![(0.0, 0.0); BLOCK + 1]);
        for round in 0..3000 {
            // A third of the rounds finds something, good or bad.
            let p = [0.0, 0.3, 0.95][random.below(3) as usize];
            let found = p > 0.0;
            let confidence = vec![if p > 0.5 { 0.95 } else { 0.8 }; if found { BLOCK - 1 } else { 0 }];
            let right = (0..BLOCK - 1).take_while(|_| (random.unit() as f64) < p).count();
            let rows = if found { controller.cut(Proposer::Lookup, &confidence).0 } else { 1 };
            let accepted = right.min(rows - 1);
            let verify = (world.verify)(rows);
            let proposer = found.then_some(Proposer::Lookup);
            learn(&mut controller, verify, &Measured { proposer, confidence: &confidence, rows, accepted });
            if round < 200 {
                continue;
            }
            auto = (auto.0 + accepted as f64 + 1.0, auto.1 + verify);
            for (width, sum) in fixed.iter_mut().enumerate().skip(1) {
                let rows = if found { width } else { 1 };
                *sum = (sum.0 + right.min(rows - 1) as f64 + 1.0, sum.1 + (world.verify)(rows));
            }
        }
        let best = fixed[1..].iter().map(|(tokens, seconds)| tokens / seconds).fold(0.0, f64::max);
        let found = auto.0 / auto.1 / best;
        println!("{}: {found:.3}", world.name);
        assert!(found > 1.0, "{}: {found}", world.name);
    }
}

/// Sequences that share their passes, of an engine that knows nothing: their tokens per second from the `warm`th pass on, as a
/// share of what is to be had where all draft alike.
fn shared(world: &World, company: usize, p: f64, warm: usize) -> f64 {
    let experience = Arc::new(Experience::new(BLOCK));
    let mut all: Vec<Controller> = (0..company).map(|_| Controller::new(Arc::clone(&experience), BLOCK)).collect();
    let mut random = Random::new(company as u64);
    let (mut tokens, mut seconds) = (0.0, 0.0);
    for pass in 0..warm + 400 {
        all.iter_mut().for_each(|controller| controller.join(company));
        let drafted: Vec<usize> = all.iter_mut().map(|controller| controller.plan(0)).collect();
        let rounds = all.iter_mut().zip(&drafted).map(|(controller, &drafted)| {
            let confidence = vec![0.6; drafted - 1];
            let rows = if drafted > 1 { controller.cut(Proposer::Drafter, &confidence).0 } else { 1 };
            let accepted = (1..rows).take_while(|_| f64::from(random.unit()) < p).count();
            (confidence, rows, accepted)
        });
        let rounds: Vec<(Vec<f64>, usize, usize)> = rounds.collect();
        let rows = rounds.iter().map(|(_, rows, _)| rows).sum();
        let asked = drafted.iter().filter(|&&rows| rows > 1).sum();
        let draft = if asked > 0 { (world.draft)(asked) } else { 0.0 };
        let verify = (world.verify)(rows);
        let clock = |seconds: f64, random: &mut Random| seconds * (1.0 + 0.06 * f64::from(random.unit()));
        experience.measured(true, (0, 0.0), (asked, clock(draft, &mut random)), (rows, clock(verify, &mut random)));
        for (controller, (confidence, rows, accepted)) in all.iter_mut().zip(&rounds) {
            let proposer = (!confidence.is_empty()).then_some(Proposer::Drafter);
            controller.learn(&Measured { proposer, confidence, rows: *rows, accepted: *accepted });
        }
        if pass >= warm {
            tokens += rounds.iter().map(|(.., accepted)| *accepted as f64 + 1.0).sum::<f64>();
            seconds += draft + verify;
        }
    }
    let fixed = |width: usize| {
        let draft = if width > 1 { (world.draft)(company * width) } else { 0.0 };
        let each: f64 = (0..width).map(|i| p.powi(i as i32)).sum();
        company as f64 * each / ((world.verify)(company * width) + draft)
    };
    tokens / seconds / (1..=BLOCK).map(fixed).fold(0.0, f64::max)
}

#[test]
fn sequences_in_company_find_what_pays_for_all() {
    let mut shares = Vec::new();
    for world in &WORLDS {
        for company in [2, 4, 8] {
            for p in [0.2, 0.5, 0.8, 0.95] {
                let found = shared(world, company, p, 100);
                println!("{}, {company} sequences, {p}: {found:.3}", world.name);
                shares.push(found);
            }
        }
    }
    let found = summary(&shares);
    println!("{found:.3?}");
    assert!(found.0 > 0.96 && found.1 > 0.85, "{found:?}");
}
