//! The channel scanner: the same events however the output is cut, and nothing lost.

use crate::tokenizer::{Random, ids_of, nano, nano_cases, segments_of};
use glimmer_engine::chat::channels::{ChannelEvent, Frame, Recipient, Scanner, State};
use glimmer_engine::tokenizer::{Detokenizer, Specials};
use std::sync::Arc;

type Token = (u32, String);

fn frame() -> Frame {
    Frame::new(&nano()).unwrap()
}

fn is_frame(id: u32) -> bool {
    let Frame { start, message, eom, eot, end_of_text } = frame();
    [start, message, eom, eot, end_of_text].contains(&id)
}

/// Model output written as one string, as the tokens and texts that the scanner is fed.
fn tokens(output: &str) -> Vec<Token> {
    let tokenizer = nano();
    detokenized(&tokenizer.encode_segments(&segments_of(&tokenizer, output)).unwrap())
}

fn detokenized(ids: &[u32]) -> Vec<Token> {
    let mut detokenizer = Detokenizer::new(nano(), Specials::Drop);
    ids.iter().map(|&id| (id, detokenizer.push(id).unwrap().to_string())).collect()
}

fn scan(tokens: &[Token]) -> Vec<ChannelEvent> {
    let mut scanner = Scanner::new(frame());
    let mut events = Vec::new();
    for (id, text) in tokens {
        scanner.push(*id, text, &mut events);
    }
    scanner.finish(&mut events);
    joined(&events)
}

/// Neighbouring pieces of one body as one piece.
fn joined(events: &[ChannelEvent]) -> Vec<ChannelEvent> {
    let mut out: Vec<ChannelEvent> = Vec::new();
    for event in events {
        match (out.last_mut(), event) {
            (Some(ChannelEvent::Reasoning(text)), ChannelEvent::Reasoning(more))
            | (Some(ChannelEvent::Content(text)), ChannelEvent::Content(more))
            | (Some(ChannelEvent::ToolText { text, .. }), ChannelEvent::ToolText { text: more, .. }) => {
                text.push_str(more)
            }
            _ => out.push(event.clone()),
        }
    }
    out
}

/// Checks `output` token by token, with texts delayed to the next token at every place, all at once, and character by
/// character.
fn check(output: &str, expected: &[ChannelEvent]) {
    let tokens = tokens(output);
    assert_eq!(scan(&tokens), expected, "{output}");
    let mut late = tokens.clone();
    for at in 0..tokens.len().saturating_sub(1) {
        for cut in [&mut tokens.clone(), &mut late] {
            if !is_frame(cut[at].0) && !is_frame(cut[at + 1].0) {
                let text = std::mem::take(&mut cut[at].1);
                cut[at + 1].1.insert_str(0, &text);
            }
            assert_eq!(scan(cut), expected, "{output}\ncut at {at}");
        }
    }
    let chars = tokens.iter().flat_map(|(id, text)| {
        let texts: Vec<String> =
            if text.is_empty() { vec![String::new()] } else { text.chars().map(String::from).collect() };
        texts.into_iter().map(|text| (*id, text))
    });
    assert_eq!(scan(&chars.collect::<Vec<_>>()), expected, "{output}");
}

fn header(name: &str) -> ChannelEvent {
    let recipient = match name {
        "self" => Recipient::Self_,
        "user" => Recipient::User,
        tool => Recipient::Tool(tool.into()),
    };
    ChannelEvent::Header { recipient }
}

fn reasoning(text: &str) -> ChannelEvent {
    ChannelEvent::Reasoning(text.into())
}

fn content(text: &str) -> ChannelEvent {
    ChannelEvent::Content(text.into())
}

fn tool(name: &str, text: &str) -> ChannelEvent {
    ChannelEvent::ToolText { recipient: name.into(), text: text.into() }
}

const NEXT: ChannelEvent = ChannelEvent::EndMessage { last: false };
const LAST: ChannelEvent = ChannelEvent::EndMessage { last: true };

const CALL: &str = "<atem:function_calls>\n<atem:invoke name=\"get_weather\">\n<atem:parameter name=\"city\">SF</atem:parameter>\n\
                    </atem:invoke>\n</atem:function_calls>";

#[test]
fn worked_outputs() {
    check(
        " to=self<|message|>Greeting.<|eom|><|start|>assistant to=user<|message|>Hi!<|eot|>",
        &[header("self"), reasoning("Greeting."), NEXT, header("user"), content("Hi!"), LAST],
    );
    check(
        &format!(
            " to=self<|message|>Need current data.<|eom|><|start|>assistant to=get_weather<|message|>{CALL}<|eot|>"
        ),
        &[
            header("self"),
            reasoning("Need current data."),
            NEXT,
            header("get_weather"),
            tool("get_weather", CALL),
            LAST,
        ],
    );
    check(" to=user<|message|>It is 65F.<|eot|>", &[header("user"), content("It is 65F."), LAST]);
    check(
        &format!(
            " to=get_weather<|message|>{CALL}<|eom|><|start|>assistant to=filesystem.read<|message|>{CALL}<|eot|>"
        ),
        &[
            header("get_weather"),
            tool("get_weather", CALL),
            NEXT,
            header("filesystem.read"),
            tool("filesystem.read", CALL),
            LAST,
        ],
    );
}

#[test]
fn nano_outputs() {
    let add = [
        header("self"),
        reasoning("23 + 45: ones 3 + 5 = 9. Tens 2 + 4 = 7. So 79."),
        NEXT,
        header("user"),
        content("23 + 45 = 79."),
        LAST,
    ];
    let mut seen = 0;
    for (name, case) in nano_cases() {
        let output = case["greedy_text"].as_str().unwrap();
        let events = scan(&detokenized(&ids_of(&case["greedy_ids"])));
        let tail = |marker: &str| output.rsplit_once(marker).unwrap().1;
        match name.as_str() {
            "chat_add" => assert_eq!(events, add),
            "chat_function" => {
                let thought = "A function is_prime(n) that checks if a number is prime.";
                let answer = tail("to=user<|message|>");
                assert_eq!(events, [header("self"), reasoning(thought), NEXT, header("user"), content(answer)]);
            }
            "chat_tool" => {
                let call = tail("to=get_weather<|message|>");
                let call = call.split_once("<|eot|>").map_or(call, |(call, _)| call);
                let call = if call.contains("<tool_output") {
                    output.split_once("to=get_weather<|message|>").unwrap().1.split_once("<|eot|>").unwrap().0
                } else {
                    call
                };
                let thought = reasoning("I need the weather in Oslo.");
                let call = tool("get_weather", call);
                assert_eq!(events, [header("self"), thought, NEXT, header("get_weather"), call, LAST]);
            }
            _ => continue,
        }
        check(output, &events);
        seen += 1;
    }
    assert_eq!(seen, 3);
}

#[test]
fn outputs_that_are_not_as_they_should_be() {
    let call = tool("get_weather", CALL);
    let cases: Vec<(String, Vec<ChannelEvent>)> = vec![
        // The header is bare, or has no recipient, or is not there.
        ("<|message|>Hi<|eot|>".into(), vec![header("user"), content("Hi"), LAST]),
        ("Hello, to=be or not<|eot|>".into(), vec![header("user"), content("Hello, to=be or not"), LAST]),
        ("assistance<|eot|>".into(), vec![header("user"), content("assistance"), LAST]),
        ("to=a b<|eot|>".into(), vec![header("user"), content("to=a b"), LAST]),
        ("assistant to=user<|message|>Hi".into(), vec![header("user"), content("Hi")]),
        (
            " to=self<|message|>a<|eom|><|start|>assistant<|message|>b<|eot|>".into(),
            vec![header("self"), reasoning("a"), NEXT, header("user"), content("b"), LAST],
        ),
        (
            " to=self<|message|>a<|eom|>b <|eot|>".into(),
            vec![header("self"), reasoning("a"), NEXT, header("user"), content("b "), LAST],
        ),
        (
            " to=self<|message|>a<|eom|> to=user<|message|>b".into(),
            vec![header("self"), reasoning("a"), NEXT, header("user"), content("b")],
        ),
        // Calls that are quoted are text.
        (
            format!(" to=self<|message|>{CALL}<|eom|><|start|>assistant to=user<|message|>{CALL}<|eot|>"),
            vec![header("self"), reasoning(CALL), NEXT, header("user"), content(CALL), LAST],
        ),
        // `<|eom|>` is missing.
        (
            format!(" to=self<|message|>a<|start|>assistant to=get_weather<|message|>{CALL}<|eot|>"),
            vec![header("self"), reasoning("a"), NEXT, header("get_weather"), call.clone(), LAST],
        ),
        (
            format!(" to=self<|message|>Now the call. to=get_weather<|message|>{CALL}<|eot|>"),
            vec![header("self"), reasoning("Now the call."), NEXT, header("get_weather"), call.clone(), LAST],
        ),
        (
            " to=user<|message|>I write to=self and  to= and to=get_weather<|eot|>".into(),
            vec![header("user"), content("I write to=self and  to= and to=get_weather"), LAST],
        ),
        (
            " to=self<|message|>x to=get_weather<|eom|><|start|>assistant to=user<|message|>y".into(),
            vec![header("self"), reasoning("x to=get_weather"), NEXT, header("user"), content("y")],
        ),
        // An answer, and then a call in the same turn.
        (
            format!(" to=user<|message|>Let me look.<|eom|><|start|>assistant to=get_weather<|message|>{CALL}<|eot|>"),
            vec![header("user"), content("Let me look."), NEXT, header("get_weather"), call.clone(), LAST],
        ),
        // Straight to a call.
        (format!(" to=get_weather<|message|>{CALL}<|eot|>"), vec![header("get_weather"), call, LAST]),
        // Nothing after the reasoning.
        (" to=self<|message|>a<|eot|>".into(), vec![header("self"), reasoning("a"), LAST]),
        (" to=self<|message|>a<|eom|><|end_of_text|>".into(), vec![header("self"), reasoning("a"), NEXT, LAST]),
        (" to=self<|message|>a".into(), vec![header("self"), reasoning("a")]),
        (" to=sel".into(), vec![]),
        ("<|eot|>".into(), vec![LAST]),
        // The model goes on as somebody else.
        (" to=user<|message|>Hi<|start|>user<|message|>And?<|eot|>".into(), vec![header("user"), content("Hi"), LAST]),
        (
            " to=user<|message|>Hi<|eot|><|start|>assistant to=user<|message|>More<|eot|>".into(),
            vec![header("user"), content("Hi"), LAST],
        ),
        // Control tokens in the wrong place.
        (
            " to=get_weather<|message|><atem:invoke name=\"x<|message|>y<|eot|>".into(),
            vec![header("get_weather"), tool("get_weather", "<atem:invoke name=\"x<|message|>y"), LAST],
        ),
        (" to=user<|message|>a<|message|>b<|eot|>".into(), vec![header("user"), content("ab"), LAST]),
        (" to=user<|message|>a<|image|>b<|eot|>".into(), vec![header("user"), content("ab"), LAST]),
        (
            " to=self<|message|>a<|start|><|start|>assistant to=user<|message|>b".into(),
            vec![header("self"), reasoning("a"), NEXT, header("user"), content("b")],
        ),
        (" to=self<|message|>a<|start|>assist".into(), vec![header("self"), reasoning("a"), NEXT]),
    ];
    for (output, expected) in cases {
        check(&output, &expected);
    }
}

#[test]
fn text_is_passed_on_at_once() {
    let mut scanner = Scanner::new(frame());
    let mut events = Vec::new();
    assert_eq!(scanner.state(), State::Header);
    let mut step = |id: u32, text: &str| {
        events.clear();
        scanner.push(id, text, &mut events);
        (events.clone(), format!("{:?}", scanner.state()))
    };
    let text = |text: &str| vec![content(text)];
    let none = Vec::<ChannelEvent>::new();
    assert_eq!(step(0, " to"), (none.clone(), "Header".into()));
    assert_eq!(step(0, "=user"), (none.clone(), "Header".into()));
    let body = "Body(User)".to_string();
    assert_eq!(step(frame().message, ""), (vec![header("user")], body.clone()));
    assert_eq!(step(0, "Hi"), (text("Hi"), body.clone()));
    assert_eq!(step(0, " there"), (text(" there"), body.clone()), "held back only while it may be a header");
    assert_eq!(step(0, " to"), (none.clone(), body.clone()));
    assert_eq!(step(0, "day"), (text(" today"), body.clone()));
    assert_eq!(step(0, " to="), (none.clone(), body.clone()));
    assert_eq!(step(0, &"x".repeat(200)), (none.clone(), body.clone()));
    assert_eq!(step(0, &"x".repeat(200)), (text(&format!(" to={}", "x".repeat(400))), body.clone()), "bounded");
    assert_eq!(step(frame().eot, "\u{FFFD}"), (vec![content("\u{FFFD}"), LAST], "Ended".into()));
    assert_eq!(step(0, "more"), (none, "Ended".into()));
}

/// The events of a whole output at once.
fn oracle(tokens: &[Token]) -> Vec<ChannelEvent> {
    let mut events = oracle_events(tokens);
    events.retain(|event| match event {
        ChannelEvent::Reasoning(text) | ChannelEvent::Content(text) | ChannelEvent::ToolText { text, .. } => {
            !text.is_empty()
        }
        _ => true,
    });
    joined(&events)
}

/// From the stretches of text between the tokens of the framing.
fn oracle_events(tokens: &[Token]) -> Vec<ChannelEvent> {
    let frame = frame();
    let mut stretches: Vec<(String, Option<u32>)> = vec![(String::new(), None)];
    for (id, text) in tokens {
        let (stretch, end) = stretches.last_mut().unwrap();
        stretch.push_str(text);
        if is_frame(*id) {
            *end = Some(*id);
            stretches.push((String::new(), None));
        }
    }
    let mut events = Vec::new();
    let mut body: Option<String> = None;
    let (mut started, mut open) = (false, false);
    for (mut text, end) in stretches {
        if body.is_none() {
            let bare = text.strip_prefix("assistant").unwrap_or(&text).to_string();
            let words: Vec<&str> = bare.split_whitespace().collect();
            let is_header = match words[..] {
                [] => true,
                [word] => word.starts_with("to=") || "to=".starts_with(word) && !bare.ends_with(char::is_whitespace),
                _ => false,
            };
            if "assistant".starts_with(&text) || is_header {
                let name = words.first().and_then(|word| word.strip_prefix("to=")).unwrap_or("");
                if end == Some(frame.message) {
                    if open {
                        events.push(NEXT);
                    }
                    open = false;
                    let name = if name.is_empty() || "assistant".starts_with(&text) { "user" } else { name };
                    events.push(header(name));
                    body = Some(name.to_string());
                    continue;
                }
                text.clear();
            } else if started && bare == text {
                events.push(LAST);
                return events;
            } else {
                if open {
                    events.push(NEXT);
                }
                open = false;
                events.push(header("user"));
                body = Some("user".into());
                text = if started { bare } else { text };
            }
        }
        let say = |name: &str, text: &str| match name {
            "self" => reasoning(text),
            "user" => content(text),
            name => tool(name, text),
        };
        if let Some(name) = body.clone() {
            let inline = text.rsplit_once(" to=").map(|(before, to)| (before.to_string(), to.to_string()));
            let named = |c: char| c.is_ascii_alphanumeric() || "_-.:/@".contains(c);
            match inline.filter(|(_, to)| !to.is_empty() && to.chars().all(named)) {
                Some((before, to)) if end == Some(frame.message) => {
                    events.extend([say(&name, &before), NEXT, header(&to)]);
                    body = Some(to);
                    continue;
                }
                _ => events.push(say(&name, &text)),
            }
            if end == Some(frame.message) && !["self", "user"].contains(&name.as_str()) {
                events.push(say(&name, "<|message|>"));
            }
        }
        let was_body = body.is_some();
        if end == Some(frame.eom) {
            events.extend((was_body || open).then_some(NEXT));
            (body, started, open) = (None, false, false);
        } else if end == Some(frame.start) {
            open |= was_body;
            (body, started) = (None, true);
        } else if end.is_some() && end != Some(frame.message) {
            events.push(LAST);
            return events;
        }
    }
    events.extend(open.then_some(NEXT));
    events
}

#[test]
fn any_soup_of_tokens_is_scanned_as_a_whole_would_be() {
    let tokenizer = nano();
    let Frame { start, message, eom, eot, end_of_text } = frame();
    let words = [
        "assistant",
        " to=",
        "to=",
        "self",
        "user",
        " to=get_weather",
        " ",
        "to",
        " t",
        "\n",
        "a",
        "=",
        "é",
        "<|eot|>",
    ];
    let words: Vec<Vec<u32>> = words.iter().map(|word| tokenizer.encode(word).unwrap()).collect();
    let mut bodies = 0;
    for seed in 0..20_000 {
        let mut random = Random::new(seed);
        let mut ids = Vec::new();
        for _ in 0..random.below(30) {
            match random.below(16) {
                0 | 1 => ids.push(start),
                2..=4 => ids.push(message),
                5 => ids.push(eom),
                6 if random.below(6) == 0 => ids.push([eot, end_of_text][random.below(2)]),
                7 => ids.push(random.below(tokenizer.vocab_size()) as u32),
                _ => ids.extend(&words[random.below(words.len())]),
            }
        }
        let tokens = detokenized(&ids);
        let events = scan(&tokens);
        assert_eq!(events, oracle(&tokens), "{seed}: {:?}", tokenizer.decode_with_specials(&ids));
        bodies += events.iter().filter(|event| matches!(event, ChannelEvent::Header { .. })).count();
    }
    assert!(bodies > 10_000);
}

#[test]
fn a_long_body_takes_linear_time() {
    let mut scanner = Scanner::new(frame());
    let mut events = Vec::new();
    scanner.push(frame().message, "", &mut events);
    for _ in 0..1_000_000 {
        events.clear();
        scanner.push(0, " to", &mut events);
    }
    let mut scanner = Scanner::new(frame());
    (0..1_000_000).for_each(|_| scanner.push(0, " ", &mut events));
}

#[test]
fn a_tokenizer_without_the_framing_is_refused() {
    let json = crate::tokenizer::nano_bytes("target/tokenizer.json");
    let json = String::from_utf8(json).unwrap().replace("<|eom|>", "<|xxx|>");
    let tokenizer =
        Arc::new(glimmer_engine::tokenizer::Tokenizer::from_json(json.as_bytes(), "tokenizer.json").unwrap());
    let error = Frame::new(&tokenizer).unwrap_err().to_string();
    assert_eq!(error, "tokenizer.json: there is no special token `<|eom|>`");
}
