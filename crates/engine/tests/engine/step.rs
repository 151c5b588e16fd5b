//! Timing passes: what is refused, and that the numbers belong together.

use crate::support::{Pair, load, path};
use glimmer_engine::step::{Matrices, PRODUCT_SHARE, READ_SHARE, StepPlan, TokenPlan, TokenTimes, Work};
use glimmer_engine::{Engine, EngineError, EngineOptions, Source};
use std::time::Duration;

fn plan() -> StepPlan {
    StepPlan { widths: vec![1, 3], depth: 40, prefill: 20, decode: 4, rounds: 2, time: Duration::ZERO, seed: 1 }
}

fn engine(target: &str) -> Engine {
    let target = Source::Path(path(target));
    load(&EngineOptions { context: Some(80), prefill_chunk: 8, threads: Some(1), ..EngineOptions::new(target) })
}

#[test]
fn what_was_measured_is_what_was_asked_for() {
    let report = engine("fixtures/muse-tiny-bf16").time_steps(&plan()).unwrap();
    assert_eq!((report.rounds, report.widths.iter().map(|t| t.rows).collect::<Vec<_>>()), (2, vec![1, 3]));
    for timing in report.widths.iter().chain(&report.prefill).chain(&report.decode) {
        assert!(Duration::ZERO < timing.min && timing.min <= timing.median, "{timing:?}");
        assert_eq!(timing.cpu.is_some(), cfg!(unix));
    }
    assert_eq!((report.prefill.unwrap().rows, report.decode.unwrap().rows), (20, 4));
    for (best, median) in [
        (report.best.bytes, report.median.bytes),
        (report.best.integers, report.median.integers),
        (report.best.floats, report.median.floats),
    ] {
        assert!(best >= median && median > 1e6);
    }

    // 8 layers of hidden size 64, MLP 96, 8 query and 2 key heads of 16; 512 tokens; bf16.
    let layer = 64 * (3 * 128 + 2 * 32) + 3 * 64 * 96;
    let floats = |products| Work { bytes: 2 * products, integers: 0, floats: products };
    assert_eq!(report.matrices, Matrices { layers: floats(8 * layer), head: floats(512 * 64) });
    let limits = &report.best;
    let read = report.bytes() as f64 / (READ_SHARE * limits.bytes);
    let multiply = (3 * 8 * layer + 512 * 64) as f64 / (PRODUCT_SHARE * limits.floats);
    let bound = report.bound(limits, 3, 1).as_secs_f64();
    assert!((bound - read.max(multiply)).abs() < 1e-8, "{bound} {read} {multiply}");
}

#[test]
fn quantized_matrices_are_integers() {
    let report = engine("fixtures/muse-tiny-mlx-vlm-4bit")
        .time_steps(&StepPlan { prefill: 0, decode: 0, rounds: 1, ..plan() })
        .unwrap();
    assert_eq!((report.prefill, report.decode), (None, None));
    let Matrices { layers, head } = report.matrices;
    assert_eq!((head.integers, head.floats, head.bytes), (512 * 64, 0, 512 * (32 + 4)));
    assert!(layers.integers > 0);
}

#[test]
fn what_there_is_no_room_for_is_refused() {
    let engine = engine("fixtures/muse-tiny-bf16");
    let refused = |plan: StepPlan, what: &str| match engine.time_steps(&plan) {
        Err(EngineError::Range { what: found, .. }) => assert_eq!(found, what),
        other => panic!("{other:?}"),
    };
    refused(StepPlan { widths: vec![9], ..plan() }, "the width of a pass");
    refused(StepPlan { widths: vec![1, 0], ..plan() }, "the width of a pass");
    refused(StepPlan { widths: vec![], ..plan() }, "the number of passes");
    refused(StepPlan { rounds: 0, ..plan() }, "the number of passes");
    refused(StepPlan { depth: 61, ..plan() }, "the depth");
    refused(StepPlan { prefill: 81, depth: 0, ..plan() }, "the depth");
    refused(StepPlan { depth: usize::MAX, ..plan() }, "the depth");
}

#[test]
fn a_filled_cache_is_used_like_any_other() {
    // Deeper than the window of 16 and its slack, so that the ring has wrapped.
    let report = load(&EngineOptions { context: Some(500), ..Pair::Tiny.options() })
        .time_steps(&StepPlan { depth: 450, prefill: 50, ..plan() })
        .unwrap();
    assert_eq!(report.widths.len(), 2);
}

#[test]
fn tokens_are_timed_as_often_as_was_asked_for() {
    let engine = engine("fixtures/muse-tiny-bf16");
    let plan = TokenPlan { depth: 40, prefill: 20, decode: 6, repeats: 4, seed: 1 };
    let times = engine.time_tokens(&plan).unwrap();
    assert_eq!((times.prefill.len(), times.decode.len()), (4, 4));
    assert!(times.prefill.iter().chain(&times.decode).all(|time| *time > Duration::ZERO));
    let only = engine.time_tokens(&TokenPlan { prefill: 0, ..plan }).unwrap();
    assert_eq!((only.prefill.len(), only.decode.len()), (0, 4));
    let none = engine.time_tokens(&TokenPlan { prefill: 0, decode: 0, ..plan }).unwrap();
    assert_eq!(none, TokenTimes::default());
    let refused = engine.time_tokens(&TokenPlan { depth: 61, ..plan }).unwrap_err();
    assert!(matches!(refused, EngineError::Range { what: "the depth", found: 61, .. }), "{refused}");
}
