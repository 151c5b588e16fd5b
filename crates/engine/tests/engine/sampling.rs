//! Processors, draws and proposals.

mod draws;
mod reference;
mod table;

use glimmer_engine::sampling::{Chain, DrawError, Sampling, SamplingError, TokenMask};

const INF: f32 = f32::INFINITY;

/// Everything off, temperature 1.
fn plain() -> Sampling {
    Sampling { top_k: 0, top_p: 1.0, ..Sampling::default() }
}

fn greedy() -> Sampling {
    Sampling { temperature: 0.0, ..plain() }
}

fn chain(sampling: Sampling, vocab_size: usize) -> Chain {
    Chain::new(sampling, vocab_size).expect("valid settings")
}

#[test]
fn defaults_are_the_published_model_s() {
    let sampling = Sampling::default();
    assert_eq!((sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p), (1.0, 0.95, 64, 0.0));
    assert_eq!(sampling.repetition_penalty, 1.0);
    assert_eq!((sampling.presence_penalty, sampling.frequency_penalty), (0.0, 0.0));
    assert_eq!(sampling.validate(202_048), Ok(()));
}

#[test]
fn settings_out_of_range_are_refused_by_name() {
    let refused = |name: &str, change: fn(&mut Sampling, f32), values: &[f32]| {
        for &value in values {
            let mut sampling = plain();
            change(&mut sampling, value);
            match sampling.validate(10) {
                Err(SamplingError::Range { name: found, .. }) => assert_eq!(found, name),
                other => panic!("{name} {value}: {other:?}"),
            }
        }
    };
    refused("temperature", |s, v| s.temperature = v, &[-0.1, INF, -INF, f32::NAN]);
    refused("top_p", |s, v| s.top_p = v, &[0.0, -1.0, 1.01, INF, f32::NAN]);
    refused("min_p", |s, v| s.min_p = v, &[-0.1, 1.01, INF, f32::NAN]);
    refused("repetition_penalty", |s, v| s.repetition_penalty = v, &[0.0, -1.0, INF, f32::NAN]);
    refused("presence_penalty", |s, v| s.presence_penalty = v, &[-2.1, 2.1, INF, f32::NAN]);
    refused("frequency_penalty", |s, v| s.frequency_penalty = v, &[-2.1, 2.1, -INF, f32::NAN]);

    let biased = |bias: &[(u32, f32)]| Sampling { logit_bias: bias.to_vec(), ..plain() }.validate(10);
    assert_eq!(biased(&[(9, 100.0), (0, -100.0), (3, -INF)]), Ok(()));
    assert_eq!(biased(&[(10, 0.0)]), Err(SamplingError::BiasToken { token: 10, vocab_size: 10 }));
    assert_eq!(biased(&[(1, 0.0), (1, 2.0)]), Err(SamplingError::BiasTwice { token: 1 }));
    for found in [100.5, -100.5, INF] {
        assert_eq!(biased(&[(1, found)]), Err(SamplingError::Bias { token: 1, found }));
    }
    assert!(matches!(biased(&[(1, f32::NAN)]), Err(SamplingError::Bias { token: 1, .. })));
    assert_eq!(plain().validate(0), Err(SamplingError::Vocabulary { found: 0 }));

    let message = Sampling { top_p: 1.5, ..plain() }.validate(10).map_err(|error| error.to_string());
    assert_eq!(message, Err("top_p is 1.5, expected above 0, at most 1".to_string()));
}

#[test]
fn logits_without_a_token_are_errors() {
    let settings = [
        greedy(),
        plain(),
        Sampling::default(),
        Sampling { top_k: 5, ..plain() },
        Sampling { repetition_penalty: 1.5, ..greedy() },
        Sampling { logit_bias: vec![(70, -INF), (3, 2.0)], ..plain() },
    ];
    for sampling in settings {
        let mut chain = chain(sampling, 100);
        chain.start(&[3, 70]);
        let mut check = |logits: &[f32], error: DrawError| {
            assert_eq!(chain.draw(logits, 0), Err(error));
            assert_eq!(chain.propose(logits, 0, &[3]), Err(error));
            assert_eq!(chain.distribution(logits), Err(error));
        };
        for bad in [f32::NAN, INF] {
            for index in [0, 70, 99] {
                let mut logits = vec![1.0; 100];
                logits[index] = bad;
                check(&logits, DrawError::NonFinite { index });
                logits[99] = bad;
                check(&logits, DrawError::NonFinite { index });
            }
        }
        check(&[-INF; 100], DrawError::NothingLeft);
        check(&[0.0; 99], DrawError::Length { found: 99, expected: 100 });
    }
    let all_banned = Sampling { logit_bias: vec![(0, -INF), (1, -INF)], ..plain() };
    assert_eq!(chain(all_banned, 2).draw(&[1.0, 2.0], 0), Err(DrawError::NothingLeft));
}

/// Lets through only tokens larger than the last one.
struct Rising(u32);

impl TokenMask for Rising {
    fn start(&mut self) {
        self.0 = 0;
    }

    fn accept(&mut self, token: u32) {
        self.0 = token;
    }

    fn mask(&self, pending: &[u32], logits: &mut [f32]) {
        let last = *pending.last().unwrap_or(&self.0) as usize;
        logits[..=last].fill(-INF);
    }
}

#[test]
fn a_mask_stands_between_the_bias_and_the_temperature() {
    let sampling = Sampling { top_k: 2, logit_bias: vec![(1, 100.0), (3, 2.0)], ..plain() };
    let mut chain = Chain::with_mask(sampling, 5, Box::new(Rising(0))).expect("valid settings");
    chain.start(&[4]);
    chain.accept(1);
    // 0 and 1 are masked in spite of the bias; of [.., .., 1, 2, 0] top-k keeps 3 and 2: e^1 and 1, over e + 1.
    let logits = [9.0, 0.0, 1.0, 0.0, 0.0];
    let kept = chain.distribution(&logits).expect("tokens are left");
    assert_eq!(kept.iter().map(|(token, _)| *token).collect::<Vec<_>>(), [3, 2]);
    assert!((kept[0].1 - 0.731_058_578_630).abs() < 1e-12);
    assert_eq!(chain.propose(&logits, 0, &[3]).map(|p| p.token), Ok(4));
    assert_eq!(chain.propose(&logits, 0, &[4]), Err(DrawError::NothingLeft));
    assert_eq!(chain.distribution(&logits), Ok(kept));
    chain.accept(3);
    assert_eq!(chain.draw(&logits, 0), Ok(4));
    chain.start(&[]);
    assert_eq!(chain.distribution(&logits).map(|kept| kept[0].0), Ok(1));
}

#[test]
fn pending_tokens_count_as_output_and_change_nothing() {
    let logits = [2.0, 1.0, 0.0];
    let mut chain = chain(Sampling { presence_penalty: 1.5, frequency_penalty: 0.25, ..greedy() }, 3);
    chain.start(&[0]);
    let mut propose = |pending: &[u32]| chain.propose(&logits, 0, pending).map(|p| p.token);
    assert_eq!(propose(&[]), Ok(0));
    assert_eq!(propose(&[0]), Ok(1)); // 2 - 1.5 - 0.25 = 0.25 against 1
    assert_eq!(propose(&[0, 1]), Ok(0)); // 0.25 against 1 - 1.75 = -0.75 and 0
    assert_eq!(propose(&[0, 1, 0]), Ok(0)); // 2 - 1.5 - 0.5 = 0 ties with token 2: the lowest id
    assert_eq!(propose(&[0, 1, 0, 0]), Ok(2)); // 2 - 1.5 - 0.75 = -0.25 against 0
    assert_eq!(propose(&[99, 7]), Ok(0)); // beyond the vocabulary
    assert_eq!(propose(&[]), Ok(0));
    assert_eq!(chain.draw(&logits, 0), Ok(0));
    chain.accept(0);
    assert_eq!(chain.draw(&logits, 0), Ok(1));
    assert_eq!(chain.propose(&logits, 0, &[1, 0]).map(|p| p.token), Ok(0)); // 0, -0.75, 0
    assert_eq!(chain.propose(&logits, 0, &[1, 0, 0]).map(|p| p.token), Ok(2)); // -0.25, -0.75, 0
    assert_eq!(chain.draw(&logits, 0), Ok(1));
    chain.start(&[0]);
    assert_eq!(chain.draw(&logits, 0), Ok(0));

    // Repetition: once is enough, and the prompt's tokens are penalised already.
    let mut chain = self::chain(Sampling { repetition_penalty: 4.0, ..greedy() }, 3);
    chain.start(&[0]);
    assert_eq!(chain.propose(&[2.0, 1.0, 0.75], 0, &[]).map(|p| p.token), Ok(1)); // 0.5, 1, 0.75
    assert_eq!(chain.propose(&[2.0, 1.0, 0.75], 0, &[1, 1]).map(|p| p.token), Ok(2)); // 0.5, 0.25, 0.75
}

#[test]
fn sharp_proposals_are_likelier_and_draws_stay_as_they_are() {
    let logits = [2.0, 1.5, 1.0, 0.5, 0.0];
    let mass = |sharpness: f64| {
        let mut chain = chain(Sampling { top_p: 1.0, ..Sampling::default() }, 5).with_sharpness(sharpness);
        (0..4000).map(|at| chain.propose(&logits, at, &[]).expect("a token").probability).sum::<f64>()
    };
    let masses = [0.0, 0.5, 1.0, 1.5, 4.0, 1e9].map(mass);
    assert!(masses.is_sorted_by(|a, b| a < b), "{masses:?}");
    let draws = |sharpness: f64| {
        let mut chain = chain(Sampling::default(), 5).with_sharpness(sharpness);
        (0..99).map(|at| chain.draw(&logits, at).expect("a token")).collect::<Vec<_>>()
    };
    assert_eq!(draws(1.0), draws(7.0));
}

#[test]
fn a_proposal_says_how_likely_it_is() {
    // Weights 4, 2, 1, 1: a greedy proposal has 1 / 2 of the mass at temperature 1.
    let logits = [0.0, 2f32.ln(), 4f32.ln(), 0.0];
    let proposal = chain(greedy(), 4).propose(&logits, 0, &[]).expect("a token");
    assert_eq!(proposal.token, 2);
    assert!((proposal.probability - 0.5).abs() < 1e-7);
    // The 64 largest of 1000 equal logits.
    let proposal = chain(greedy(), 1000).propose(&[1.0; 1000], 0, &[]).expect("a token");
    assert_eq!((proposal.token, proposal.probability), (0, 1.0 / 64.0));

    for sampling in [plain(), Sampling { top_k: 3, top_p: 0.8, ..plain() }, Sampling { min_p: 0.3, ..plain() }] {
        let mut chain = chain(sampling, 4);
        let kept = chain.distribution(&logits).expect("tokens");
        for position in 0..50 {
            let proposal = chain.propose(&logits, position, &[]).expect("a token");
            let (_, probability) = kept.iter().find(|(token, _)| *token == proposal.token).expect("a kept token");
            assert!((proposal.probability - probability).abs() < 1e-14);
        }
    }
}

#[test]
fn proposals_among_candidates_add_to_their_logits() {
    let logits = [0.5, 3.0, 2.5, -1.0, 2.0];
    let among = |sampling: Sampling, count: usize, added: &[f32]| {
        let mut told = Vec::new();
        let mut chain = chain(sampling, 5);
        let proposal = chain.propose_among(&logits, 7, &[], count, |candidates| {
            told = candidates.to_vec();
            added.to_vec()
        });
        (told, proposal)
    };
    // 3, 3.5 and 3.25 of the three best.
    let (told, proposal) = among(greedy(), 3, &[0.0, 1.0, 1.25]);
    let proposal = proposal.expect("a token");
    assert_eq!((told, proposal.token), (vec![1, 2, 4], 2));
    assert!((proposal.probability - 1.0 / (1.0 + (-0.5f64).exp() + (-0.25f64).exp())).abs() < 1e-7);
    // Ties go to the lowest id. Whoever is banned is no candidate.
    assert_eq!(among(greedy(), 3, &[0.0, 0.5, 1.0]).1.map(|p| p.token), Ok(1));
    let banned = Sampling { logit_bias: vec![(1, -INF), (4, -INF)], ..greedy() };
    assert_eq!(among(banned, 4, &[0.0; 3]).0, [2, 0, 3]);
    let nobody = Sampling { logit_bias: (0..5).map(|token| (token, -INF)).collect(), ..plain() };
    assert_eq!(among(nobody, 4, &[]).1, Err(DrawError::NothingLeft));
    for bad in [f32::NAN, INF, -INF] {
        assert_eq!(among(plain(), 2, &[0.0, bad]).1, Err(DrawError::NonFinite { index: 2 }));
    }

    // With nothing added, and everything a candidate, it is an ordinary proposal.
    let logits: Vec<f32> = (0..50).map(|t| ((t * 37 + 11) % 64) as f32 * 0.11 - 3.0).collect();
    for sampling in [
        greedy(),
        plain(),
        Sampling { temperature: 0.6, top_k: 7, ..Sampling::default() },
        Sampling { min_p: 0.2, presence_penalty: 1.0, ..plain() },
    ] {
        let mut chain = chain(sampling, 50);
        for position in 0..60 {
            let pending = [position as u32 % 5, 3];
            let ordinary = chain.propose(&logits, position, &pending).expect("a token");
            let among = chain.propose_among(&logits, position, &pending, 50, |all| vec![0.0; all.len()]);
            let among = among.expect("a token");
            assert_eq!(among.token, ordinary.token);
            assert!((among.probability - ordinary.probability).abs() < 1e-12);
        }
    }
}
