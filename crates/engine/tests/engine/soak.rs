//! Eight streams for a long time, in a process of its own, since others would be measured as well.

use crate::memory::anonymous;
use crate::support::{Pair, fresh, greedy, load, long, request};
use glimmer_engine::sampling::Sampling;
use glimmer_engine::scheduler::{Scheduler, SchedulerOptions, Update};
use glimmer_engine::{DraftWidth, EngineOptions, Event, Finish, Flow, Request};
use std::collections::HashMap;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Tells the child process to go.
const CHILD: &str = "GLIMMER_TEST_SOAK";
/// Generations in CI; ten minutes of them in the long form.
const GENERATIONS: usize = 600;
const STREAMS: usize = 8;
const TOKENS: usize = 48;

#[test]
fn eight_streams_go_on_without_a_leak_and_give_what_they_give_alone() {
    if std::env::var_os(CHILD).is_some() {
        return child();
    }
    let test = "soak::eight_streams_go_on_without_a_leak_and_give_what_they_give_alone";
    let mut command = Command::new(std::env::current_exe().unwrap());
    let output = command.args(["--exact", test, "--nocapture"]).env(CHILD, "1").output().unwrap();
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).join("\n");
    println!("{text}");
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

/// Numbers that look random.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % n
    }
}

fn child() {
    let pair = Pair::Nano;
    let options = EngineOptions { prefix_cache: 8 << 20, threads: Some(2), ..pair.options() };
    let engine = load(&options);
    let mut kinds: Vec<Request> = pair
        .prompts()
        .iter()
        .flat_map(|prompt| {
            [greedy(), Sampling { seed: 11, ..Sampling::default() }]
                .map(|sampling| request(prompt, &sampling, DraftWidth::Auto, TOKENS))
        })
        .collect();
    // As many of the longest as there are streams, which have nothing in common: all of them at once take the most memory.
    let (common, last) = (kinds.len(), pair.prompts().pop().unwrap());
    kinds.extend((0..STREAMS).map(|i| {
        let mut prompt = last.clone();
        prompt.rotate_left(i + 1);
        request(&prompt, &greedy(), DraftWidth::Auto, 4 * TOKENS)
    }));
    let alone: HashMap<usize, Vec<u32>> =
        kinds.iter().enumerate().map(|(i, asked)| (i, fresh(&engine, asked).token_ids)).collect();
    let (alone, ended) = (Arc::new(alone), Arc::new(Mutex::new([0usize; 2])));
    let mut scheduler = Scheduler::new(&engine, SchedulerOptions { sequences: STREAMS, memory: 1 << 40 });
    let (mut random, mut submitted) = (Random(1), 0);
    let started = Instant::now();
    let over = |submitted: usize| match long() {
        true => started.elapsed() > Duration::from_secs(600),
        false => submitted >= GENERATIONS,
    };
    let first_part = |submitted: usize| match long() {
        true => started.elapsed() < Duration::from_secs(120),
        false => submitted < GENERATIONS / 2,
    };
    // Memory after a first part and the longest ones, when everything has been as large as it gets, and from then on.
    let (mut longest, mut later, mut settled, mut most) = (common..kinds.len(), 0, None, 0);
    loop {
        let (waiting, running) = scheduler.load();
        if waiting + running < STREAMS && !over(submitted) {
            let large = if first_part(submitted) { None } else { longest.next() };
            let kind = large.unwrap_or_else(|| random.below(common));
            let tokens = kinds[kind].stop.max_tokens.unwrap();
            // One in three is cancelled, anywhere between its first event and its last.
            let cancel = (random.below(3) == 0 && large.is_none()).then(|| random.below(tokens));
            later += usize::from(longest.is_empty());
            let (alone, ended, mut heard) = (Arc::clone(&alone), Arc::clone(&ended), 0);
            let listener = move |update| match update {
                Update::Event(Event::Token(_)) => {
                    heard += 1;
                    if cancel.is_some_and(|most| heard > most) { Flow::Cancel } else { Flow::Continue }
                }
                Update::Event(_) => Flow::Continue,
                Update::Done(result) => {
                    let given = result.unwrap();
                    assert!(given.token_ids == alone[&kind][..given.token_ids.len()], "{kind} {cancel:?}");
                    let cancelled = given.finish == Finish::Cancelled;
                    assert!(
                        cancelled == cancel.is_some_and(|most| most + 1 < tokens) || given.token_ids.len() == tokens
                    );
                    ended.lock().unwrap()[usize::from(cancelled)] += 1;
                    Flow::Continue
                }
            };
            scheduler.submit(kinds[kind].clone(), Box::new(listener)).unwrap();
            submitted += 1;
            continue;
        }
        if !scheduler.step() {
            break;
        }
        match settled {
            None if later > 4 * STREAMS => settled = Some(anonymous()),
            Some(_) => most = most.max(anonymous()),
            None => {}
        }
    }
    let [whole, cancelled] = *ended.lock().unwrap();
    let settled = settled.unwrap();
    println!("{whole} whole, {cancelled} cancelled; {settled} bytes after the first part, at most {most} later");
    assert!(whole + cancelled == submitted && whole > 0 && cancelled > 0);
    assert!(most <= settled + settled / 50, "{settled} bytes, then {most}");
}
