//! Stop strings against a search of the whole text, and the clip point.

use glimmer_engine::stops::{
    Clip, Clipped, FinishReason, MAX_STOP_BYTES, MAX_STOPS, StopCause, StopError, StopHit, StopMatcher, StopRule,
};
use proptest::prelude::*;

/// The text to release and the stop string found, by searching every end from the left.
fn whole(text: &str, stops: &[&str]) -> (String, Option<usize>) {
    for end in 0..=text.len() {
        let found = (0..stops.len()).filter(|&which| text.as_bytes()[..end].ends_with(stops[which].as_bytes()));
        // The longest starts earliest; of equal strings the first.
        if let Some(which) = found.rev().max_by_key(|&which| stops[which].len()) {
            return (text[..end - stops[which].len()].to_string(), Some(which));
        }
    }
    (text.to_string(), None)
}

/// What the matcher releases in all. Checks that it holds back no more than a stop string can still need.
fn streamed(pieces: &[&str], stops: &[&str]) -> (String, Option<usize>) {
    let mut matcher = StopMatcher::new(stops).expect("valid stop strings");
    let (mut out, mut fed, mut hit) = (String::new(), String::new(), None);
    for piece in pieces {
        let step = matcher.push(piece);
        fed.push_str(piece);
        out.push_str(&step.emit);
        if hit.is_some() {
            assert_eq!((step.emit.as_str(), step.hit), ("", hit));
        }
        hit = step.hit;
        if hit.is_none() {
            let held = &fed[out.len()..];
            assert!(held.is_empty() || stops.iter().any(|stop| stop.starts_with(held)), "held {held:?}");
        }
    }
    out.push_str(&matcher.finish());
    assert_eq!(matcher.finish(), "");
    (out, hit.map(|hit: StopHit| hit.which))
}

/// Cuts a text at character borders: a set bit cuts before that character.
fn pieces(text: &str, cuts: u32) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut start = 0;
    for (n, (at, _)) in text.char_indices().enumerate() {
        if n > 0 && cuts >> ((n - 1) % 32) & 1 == 1 {
            pieces.push(&text[start..at]);
            start = at;
        }
    }
    pieces.push(&text[start..]);
    pieces
}

#[test]
fn every_split_gives_the_same() {
    let cases: [(&str, &[&str], &str, Option<usize>); 16] = [
        ("hello STOP rest", &["STOP"], "hello ", Some(0)),
        ("STOP", &["STOP"], "", Some(0)),
        ("xSTO", &["STOP"], "xSTO", None),
        ("STOSTOP!", &["STOP"], "STO", Some(0)),
        ("aaab!", &["aab"], "a", Some(0)),
        ("aaaa", &["aaa"], "", Some(0)),
        ("ababac", &["abac"], "ab", Some(0)),
        ("aabaaabaaac", &["aabaaac"], "aaba", Some(0)),
        ("one two", &["two", "one"], "", Some(1)),
        // "bc" ends before "abcd" does
        ("xabcd", &["abcd", "bc"], "xa", Some(1)),
        // both end together, "abc" starts earlier
        ("xabcd", &["bc", "abc"], "x", Some(1)),
        // a longer match fails, a shorter one within it was found first
        ("xabce", &["abcd", "c"], "xab", Some(1)),
        ("xyx", &["x", "x"], "", Some(0)),
        ("größe €€¥!", &["€¥"], "größe €", Some(0)),
        // the first bytes of a character are those of another
        ("äöüé", &["üè"], "äöüé", None),
        ("a👍🏽b", &["🏽"], "a👍", Some(0)),
    ];
    for (text, stops, out, hit) in cases {
        assert_eq!(whole(text, stops), (out.to_string(), hit), "{text}");
        for cuts in 0..1 << (text.chars().count() - 1) {
            assert_eq!(streamed(&pieces(text, cuts), stops), (out.to_string(), hit), "{text} {cuts:b}");
        }
    }
}

#[test]
fn text_is_released_as_soon_as_it_is_safe() {
    let mut matcher = StopMatcher::new(&["</end>", "\n\n"]).expect("valid stop strings");
    let mut push = |piece: &str| matcher.push(piece).emit;
    assert_eq!(push("a <"), "a ");
    assert_eq!(push("/e"), "");
    assert_eq!(push("x\n"), "</ex");
    assert_eq!(push(""), "");
    assert_eq!(push("b\n"), "\nb");
    assert_eq!(
        matcher.push("\nrest"),
        glimmer_engine::stops::StopStep { emit: String::new(), hit: Some(StopHit { which: 1 }) }
    );
    assert_eq!(matcher.finish(), "");
    let none: [&str; 0] = [];
    assert_eq!(StopMatcher::new(&none).expect("no stop strings").push("all").emit, "all");
}

#[test]
fn impossible_stop_strings_are_refused() {
    let refused = |stops: &[String]| StopMatcher::new(stops).err();
    assert_eq!(refused(&["a".into(), String::new()]), Some(StopError::Empty { which: 1 }));
    assert_eq!(refused(&vec!["a".into(); MAX_STOPS]), None);
    assert_eq!(refused(&vec!["a".into(); MAX_STOPS + 1]), Some(StopError::TooMany { found: MAX_STOPS + 1 }));
    assert_eq!(refused(&["a".repeat(MAX_STOP_BYTES)]), None);
    let found = MAX_STOP_BYTES + 1;
    assert_eq!(refused(&["a".repeat(found)]), Some(StopError::TooLong { which: 0, found }));
    assert!(Clip::new(StopRule { strings: vec![String::new()], ..StopRule::default() }).is_err());
}

fn clip(eos: &[u32], max_tokens: Option<usize>, strings: &[&str]) -> Clip {
    let strings = strings.iter().map(|s| s.to_string()).collect();
    Clip::new(StopRule { eos: eos.to_vec(), ignore_eos: false, max_tokens, strings }).expect("valid stop strings")
}

fn clipped(emit: &str, finish: Option<FinishReason>) -> Clipped {
    Clipped { emit: emit.to_string(), finish }
}

#[test]
fn an_end_token_counts_and_gives_no_text() {
    let mut clip = clip(&[7, 8], Some(10), &["stop"]);
    let end = Some(FinishReason::Stop(StopCause::Token(8)));
    assert_eq!(clip.push(1, "a st"), clipped("a ", None));
    assert_eq!(clip.push(8, "<|end|>"), clipped("st", end)); // what was held back comes out
    assert_eq!(clip.tokens(), 2);
    assert_eq!(clip.push(1, "more"), clipped("", end));
    assert_eq!(clip.tokens(), 2);
    assert_eq!(clip.flush(), "");

    let rule = StopRule { eos: vec![7], ignore_eos: true, ..StopRule::default() };
    let mut clip = Clip::new(rule).expect("no stop strings");
    assert_eq!(clip.push(7, "x"), clipped("x", None));
    assert!(!clip.exhausted());
}

#[test]
fn a_stop_string_counts_up_to_the_token_that_completes_it() {
    let mut clip = clip(&[7], None, &["stop"]);
    assert_eq!(clip.push(1, "text st"), clipped("text ", None));
    assert_eq!(clip.push(2, "op and more"), clipped("", Some(FinishReason::Stop(StopCause::String(0)))));
    assert_eq!(clip.tokens(), 2);
}

#[test]
fn the_limit_releases_what_was_held_back() {
    let mut clip = clip(&[], Some(2), &["stop"]);
    assert_eq!(clip.push(1, "a"), clipped("a", None));
    assert_eq!(clip.push(2, "b st"), clipped("b st", Some(FinishReason::Length)));
    assert!(clip.exhausted());
    assert_eq!(clip.push(3, "op"), clipped("", Some(FinishReason::Length)));
    assert_eq!(clip.tokens(), 2);

    let mut none = self::clip(&[], Some(0), &[]);
    assert!(none.exhausted());
    assert_eq!(none.push(1, "a"), clipped("", Some(FinishReason::Length)));
    assert_eq!(none.tokens(), 0);
}

#[test]
fn stop_wins_over_the_limit() {
    let mut string = clip(&[], Some(1), &["stop"]);
    assert_eq!(string.push(1, "a stop"), clipped("a ", Some(FinishReason::Stop(StopCause::String(0)))));
    let mut token = clip(&[7], Some(1), &["x"]);
    assert_eq!(token.push(7, "x"), clipped("", Some(FinishReason::Stop(StopCause::Token(7)))));
}

#[test]
fn a_flush_releases_the_rest() {
    let mut clip = clip(&[], None, &["stop"]);
    assert_eq!(clip.push(1, "st"), clipped("", None));
    assert_eq!(clip.flush(), "st");
    assert_eq!(clip.push(2, "op"), clipped("op", None));
}

proptest! {
    #[test]
    fn streaming_equals_searching_the_whole(
        text in "[abä€]{0,40}", stops in proptest::collection::vec("[abä€]{1,5}", 0..5), cuts in any::<u32>(),
    ) {
        let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
        prop_assert_eq!(streamed(&pieces(&text, cuts), &stops), whole(&text, &stops));
    }

    #[test]
    fn any_text_and_any_piece_of_it_as_a_stop(text in "\\PC{1,30}", from in 0usize..30, len in 1usize..6, cuts in any::<u32>()) {
        let stop: String = text.chars().skip(from % text.chars().count()).take(len).collect();
        let (out, hit) = streamed(&pieces(&text, cuts), &[&stop]);
        prop_assert_eq!(hit, Some(0));
        prop_assert_eq!(Some(out.len()), text.find(&stop));
        prop_assert!(text.starts_with(&out));
    }
}
