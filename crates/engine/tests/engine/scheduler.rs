//! A generation gives in company what it gives alone.

use crate::support::{Kind, Pair, fresh, greedy, load, long, request};
use glimmer_engine::sampling::Sampling;
use glimmer_engine::scheduler::{Scheduler, SchedulerOptions, Update};
use glimmer_engine::{DraftWidth, Engine, EngineError, EngineOptions, Event, Finish, Flow, Generation, Request};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// A request of a batch.
#[derive(Clone, Debug)]
struct Order {
    prompt: usize,
    width: DraftWidth,
    sampled: bool,
    tokens: usize,
    /// Passes before it is submitted.
    after: usize,
    /// Tokens that it hears before it cancels.
    cancel: Option<usize>,
}

type Results = Arc<Mutex<Vec<Option<Result<Generation, EngineError>>>>>;

const ENOUGH: SchedulerOptions = SchedulerOptions { sequences: 8, memory: 1 << 40 };

fn asked(pair: Pair, order: &Order) -> Request {
    let prompts = pair.prompts();
    let sampling =
        if order.sampled { Sampling { seed: 5 + order.prompt as u64, ..Sampling::default() } } else { greedy() };
    request(&prompts[order.prompt % prompts.len()], &sampling, order.width, order.tokens)
}

/// Runs all orders together and gives what each came to.
fn together(engine: &Engine, options: SchedulerOptions, pair: Pair, orders: &[Order]) -> Vec<Generation> {
    let results: Results = Arc::new(Mutex::new(orders.iter().map(|_| None).collect()));
    let mut scheduler = Scheduler::new(engine, options);
    for pass in 0.. {
        for (i, order) in orders.iter().enumerate().filter(|(_, order)| order.after == pass) {
            let (results, cancel) = (Arc::clone(&results), order.cancel);
            let mut heard = 0;
            let listener = move |update| match update {
                Update::Event(Event::Token(_)) => {
                    heard += 1;
                    if cancel.is_some_and(|most| heard >= most) { Flow::Cancel } else { Flow::Continue }
                }
                Update::Event(Event::Prefill { done, .. }) if cancel == Some(0) && done > 0 => Flow::Cancel,
                Update::Event(_) => Flow::Continue,
                Update::Done(result) => {
                    assert!(results.lock().unwrap()[i].replace(result).is_none(), "told twice");
                    Flow::Continue
                }
            };
            scheduler.submit(asked(pair, order), Box::new(listener)).unwrap();
        }
        let more = scheduler.step();
        let (waiting, running) = scheduler.load();
        assert!(running <= options.sequences && more == (waiting + running > 0));
        if !more && orders.iter().all(|order| order.after <= pass) {
            break;
        }
    }
    drop(scheduler);
    let results = Arc::into_inner(results).unwrap().into_inner().unwrap();
    results.into_iter().map(|result| result.expect("an end").unwrap()).collect()
}

fn orders() -> impl Strategy<Value = Vec<Order>> {
    let width = (0..=16usize).prop_map(|width| if width == 0 { DraftWidth::Auto } else { DraftWidth::Fixed(width) });
    let order = (0..7usize, width, any::<bool>(), 1..=40usize, 0..30usize, 0..60usize);
    let order = order.prop_map(|(prompt, width, sampled, tokens, after, cancel)| {
        let cancel = (cancel < 12).then_some(cancel);
        Order { prompt, width, sampled, tokens, after, cancel }
    });
    prop::collection::vec(order, 1..=8)
}

#[test]
fn what_a_generation_gives_does_not_depend_on_its_company() {
    let pair = prop::sample::select(Pair::ALL.to_vec());
    let ways = (pair, prop::sample::select(Kind::ALL.to_vec()), 1..=2usize, 0..3usize, 1..=8usize, orders());
    let config = Config { cases: if long() { 300 } else { 24 }, failure_persistence: None, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &[9; 32]));
    let mut engines: HashMap<_, Engine> = HashMap::new();
    let mut alone: HashMap<(Pair, usize, bool), Vec<u32>> = HashMap::new();
    let (engines, alone) = (std::cell::RefCell::new(&mut engines), std::cell::RefCell::new(&mut alone));
    let result = runner.run(&ways, |(pair, kind, threads, kept, sequences, orders)| {
        let most = if kind == Kind::Dflash { pair.block_size() } else { 16 };
        let orders: Vec<Order> = orders
            .into_iter()
            .map(|order| Order {
                width: match order.width {
                    DraftWidth::Fixed(rows) => DraftWidth::Fixed(rows.min(most)),
                    auto => auto,
                },
                ..order
            })
            .collect();
        // Nothing, a few pages, more than there is.
        let prefix_cache = [0, 300_000, 1 << 30][kept];
        let engine = engines
            .borrow_mut()
            .entry((pair, kind, threads, kept))
            .or_insert_with(|| load(&EngineOptions { prefix_cache, threads: Some(threads), ..kind.of(pair.options()) }))
            .clone();
        let options = SchedulerOptions { sequences, ..ENOUGH };
        for (order, given) in orders.iter().zip(together(&engine, options, pair, &orders)) {
            let key = (pair, order.prompt % pair.prompts().len(), order.sampled);
            let mut alone = alone.borrow_mut();
            let expected = alone.entry(key).or_insert_with(|| {
                let order = Order { width: DraftWidth::Fixed(1), tokens: 40, ..order.clone() };
                // Of any drafter and without one; the seed depends on the order's number, which has the same remainder.
                fresh(&load(&pair.options()), &asked(pair, &order)).token_ids
            });
            if order.sampled && order.prompt >= pair.prompts().len() {
                continue;
            }
            let len = given.token_ids.len();
            assert!(given.token_ids == expected[..len], "{pair:?} {kind:?}: {order:?} of {orders:?}");
            match order.cancel {
                Some(most) if most < order.tokens => {
                    assert!(given.finish == Finish::Cancelled && len == most, "{order:?}: {len}")
                }
                _ => assert!(given.finish == Finish::Length && len == order.tokens, "{order:?}: {len}"),
            }
        }
        if let Some(usage) = engine.prefix_usage() {
            assert!(usage.bytes <= usage.limit && (kept == 1 || usage.pages > 0), "{usage:?}");
        }
        Ok(())
    });
    result.unwrap();
}

#[test]
fn what_is_proposed_for_a_generation_does_not_depend_on_its_company() {
    for (pair, kind) in Pair::ALL.into_iter().flat_map(|pair| Kind::ALL.map(|kind| (pair, kind))) {
        let engine = load(&EngineOptions { prefix_cache: 0, ..kind.of(pair.options()) });
        // Prompts shorter and longer than a page, widths from none to all, arrivals one after the other.
        let widths = [5, 2, 1, pair.block_size(), 3, 7];
        let orders: Vec<Order> = (0..6)
            .map(|i| Order {
                prompt: i,
                width: DraftWidth::Fixed(widths[i]),
                sampled: i % 2 == 1,
                tokens: 12 + 5 * i,
                after: 2 * i,
                cancel: None,
            })
            .collect();
        let proposed = |generation: &Generation| -> Vec<(Vec<u32>, usize, Vec<f64>)> {
            let rounds = generation.rounds.iter();
            rounds.map(|round| (round.proposals.clone(), round.accepted, round.trace.confidence.clone())).collect()
        };
        for (order, given) in orders.iter().zip(together(&engine, ENOUGH, pair, &orders)) {
            let alone = fresh(&engine, &asked(pair, order));
            assert_eq!(given.token_ids, alone.token_ids, "{pair:?} {kind:?}: {order:?}");
            assert_eq!(proposed(&given), proposed(&alone), "{pair:?} {kind:?}: {order:?}");
        }
    }
}

#[test]
fn prompts_are_processed_beside_what_decodes() {
    let engine = load(&EngineOptions { prefill_chunk: 512, ..Pair::Nano.options() });
    let order =
        |prompt, after| Order { prompt, width: DraftWidth::Fixed(1), sampled: false, tokens: 30, after, cancel: None };
    let told: Arc<Mutex<Vec<(usize, Event)>>> = Arc::default();
    let mut scheduler = Scheduler::new(&engine, ENOUGH);
    for (i, order) in [order(0, 0), order(6, 3)].iter().enumerate() {
        let told = Arc::clone(&told);
        let listener = move |update| {
            if let Update::Event(event) = update {
                told.lock().unwrap().push((i, event));
            }
            Flow::Continue
        };
        scheduler.submit(asked(Pair::Nano, order), Box::new(listener)).unwrap();
        (0..3).for_each(|_| assert!(scheduler.step()));
    }
    while scheduler.step() {}
    let told = told.lock().unwrap();
    // The second prompt has 530 tokens: in passes of 128 rows it takes five, and the first has a token of each.
    let first = told.iter().position(|(i, event)| *i == 1 && matches!(event, Event::Prefill { .. })).unwrap();
    let done = told.iter().position(|(i, event)| *i == 1 && matches!(event, Event::Token(_))).unwrap();
    let tokens = told[first..done].iter().filter(|(i, event)| *i == 0 && matches!(event, Event::Token(_))).count();
    let chunks: Vec<usize> = told
        .iter()
        .filter_map(|(i, event)| if let (1, Event::Prefill { done, .. }) = (i, event) { Some(*done) } else { None })
        .collect();
    assert_eq!(chunks, [0, 128, 256, 384, 512, 530]);
    assert!((4..=5).contains(&tokens), "{tokens}");
}

#[test]
fn who_has_no_room_waits_and_who_never_will_is_refused() {
    let engine = Pair::Nano.engine();
    let order = |tokens| Order { prompt: 0, width: DraftWidth::Auto, sampled: false, tokens, after: 0, cancel: None };
    // Room for one of them, not for two.
    let needed = {
        let mut least = 1 << 12;
        while Scheduler::new(&engine, SchedulerOptions { memory: least, ..ENOUGH })
            .submit(asked(Pair::Nano, &order(20)), Box::new(|_| Flow::Continue))
            .is_err()
        {
            least += 1 << 12;
        }
        least
    };
    let options = SchedulerOptions { memory: needed * 3 / 2, ..ENOUGH };
    let mut scheduler = Scheduler::new(&engine, options);
    let ends = Arc::new(Mutex::new(Vec::new()));
    for i in 0..3 {
        let ends = Arc::clone(&ends);
        let listener = move |update| {
            if let Update::Done(result) = update {
                ends.lock().unwrap().push((i, result.unwrap().token_ids));
            }
            Flow::Continue
        };
        scheduler.submit(asked(Pair::Nano, &order(20)), Box::new(listener)).unwrap();
    }
    assert!(scheduler.step());
    assert_eq!(scheduler.load(), (2, 1));
    while scheduler.step() {
        assert!(scheduler.load().1 <= 1);
    }
    let expected = fresh(&engine, &asked(Pair::Nano, &order(20))).token_ids;
    assert_eq!(*ends.lock().unwrap(), [0, 1, 2].map(|i| (i, expected.clone())));
    let tight = SchedulerOptions { memory: needed - (1 << 12), ..ENOUGH };
    let error =
        Scheduler::new(&engine, tight).submit(asked(Pair::Nano, &order(20)), Box::new(|_| Flow::Continue)).unwrap_err();
    let message = error.to_string();
    assert!(
        message.contains("bytes of keys and values") && message.contains(&(needed - (1 << 12)).to_string()),
        "{message}"
    );
    // What a session refuses is refused here, and nobody is told.
    let empty = Request { prompt: Vec::new(), ..asked(Pair::Nano, &order(1)) };
    let error = Scheduler::new(&engine, ENOUGH).submit(empty, Box::new(|_| unreachable!())).unwrap_err();
    assert!(matches!(error, EngineError::EmptyPrompt));
}
