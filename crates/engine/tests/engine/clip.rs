//! One clip point: text, ids, counts and finish are those of plain decoding, wherever in a block the end falls.

use crate::support::{Pair, fresh, greedy, ids, json, load, long, path, request, run};
use glimmer_engine::stops::StopRule;
use glimmer_engine::{EngineError, EngineOptions, Event, Finish, Flow, Generation, Output, Request, Source};

/// What has to be equal.
fn visible(out: &Generation) -> (Vec<u32>, Option<String>, String, Finish, usize) {
    let emitted = out.rounds.iter().map(|round| round.emitted).sum::<usize>() + 1;
    (out.token_ids.clone(), out.text.clone(), out.reasoning.clone(), out.finish, emitted)
}

fn stopping(prompt: &[u32], width: usize, output: Output, stop: StopRule) -> Request {
    Request { stop, output, ..request(prompt, &greedy(), width, 0) }
}

#[test]
fn a_budget_at_each_offset_of_a_block() {
    let engine = Pair::Nano.engine();
    let mut session = engine.session().unwrap();
    // Chat cases have blocks of up to sixteen accepted tokens.
    let prompt = Pair::Nano.prompts()[2].clone();
    for budget in 0..40 {
        let plain = fresh(&engine, &request(&prompt, &greedy(), 1, budget));
        for width in [2, 5, 16] {
            let out = run(&mut session, &request(&prompt, &greedy(), width, budget));
            assert_eq!(out.token_ids, plain.token_ids);
            assert_eq!((out.token_ids.len(), out.finish), (budget, Finish::Length));
            // The block is drafted and verified whole, and cut afterwards.
            assert!(out.rounds.iter().all(|round| round.width == width && round.proposals.len() == width - 1));
            assert_eq!(out.rounds.iter().map(|r| r.emitted).sum::<usize>(), budget.saturating_sub(1));
            if budget > 0 {
                assert_eq!(session.tokens().len(), prompt.len() + budget - 1, "the cache is cut with the output");
            }
        }
    }
}

/// Generations that take turns are what they are alone, whenever one is left.
#[test]
fn steps_of_two_by_turns() {
    let engine = Pair::Nano.engine();
    let prompts = Pair::Nano.prompts();
    let wanted = |at: usize, width| Request { output: Output::Text, ..request(&prompts[at], &greedy(), width, 30) };
    let (one, two) = (wanted(2, 5), wanted(3, 2));
    let alone = [&one, &two].map(|request| visible(&fresh(&engine, request)));
    let mut sessions = [engine.session().unwrap(), engine.session().unwrap()];
    {
        let [first, second] = &mut sessions;
        let mut both = [first.start(one.clone()).unwrap(), second.start(two.clone()).unwrap()];
        let mut go = [true; 2];
        while go.contains(&true) {
            for (ongoing, goes) in both.iter_mut().zip(&mut go) {
                *goes = ongoing.step(&mut |_| Flow::Continue).unwrap();
            }
        }
        assert_eq!(both.map(|ongoing| visible(&ongoing.finish())), alone);
    }
    assert_eq!(sessions[0].tokens().len(), prompts[2].len() + 29);
    // Left after some steps, it is what it had come to, text that was held back included, and the session goes on from there.
    let session = &mut sessions[0];
    for steps in 0..6 {
        session.reset();
        let mut ongoing = session.start(one.clone()).unwrap();
        (0..steps).for_each(|_| assert!(ongoing.step(&mut |_| Flow::Continue).unwrap()));
        let tokens = ongoing.tokens();
        let left = ongoing.finish();
        assert_eq!((left.finish, left.token_ids.len()), (Finish::Cancelled, tokens));
        assert_eq!(left.token_ids, alone[0].0[..tokens]);
        assert!(alone[0].1.as_ref().unwrap().starts_with(left.text.as_deref().unwrap()));
        assert_eq!(visible(&run(session, &one)), alone[0], "after {steps} steps");
    }
}

#[test]
fn stop_strings_inside_across_and_after_blocks() {
    let engine = Pair::Nano.engine();
    let mut session = engine.session().unwrap();
    for case in [2, 3, 4] {
        let prompt = Pair::Nano.prompts()[case].clone();
        let whole = fresh(&engine, &Request { output: Output::Text, ..request(&prompt, &greedy(), 1, 60) });
        let text = whole.text.unwrap();
        let borders: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        for start in (0..borders.len().saturating_sub(12)).step_by(if long() { 3 } else { 61 }) {
            for length in [1, 4, 11] {
                let stop = text[borders[start]..borders[start + length]].to_string();
                let rule = |max| StopRule {
                    strings: vec!["never in it".into(), stop.clone()],
                    max_tokens: max,
                    ignore_eos: true,
                    ..StopRule::default()
                };
                let plain = run(&mut session, &stopping(&prompt, 1, Output::Text, rule(Some(60))));
                assert_eq!(plain.text.as_deref(), text.split(&stop).next(), "{stop:?}");
                assert_eq!(plain.finish, Finish::Stop);
                for width in [2, 3, 5, 16] {
                    let out = run(&mut session, &stopping(&prompt, width, Output::Text, rule(Some(60))));
                    assert_eq!(visible(&out), visible(&plain), "{stop:?} at width {width}");
                    assert_eq!(session.tokens().len(), prompt.len() + out.token_ids.len() - 1);
                }
                // The limit falls on the token that completes the string, or just before it.
                for limit in [plain.token_ids.len(), plain.token_ids.len() - 1] {
                    let plain = run(&mut session, &stopping(&prompt, 1, Output::Text, rule(Some(limit))));
                    let out = run(&mut session, &stopping(&prompt, 16, Output::Text, rule(Some(limit))));
                    assert_eq!(visible(&out), visible(&plain), "{stop:?} with a limit of {limit}");
                }
            }
        }
    }
}

#[test]
fn end_tokens_count_and_give_no_text() {
    let cases = json("nano/nano_expected.json");
    let engine = Pair::Nano.engine();
    let mut session = engine.session().unwrap();
    for name in ["chat_add", "chat_tool"] {
        let case = &cases["cases"][name];
        let prompt = ids(&case["prompt_ids"]);
        let first_stop = case["first_stop_index"].as_u64().unwrap() as usize;
        for width in [1, 2, 5, 16] {
            let rule = StopRule { max_tokens: Some(200), ..StopRule::default() };
            let out = run(&mut session, &stopping(&prompt, width, Output::Text, rule));
            assert_eq!(out.token_ids, &ids(&case["greedy_ids"])[..=first_stop], "{name} {width}");
            assert_eq!(out.finish, Finish::Stop);
            assert!(!out.text.unwrap().contains("<|eot|>"));
        }
    }
}

#[test]
fn chat_splits_reasoning_from_the_answer_at_any_width() {
    let engine = Pair::Nano.engine();
    let prompt = Pair::Nano.prompts()[2].clone();
    for width in [1, 2, 5, 16] {
        let mut session = engine.session().unwrap();
        let rule = StopRule { max_tokens: Some(200), ..StopRule::default() };
        let mut told = (String::new(), String::new());
        let out = session
            .generate(&stopping(&prompt, width, Output::Chat, rule), &mut |event| {
                match event {
                    Event::Reasoning(text) => told.0.push_str(&text),
                    Event::Content(text) => told.1.push_str(&text),
                    _ => {}
                }
                Flow::Continue
            })
            .unwrap();
        assert_eq!(out.reasoning, "23 + 45: ones 3 + 5 = 9. Tens 2 + 4 = 7. So 79.");
        assert_eq!(out.text.as_deref(), Some("23 + 45 = 79."));
        assert_eq!(told, (out.reasoning, out.text.unwrap()));
        // A stop string is looked for in the answer, not in the reasoning.
        let rule = StopRule { strings: vec![" = 7".into()], ..StopRule::default() };
        let out = session.generate(&stopping(&prompt, width, Output::Chat, rule), &mut |_| Flow::Continue).unwrap();
        assert_eq!((out.text.as_deref(), out.finish), (Some("23 + 45"), Finish::Stop));
    }
}

#[test]
fn the_end_of_the_context_is_a_length() {
    let engine = load(&EngineOptions { context: Some(60), ..Pair::Tiny.options() });
    let prompt = Pair::Tiny.prompts()[0].clone(); // 44 tokens
    for width in [1, 2, 8] {
        let mut wanted = request(&prompt, &greedy(), width, 0);
        wanted.stop.max_tokens = None;
        let out = fresh(&engine, &wanted);
        assert_eq!((out.token_ids.len(), out.finish), (16, Finish::Length));
        assert_eq!(out.token_ids, fresh(&Pair::Tiny.engine(), &request(&prompt, &greedy(), 1, 16)).token_ids);
    }
}

#[test]
fn what_cannot_be_done_is_refused_before_work_starts() {
    let engine = load(&EngineOptions { context: Some(60), ..Pair::Tiny.options() });
    let refused = |request: &Request| {
        let mut events = 0;
        let error = engine.session().unwrap().generate(request, &mut |_| {
            events += 1;
            Flow::Continue
        });
        assert_eq!(events, 0, "refused before any event");
        error.unwrap_err().to_string()
    };
    let good = request(&[1, 2, 3], &greedy(), 1, 5);
    let with = |change: &dyn Fn(&mut Request)| {
        let mut request = good.clone();
        change(&mut request);
        refused(&request)
    };
    let long = with(&|r| r.prompt = vec![1; 60]);
    assert!(long.contains("60 tokens") && long.contains("context holds 60"), "{long}");
    assert!(with(&|r| r.prompt.clear()).contains("empty"));
    assert!(with(&|r| r.prompt = vec![512]).contains("token 512"));
    assert!(with(&|r| r.width = 9.into()).contains("2 to 8"));
    assert!(with(&|r| r.width = 0.into()).contains("draft width is 0"));
    assert!(with(&|r| r.sampling.top_p = 0.0).contains("top_p"));
    assert!(with(&|r| r.sampling.temperature = f32::NAN).contains("temperature"));
    assert!(with(&|r| r.stop.strings = vec!["x".into()]).contains("tokenizer"));
    assert!(with(&|r| r.output = Output::Text).contains("only --prompt-ids"));
    assert!(with(&|r| r.output = Output::Chat).contains("chat template"));
    let no_drafter = load(&EngineOptions { drafter: None, ..Pair::Tiny.options() });
    let error = no_drafter.session().unwrap().generate(&request(&[1], &greedy(), 2, 5), &mut |_| Flow::Continue);
    assert!(error.unwrap_err().to_string().contains("no drafter"));
    for (options, expected) in [
        (EngineOptions { context: Some(5000), ..Pair::Tiny.options() }, "2 to 4096"),
        (EngineOptions { context: Some(1), ..Pair::Tiny.options() }, "2 to 4096"),
        (EngineOptions { prefill_chunk: 0, ..Pair::Tiny.options() }, "prefill chunk"),
        (EngineOptions { drafter: Some(Source::Path(path("nano/dflash2"))), ..Pair::Tiny.options() }, "hidden_size"),
        (EngineOptions { drafter: Some(Source::Nano), ..Pair::Tiny.options() }, "hidden_size"),
        (EngineOptions { target: Source::Path(path("nano/assistant")), ..Pair::Nano.options() }, "--draft-model"),
        (EngineOptions { target: Source::Path(path("nano/dflash2")), ..Pair::Nano.options() }, "--draft-model"),
        (
            EngineOptions { drafter: Some(Source::Path(path("nano/target"))), ..Pair::Nano.options() },
            "MuseGlimmerForConditionalGeneration",
        ),
    ] {
        let error: EngineError = glimmer_engine::Engine::load(&options, &mut |_| {}).err().unwrap();
        let message = error.to_string();
        assert!(message.contains(expected) && !message.contains('\n'), "{message}");
    }
}

#[test]
fn a_listener_can_cancel_anywhere() {
    let engine = Pair::Nano.engine();
    let prompt = Pair::Nano.prompts()[2].clone();
    let wanted = Request { output: Output::Text, ..request(&prompt, &greedy(), 5, 30) };
    let whole = fresh(&engine, &wanted).token_ids;
    let mut session = engine.session().unwrap();
    for after in 0..40 {
        let mut events = 0;
        let out = session
            .generate(&wanted, &mut |_| {
                events += 1;
                if events > after { Flow::Cancel } else { Flow::Continue }
            })
            .unwrap();
        assert!(whole.starts_with(&out.token_ids));
        assert!(out.finish == Finish::Cancelled || out.token_ids.len() == 30, "{after}");
        assert!(out.token_ids.len() <= after + 1);
        // The session goes on as if nothing had been.
        assert_eq!(run(&mut session, &wanted).token_ids, whole);
        session.reset();
    }
}
