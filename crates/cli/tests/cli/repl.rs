//! The conversation, at a terminal that `script` of util-linux makes.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// A program at a terminal.
struct Terminal {
    child: Child,
    keyboard: ChildStdin,
    screen: Receiver<Vec<u8>>,
    seen: String,
}

impl Terminal {
    /// `None` where there is no `script`.
    fn start(state: &str, args: &str) -> Option<Self> {
        let version = Command::new("script").arg("--version").output().ok()?;
        if !String::from_utf8_lossy(&version.stdout).contains("util-linux") {
            return None;
        }
        let command = format!("{} {args}", env!("CARGO_BIN_EXE_glimmer"));
        let mut child = Command::new("script")
            .args(["--quiet", "--return", "--command", &command, "/dev/null"])
            .env("TERM", "xterm")
            .env("XDG_STATE_HOME", state)
            .env_remove("NO_COLOR")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (keyboard, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let (send, screen) = channel();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(n @ 1..) = stdout.read(&mut buffer) {
                let _ = send.send(buffer[..n].to_vec());
            }
        });
        Some(Self { child, keyboard, screen, seen: String::new() })
    }

    fn press(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
        self.keyboard.flush().unwrap();
    }

    /// Waits for `text`, and takes what there is up to its end.
    #[track_caller]
    fn expect(&mut self, text: &str) -> String {
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(at) = self.seen.find(text) {
                return self.seen.drain(..at + text.len()).collect();
            }
            let left = deadline.saturating_duration_since(Instant::now());
            match self.screen.recv_timeout(left) {
                Ok(bytes) => self.seen.push_str(&String::from_utf8_lossy(&bytes)),
                Err(_) => panic!("expected {text:?}, found {:?}", self.seen),
            }
        }
    }

    fn end(mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

#[test]
fn a_conversation_is_kept_and_taken_up_again() {
    let dir = tempfile::tempdir().unwrap();
    let (state, file) = (dir.path().to_str().unwrap(), dir.path().join("talk.json"));
    let Some(mut at) = Terminal::start(state, "run --chat --temp 0") else { return };
    at.expect("> ");
    at.press("/hlep\r");
    at.expect("error: unknown command /hlep");
    at.expect("> ");
    at.press("What is 23 + 45?\r");
    let answer = at.expect("(stop)");
    assert!(answer.contains("\x1b[2m") && answer.contains("= 79."), "{answer:?}");
    at.expect("> ");
    at.press("Hello!\r");
    let timing = at.expect("(stop)");
    assert!(timing.contains("of them cached"), "{timing:?}");
    at.expect("> ");
    at.press("/regen\r");
    at.expect("(stop)");
    at.expect("> ");
    at.press(&format!("/save {}\r", file.display()));
    at.expect("saved 4 messages");
    at.expect("> ");
    at.press(&format!("/load {}\r", file.display()));
    at.expect("loaded 4 messages");
    at.expect("> ");
    at.press("/exit\r");
    assert_eq!(at.end(), Some(0));
    let saved = std::fs::read_to_string(file).unwrap();
    assert!(saved.contains("reasoning_content") && saved.contains("= 79."), "{saved}");
    let history = std::fs::read_to_string(dir.path().join("glimmer/history")).unwrap();
    assert!(history.contains("What is 23 + 45?"), "{history}");
}

#[test]
fn ctrl_c_stops_a_reply_and_then_leaves() {
    let dir = tempfile::tempdir().unwrap();
    let Some(mut at) = Terminal::start(dir.path().to_str().unwrap(), "run --temp 0 -n -1 --ignore-eos") else { return };
    at.expect("> ");
    at.press("def f(x):\r");
    at.expect("return");
    at.press("\x03");
    at.expect("(cancelled)");
    at.expect("> ");
    at.press("\x03");
    assert_eq!(at.end(), Some(130));
}

#[test]
fn the_end_of_input_leaves() {
    let dir = tempfile::tempdir().unwrap();
    for (args, first) in [("run", "/help lists"), ("run -q", "seed "), ("run -q -s 3", "> ")] {
        let Some(mut at) = Terminal::start(dir.path().to_str().unwrap(), args) else { return };
        let shown = at.expect("> ");
        assert!(shown.contains(first) && (!args.ends_with('3') || !shown.contains("seed")), "{args}: {shown:?}");
        at.press("\x04");
        assert_eq!(at.end(), Some(0));
    }
}
