//! Every processor against distributions computed by hand.

use super::{INF, chain, greedy, plain};
use glimmer_engine::sampling::Sampling;

struct Case {
    name: &'static str,
    sampling: Sampling,
    logits: Vec<f32>,
    prompt: &'static [u32],
    output: &'static [u32],
    expected: &'static [(u32, f64)],
}

/// Logits whose softmax at temperature 1 is proportional to these weights.
fn weights(weights: &[f32]) -> Vec<f32> {
    weights.iter().map(|w| w.ln()).collect()
}

fn check(cases: Vec<Case>, least: usize) {
    assert!(cases.len() >= least, "{} cases", cases.len());
    for case in cases {
        let name = case.name;
        let mut chain = chain(case.sampling, case.logits.len());
        chain.start(case.prompt);
        case.output.iter().for_each(|&token| chain.accept(token));
        let found = chain.distribution(&case.logits).expect(name);
        assert_eq!(found.len(), case.expected.len(), "{name}: {found:?}");
        for (found, expected) in found.iter().zip(case.expected) {
            assert!(
                found.0 == expected.0 && (found.1 - expected.1).abs() < 1e-6,
                "{name}: {found:?}, not {expected:?}"
            );
        }
        let token = chain.draw(&case.logits, 3).expect(name);
        assert!(case.expected.iter().any(|(kept, p)| *kept == token && *p > 0.0), "{name}: drew {token}");
    }
}

/// A case without prompt and output.
fn case(name: &'static str, sampling: Sampling, logits: &[f32], expected: &'static [(u32, f64)]) -> Case {
    Case { name, sampling, logits: logits.to_vec(), prompt: &[], output: &[], expected }
}

fn seen(prompt: &'static [u32], output: &'static [u32], case: Case) -> Case {
    Case { prompt, output, ..case }
}

const HALVES: &[(u32, f64)] = &[(0, 0.5), (1, 0.5)];

#[test]
fn temperature() {
    let at = |temperature| Sampling { temperature, ..plain() };
    let w = weights(&[4.0, 2.0, 1.0, 1.0]);
    check(
        vec![
            // 4, 2, 1, 1 over 8
            case("neutral", plain(), &w, &[(0, 0.5), (1, 0.25), (2, 0.125), (3, 0.125)]),
            // sorted by weight, then id
            case("unsorted", plain(), &weights(&[1.0, 4.0, 2.0, 1.0]), &[(1, 0.5), (2, 0.25), (0, 0.125), (3, 0.125)]),
            // squares: 16, 4, 1, 1 over 22
            case("half", at(0.5), &w, &[(0, 0.72727273), (1, 0.18181818), (2, 0.04545455), (3, 0.04545455)]),
            // roots of 16, 4, 1, 1: 4, 2, 1, 1 over 8
            case("two", at(2.0), &weights(&[16.0, 4.0, 1.0, 1.0]), &[(0, 0.5), (1, 0.25), (2, 0.125), (3, 0.125)]),
            case("zero", greedy(), &w, &[(0, 1.0)]),
            case("zero takes the lowest id", greedy(), &[1.0, 3.0, 3.0], &[(1, 1.0)]),
            case("zero, both zeros tie", greedy(), &[-1.0, -0.0, 0.0], &[(1, 1.0)]),
            // the limit: all mass on the maximum
            case("smallest", at(1e-45), &[1.0, 3.0, 2.0], &[(1, 1.0), (2, 0.0), (0, 0.0)]),
            case("smallest, tie", at(1e-45), &[3.0, 3.0, 1.0], &[(0, 0.5), (1, 0.5), (2, 0.0)]),
            case("smallest, huge logits", at(1e-45), &[-3e38, 3e38], &[(1, 1.0), (0, 0.0)]),
            // the limit: uniform, the order is still the logits'
            case("largest", at(f32::MAX), &[-100.0, 100.0, 0.0], &[(1, 0.33333333), (2, 0.33333333), (0, 0.33333333)]),
            // e^-6e38 = 0
            case("huge logits", plain(), &[3e38, -3e38], &[(0, 1.0), (1, 0.0)]),
            // a shift cancels
            case("shift", plain(), &[1000.0, 1000.0], HALVES),
            case("one token", plain(), &[-7.0], &[(0, 1.0)]),
            case("banned", plain(), &[-INF, 0.0, -INF], &[(1, 1.0)]),
        ],
        15,
    );
}

#[test]
fn truncation() {
    let k = |top_k| Sampling { top_k, ..plain() };
    let p = |top_p| Sampling { top_p, ..plain() };
    let m = |min_p| Sampling { min_p, ..plain() };
    let w = weights(&[4.0, 2.0, 1.0, 1.0]);
    let ones = [0.0; 4];
    check(
        vec![
            // 4, 2 over 6
            case("top-k", k(2), &weights(&[1.0, 4.0, 2.0, 1.0]), &[(1, 0.66666667), (2, 0.33333333)]),
            // 1, 2 and 3 tie for the second place: the lowest id; 2, 1 over 3
            case("top-k, tie", k(2), &weights(&[2.0, 1.0, 1.0, 1.0]), &[(0, 0.66666667), (1, 0.33333333)]),
            case("top-k 1", k(1), &[5.0, 5.0, 5.0], &[(0, 1.0)]),
            case("top-k of the whole", k(4), &ones, &[(0, 0.25), (1, 0.25), (2, 0.25), (3, 0.25)]),
            case("top-k beyond the whole", k(usize::MAX), &[0.0, 0.0], HALVES),
            case("top-k, banned", k(2), &[0.0, -INF, -INF], &[(0, 1.0)]),
            // two quarters reach a half exactly
            case("top-p reached", p(0.5), &ones, HALVES),
            // two quarters do not reach it, the third crosses; the lowest ids
            case("top-p crossed", p(0.51), &ones, &[(0, 0.33333333), (1, 0.33333333), (2, 0.33333333)]),
            case("top-p, smallest", p(1e-45), &ones, &[(0, 1.0)]),
            // 0.5, 0.75 crosses 0.7; 4, 2 over 6
            case("top-p of two", p(0.7), &w, &[(0, 0.66666667), (1, 0.33333333)]),
            // 0.5, 0.75, 0.875 crosses 0.76, token 2 before 3; over 7
            case("top-p of three", p(0.76), &w, &[(0, 0.57142857), (1, 0.28571429), (2, 0.14285714)]),
            // 0.875 does not reach 0.88
            case("top-p of four", p(0.88), &w, &[(0, 0.5), (1, 0.25), (2, 0.125), (3, 0.125)]),
            // squared, the first has 16 / 22 = 0.727, which reaches 0.7
            case("top-p after temperature", Sampling { temperature: 0.5, ..p(0.7) }, &w, &[(0, 1.0)]),
            // of the two that top-k keeps the first has 2 / 3, which reaches 0.6 (of all it has 1 / 2)
            case("top-p after top-k", Sampling { top_k: 2, ..p(0.6) }, &w, &[(0, 1.0)]),
            // the second has half of the first's
            case("min-p below", m(0.49), &w, &[(0, 0.66666667), (1, 0.33333333)]),
            case("min-p above", m(0.51), &w, &[(0, 1.0)]),
            case("min-p 1 keeps ties", m(1.0), &[2.0, 2.0, 1.9], HALVES),
            // relative to the maximum, not to the mass (a quarter each)
            case("min-p of equals", m(0.9), &ones, &[(0, 0.25), (1, 0.25), (2, 0.25), (3, 0.25)]),
            // squared, the second has a quarter of the first's
            case("min-p after cooling", Sampling { temperature: 0.5, ..m(0.3) }, &w, &[(0, 1.0)]),
            // roots: 4, 2, 1, 1; the second has half, the third a quarter
            case(
                "min-p after heating",
                Sampling { temperature: 2.0, ..m(0.3) },
                &weights(&[16.0, 4.0, 1.0, 1.0]),
                &[(0, 0.66666667), (1, 0.33333333)],
            ),
            // top-p keeps 4 and 2, min-p then drops 2 (0.5 < 0.6)
            case("min-p after top-p", Sampling { min_p: 0.6, ..p(0.7) }, &w, &[(0, 1.0)]),
            // min-p keeps 4 and 2; had it come first, the first would have 2 / 3 and reach 0.6 alone
            case("top-p before min-p", Sampling { min_p: 0.4, ..p(0.6) }, &w, &[(0, 0.66666667), (1, 0.33333333)]),
            // top-k drops the last, top-p (4, 2 of 7 reach 0.8) the third, min-p nothing
            case("all three", Sampling { top_k: 3, min_p: 0.2, ..p(0.8) }, &w, &[(0, 0.66666667), (1, 0.33333333)]),
        ],
        23,
    );
}

#[test]
fn penalties() {
    let r = |repetition_penalty| Sampling { repetition_penalty, ..plain() };
    let p = |presence_penalty| Sampling { presence_penalty, ..plain() };
    let f = |frequency_penalty| Sampling { frequency_penalty, ..plain() };
    check(
        vec![
            // 2 / 2 = 1
            seen(&[0], &[], case("repetition, positive", r(2.0), &[2.0, 1.0], HALVES)),
            // -1 * 2 = -2
            seen(&[0], &[], case("repetition, negative", r(2.0), &[-1.0, -2.0], HALVES)),
            seen(&[0], &[], case("repetition, zero", r(2.0), &[0.0, 0.0], HALVES)),
            seen(&[], &[0], case("repetition of output", r(2.0), &[2.0, 1.0], HALVES)),
            // once, however often
            seen(&[0, 0], &[0, 0], case("repetition of both", r(2.0), &[2.0, 1.0], HALVES)),
            // 1 / 0.5 = 2
            seen(&[0], &[], case("repetition rewarded", r(0.5), &[1.0, 2.0], HALVES)),
            // 3 / 2 = 1.5
            seen(
                &[0],
                &[],
                case("repetition, greedy", Sampling { temperature: 0.0, ..r(2.0) }, &[3.0, 2.0], &[(1, 1.0)]),
            ),
            seen(&[7], &[9], case("repetition beyond the vocabulary", r(2.0), &[1.0, 1.0], HALVES)),
            // saturates: a finite logit never becomes infinite, nor a banned one finite
            seen(&[0], &[], case("repetition, huge", r(1e-30), &[3e38, -3e38], &[(0, 1.0), (1, 0.0)])),
            seen(&[0, 1], &[], case("repetition, banned", r(10.0), &[-3e38, -INF], &[(0, 1.0)])),
            // 1 - 1 = 0
            seen(&[], &[0], case("presence", p(1.0), &[1.0, 0.0], HALVES)),
            seen(&[], &[0, 0, 0], case("presence counts once", p(1.0), &[1.0, 0.0], HALVES)),
            seen(&[0], &[], case("presence in the prompt", p(1.0), &[0.0, 0.0], HALVES)),
            // 0 + 1 = 1
            seen(&[], &[0], case("presence rewarded", p(-1.0), &[0.0, 1.0], HALVES)),
            // -1 - 1 = -2: subtracted from negative logits too
            seen(&[], &[0], case("presence, negative", p(1.0), &[-1.0, -2.0], HALVES)),
            // 1.5 - 3 * 0.5 = 0
            seen(&[], &[0, 0, 0], case("frequency", f(0.5), &[1.5, 0.0], HALVES)),
            seen(&[0, 0], &[], case("frequency in the prompt", f(0.5), &[0.0, 0.0], HALVES)),
            // -1 - 2 * 0.5 = -2
            seen(&[1], &[0, 0], case("frequency, negative", f(0.5), &[-1.0, -2.0], HALVES)),
            // 0 + 2 * 0.5 = 1
            seen(&[], &[0, 0], case("frequency rewarded", f(-0.5), &[0.0, 1.0], HALVES)),
            // 2 - 1 - 2 * 0.5 = 0
            seen(
                &[],
                &[0, 0],
                case("presence and frequency", Sampling { frequency_penalty: 0.5, ..p(1.0) }, &[2.0, 0.0], HALVES),
            ),
            // 4 / 2 - 1 = 1 (not (4 - 1) / 2)
            seen(
                &[],
                &[0],
                case("repetition before presence", Sampling { presence_penalty: 1.0, ..r(2.0) }, &[4.0, 1.0], HALVES),
            ),
            // 1 / 2 - 1 = -0.5 (not (1 - 1) * 2)
            seen(&[], &[0], case("across zero", Sampling { presence_penalty: 1.0, ..r(2.0) }, &[1.0, -0.5], HALVES)),
            // token 0, of the prompt: 2 / 2 = 1; token 1, of the output: 2 / 2 - 1 = 0; token 2: 1.
            // e, e, 1 over 2 e + 1 = 6.4365637
            seen(
                &[0],
                &[1],
                case(
                    "prompt against output",
                    Sampling { presence_penalty: 1.0, ..r(2.0) },
                    &[2.0, 2.0, 1.0],
                    &[(0, 0.42231880), (2, 0.42231880), (1, 0.15536240)],
                ),
            ),
            // 3 / 2 = 1.5 falls behind 2 before the cut
            seen(&[0], &[], case("repetition before top-k", Sampling { top_k: 1, ..r(2.0) }, &[3.0, 2.0], &[(1, 1.0)])),
            // (ln 4) / 2 = ln 2, squared by the temperature: 4, 1 over 5
            seen(
                &[0],
                &[],
                case(
                    "repetition before temperature",
                    Sampling { temperature: 0.5, ..r(2.0) },
                    &weights(&[4.0, 1.0]),
                    &[(0, 0.8), (1, 0.2)],
                ),
            ),
        ],
        25,
    );
}

#[test]
fn bias() {
    let b = |bias: &[(u32, f32)]| Sampling { logit_bias: bias.to_vec(), ..plain() };
    let ln2 = std::f32::consts::LN_2;
    check(
        vec![
            case("bias", b(&[(0, 1.0)]), &[0.0, 1.0], HALVES),
            case("negative bias", b(&[(0, -1.0)]), &[1.0, 0.0], HALVES),
            case("ban", b(&[(2, -INF)]), &[0.0, 0.0, 5.0], HALVES),
            case("ban, greedy", Sampling { temperature: 0.0, ..b(&[(0, -INF)]) }, &[5.0, 1.0, 3.0], &[(2, 1.0)]),
            case("bias of a banned logit", b(&[(0, 100.0)]), &[-INF, 0.0], &[(1, 1.0)]),
            case("bias of a huge logit", b(&[(0, 100.0)]), &[f32::MAX, 0.0], &[(0, 1.0), (1, 0.0)]),
            // 2 / 2 + 1 = 2 against 1 (not 3 / 2): e over e + 1
            seen(
                &[0],
                &[],
                case(
                    "bias after repetition",
                    Sampling { repetition_penalty: 2.0, ..b(&[(0, 1.0)]) },
                    &[2.0, 1.0],
                    &[(0, 0.73105858), (1, 0.26894142)],
                ),
            ),
            // a ban outlives a reward
            seen(
                &[],
                &[0],
                case(
                    "ban after presence",
                    Sampling { presence_penalty: -2.0, ..b(&[(0, -INF)]) },
                    &[1.0, 0.0],
                    &[(1, 1.0)],
                ),
            ),
            // 2, 1 squared: 4, 1 over 5
            case(
                "bias before temperature",
                Sampling { temperature: 0.5, ..b(&[(0, ln2)]) },
                &[0.0, 0.0],
                &[(0, 0.8), (1, 0.2)],
            ),
            case("bias before top-k", Sampling { top_k: 1, ..b(&[(2, 5.0)]) }, &[3.0, 2.0, 1.0], &[(2, 1.0)]),
            // 4, 1, 1 over 6: the first reaches 0.6 (without the bias 1 / 3)
            case("bias before top-p", Sampling { top_p: 0.6, ..b(&[(0, 2.0 * ln2)]) }, &[0.0; 3], &[(0, 1.0)]),
            // relative to the biased maximum
            case("bias before min-p", Sampling { min_p: 0.5, ..b(&[(0, 1.0)]) }, &[0.0; 3], &[(0, 1.0)]),
        ],
        12,
    );
}
