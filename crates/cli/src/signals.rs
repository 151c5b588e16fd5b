//! Ctrl-C.

use crate::failure::{Failure, Outcome};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What the signal handler and a generation know of each other.
#[derive(Clone, Default)]
pub struct Interrupt(Arc<State>);

#[derive(Default)]
struct State {
    /// A generation runs that looks at `hit`.
    listening: AtomicBool,
    hit: AtomicBool,
}

/// From now on Ctrl-C ends the program at once with exit code 130, but for the first one while somebody listens.
pub fn install() -> Outcome<Interrupt> {
    let interrupt = Interrupt::default();
    let Interrupt(state) = interrupt.clone();
    let handler = move || {
        if !state.listening.load(Ordering::SeqCst) || state.hit.swap(true, Ordering::SeqCst) {
            std::process::exit(130);
        }
    };
    ctrlc::set_handler(handler).map_err(|error| Failure::Runtime(format!("cannot catch Ctrl-C: {error}")))?;
    Ok(interrupt)
}

impl Interrupt {
    /// Begins to listen, until the result is dropped.
    pub fn listen(&self) -> Listening<'_> {
        self.0.hit.store(false, Ordering::SeqCst);
        self.0.listening.store(true, Ordering::SeqCst);
        Listening(&self.0)
    }
}

/// While this lives, Ctrl-C is a request.
pub struct Listening<'a>(&'a State);

impl Listening<'_> {
    /// Whether it was made.
    pub fn hit(&self) -> bool {
        self.0.hit.load(Ordering::SeqCst)
    }
}

impl Drop for Listening<'_> {
    fn drop(&mut self) {
        self.0.listening.store(false, Ordering::SeqCst);
    }
}
