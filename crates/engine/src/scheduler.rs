//! Continuous batching: many generations, one pass after the other.
//!
//! Every pass has a round of each generation that is past its prompt, and rows of the prompts of the others. What a generation gives
//! is what it gives alone: rows do not know their neighbours. A generation is let in, in the order in which they came, once there is
//! memory for the longest that it may become, so none ever has to be put out again. While others decode, prompts have
//! [`PROMPT_ROWS`] rows of a pass together, shared alike: no stream waits longer for its next round than a pass of all rounds and
//! these rows takes, however long the prompts are.

use crate::engine::Loaded;
use crate::generate::{Event, Flow, Generation, Member, Request, Task, advance};
use crate::session::Session;
use crate::{Engine, EngineError};
use glimmer_model::kv_cache::pages_needed;
use std::collections::VecDeque;
use std::sync::Arc;

/// Rows of a pass that prompts have together while others decode.
pub const PROMPT_ROWS: usize = 128;

/// What a scheduler may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SchedulerOptions {
    /// Generations in a pass.
    pub sequences: usize,
    /// Bytes of keys and values of all of them.
    pub memory: u64,
}

/// What a generation tells.
#[derive(Debug)]
pub enum Update {
    /// As it goes.
    Event(Event),
    /// At its end; nothing follows.
    Done(Result<Generation, EngineError>),
}

/// Who is told. Whatever it answers last counts: a generation that is cancelled ends with the pass that it is in.
pub type Listener = Box<dyn FnMut(Update) -> Flow + Send>;

/// Generations that wait, and those that run.
pub struct Scheduler {
    loaded: Arc<Loaded>,
    options: SchedulerOptions,
    waiting: VecDeque<Entry>,
    running: Vec<(Entry, Session)>,
}

struct Entry {
    task: Task,
    listener: Listener,
    /// Bytes of keys and values that it may come to take.
    bytes: u64,
}

impl Scheduler {
    /// A scheduler for an engine, with nothing to do.
    pub fn new(engine: &Engine, options: SchedulerOptions) -> Self {
        let loaded = Arc::clone(&engine.loaded);
        Self { loaded, options, waiting: VecDeque::new(), running: Vec::new() }
    }

    /// Generations that wait, and that run.
    pub fn load(&self) -> (usize, usize) {
        (self.waiting.len(), self.running.len())
    }

    /// Takes a request, or refuses what can never be done.
    pub fn submit(&mut self, request: Request, listener: Listener) -> Result<(), EngineError> {
        let context = self.loaded.settings.context;
        let most =
            request.stop.max_tokens.map_or(context, |most| context.min(request.prompt.len().saturating_add(most)));
        let task = Task::new(&self.loaded, request)?;
        let needed = self.bytes(most);
        if needed > self.options.memory {
            return Err(EngineError::NoRoom { tokens: most, needed, most: self.options.memory });
        }
        self.waiting.push_back(Entry { task, listener, bytes: needed });
        Ok(())
    }

    /// Makes one pass and tells what came of it. False if there is nothing to do.
    pub fn step(&mut self) -> bool {
        self.admit();
        let decoding = self.running.iter().filter(|(entry, _)| entry.task.decodes()).count();
        let prompts = (self.running.len() - decoding).max(1);
        let rows = if decoding > 0 { PROMPT_ROWS } else { self.loaded.geometry.prefill_chunk };
        let rows = rows.div_ceil(prompts).min(self.loaded.geometry.prefill_chunk);

        let members = self.running.iter_mut().map(|(Entry { task, listener, .. }, session)| {
            let listener = Box::new(|event| listener(Update::Event(event)));
            Member { task, session, listener }
        });
        let results = advance(&self.loaded, &mut members.collect::<Vec<_>>(), rows);
        for (at, result) in results.into_iter().enumerate().rev() {
            let error = match result {
                Ok(true) => continue,
                Ok(false) => None,
                Err(error) => Some(error),
            };
            let (Entry { task, mut listener, .. }, mut session) = self.running.remove(at);
            let generation = task.finish(&mut session);
            listener(Update::Done(error.map_or(Ok(generation), Err)));
        }
        !(self.running.is_empty() && self.waiting.is_empty())
    }

    /// Lets in who there is room for, in order.
    fn admit(&mut self) {
        while self.running.len() < self.options.sequences {
            let taken: u64 = self.running.iter().map(|(entry, _)| entry.bytes).sum();
            let fits = self.waiting.front().is_some_and(|entry| taken + entry.bytes <= self.options.memory);
            let Some(entry) = self.waiting.pop_front_if(|_| fits) else { return };
            self.running.push((entry, Session::new(Arc::clone(&self.loaded))));
        }
    }

    /// Bytes of keys and values that a sequence of so many tokens takes.
    fn bytes(&self, tokens: usize) -> u64 {
        let loaded = &self.loaded;
        let (positions, widest) = (tokens + loaded.geometry.block, loaded.geometry.widest());
        let pages =
            loaded.target.config().layers.iter().map(|layer| pages_needed(layer.span, positions, widest) as u64);
        let drafter = loaded.drafter.as_ref().map_or(0, |drafter| drafter.context_bytes());
        pages.sum::<u64>() * loaded.page_bytes[0] + drafter
    }
}
