//! A generation: from a request to events, rounds and a finish.

use crate::EngineError;
use crate::batch::{Batch, Begun};
use crate::chat::channels::{ChannelEvent, Recipient, Scanner};
use crate::engine::{Active, Loaded};
use crate::pass::{Out, Want};
use crate::sampling::{Chain, Sampling};
use crate::session::{Prefill, Session};
use crate::speculative::{DraftWidth, Round, RoundTrace};
use crate::stops::{Clip, FinishReason, StopRule};
use crate::tokenizer::{Detokenizer, Specials, TokenizerError};
use glimmer_backend::Backend;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What is to be generated.
#[derive(Clone, Debug)]
pub struct Request {
    /// The prompt's ids.
    pub prompt: Vec<u32>,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// What ends it, besides the context. End tokens are the checkpoint's where none are named.
    pub stop: StopRule,
    /// Rows of a round.
    pub width: DraftWidth,
    /// How the output is read.
    pub output: Output,
}

/// How the output is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Output {
    /// Ids only; what is left where there is no tokenizer.
    Ids,
    /// Plain text; control tokens leave no text.
    Text,
    /// The messages of a turn, reasoning told from answer. Stop strings are looked for in the answer.
    Chat,
}

/// What a generation tells while it runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// Tokens of the prompt that are in the cache.
    Prefill {
        /// So many.
        done: usize,
        /// Of so many.
        total: usize,
    },
    /// The next token of the output, before any text that it completes.
    Token(u32),
    /// More of the model's reasoning.
    Reasoning(String),
    /// More of the answer.
    Content(String),
    /// More of a message to a tool.
    ToolText {
        /// The tool.
        recipient: String,
        /// The text.
        text: String,
    },
    /// Something that the user should be told, once.
    Notice(String),
}

/// Whether to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// Go on.
    Continue,
    /// Stop here.
    Cancel,
}

/// Why a generation ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// An end token or a stop string.
    Stop,
    /// The limit of tokens, or the end of the context.
    Length,
    /// Whoever listens said so.
    Cancelled,
}

impl Finish {
    /// The word that users read.
    pub fn as_str(self) -> &'static str {
        match self {
            Finish::Stop => "stop",
            Finish::Length => "length",
            Finish::Cancelled => "cancelled",
        }
    }
}

/// A finished generation.
#[derive(Clone, Debug, PartialEq)]
pub struct Generation {
    /// The tokens, an end token included.
    pub token_ids: Vec<u32>,
    /// The text: all of it, or in a chat the answer. `None` where only ids are read.
    pub text: Option<String>,
    /// In a chat, the reasoning.
    pub reasoning: String,
    /// In a chat, messages to tools, as text.
    pub tool_messages: Vec<ToolMessage>,
    /// Why it ended.
    pub finish: Finish,
    /// The rounds. The first token comes from the prompt's pass and belongs to none.
    pub rounds: Vec<RoundRecord>,
    /// How long what took.
    pub timings: Timings,
}

/// A message to a tool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToolMessage {
    /// The tool.
    pub recipient: String,
    /// The message's text, uninterpreted.
    pub text: String,
}

/// What a round did.
#[derive(Clone, Debug, PartialEq)]
pub struct RoundRecord {
    /// Rows of the verifying pass.
    pub width: usize,
    /// What was proposed.
    pub proposals: Vec<u32>,
    /// Proposals that the target drew itself, before any cut.
    pub accepted: usize,
    /// Tokens that the round added to the output, after cuts.
    pub emitted: usize,
    /// How it came about.
    pub trace: RoundTrace,
}

/// How long what took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timings {
    /// Tokens of the prompt.
    pub prefill: Prefill,
    /// From the request to the first token.
    pub prompt_time: Duration,
    /// From the first token to the last.
    pub predicted_time: Duration,
}

impl Session {
    /// Generates, telling `listener` as it goes.
    ///
    /// Everything that can be refused is refused before work starts. However it ends, the session holds the prompt and the
    /// output but its last token, as plain decoding would have left it.
    pub fn generate(
        &mut self,
        request: &Request,
        listener: &mut dyn FnMut(Event) -> Flow,
    ) -> Result<Generation, EngineError> {
        let mut ongoing = self.start(request.clone())?;
        while ongoing.step(listener)? {}
        Ok(ongoing.finish())
    }

    /// Begins to generate, step by step, as [`generate`](Self::generate) does with all steps at once. What can be refused is refused here.
    pub fn start(&mut self, request: Request) -> Result<Ongoing<'_>, EngineError> {
        let task = Task::new(&self.loaded, request)?;
        Ok(Ongoing { session: self, task })
    }
}

/// A generation that goes on when it is told to. Its session holds what [`generate`](Session::generate) would leave there once it is
/// [finished](Self::finish).
pub struct Ongoing<'a> {
    session: &'a mut Session,
    task: Task,
}

impl Ongoing<'_> {
    /// A part of the prompt, or a round. Whether another step follows; none does after an error.
    pub fn step(&mut self, listener: &mut dyn FnMut(Event) -> Flow) -> Result<bool, EngineError> {
        let loaded = Arc::clone(&self.session.loaded);
        let alone = Member { task: &mut self.task, session: self.session, listener: Box::new(listener) };
        let result = advance(&loaded, &mut [alone], loaded.geometry.prefill_chunk).remove(0);
        if result.is_err() {
            self.task.stage = Stage::Done(Finish::Cancelled);
        }
        result
    }

    /// How many tokens the output has.
    pub fn tokens(&self) -> usize {
        self.task.writer.token_ids.len()
    }

    /// What came of it; before its end, as if it had been cancelled.
    pub fn finish(mut self) -> Generation {
        if !matches!(self.task.stage, Stage::Done(_)) {
            self.task.writer.flush(&mut |_| Flow::Continue);
        }
        self.task.finish(self.session)
    }
}

/// A generation with its session, and who is told of it.
pub(crate) struct Member<'a> {
    pub task: &'a mut Task,
    pub session: &'a mut Session,
    pub listener: Box<dyn FnMut(Event) -> Flow + 'a>,
}

/// One step of all of them, with at most `rows` rows of each prompt. Whether each goes on.
pub(crate) fn advance(loaded: &Loaded, members: &mut [Member<'_>], rows: usize) -> Vec<Result<bool, EngineError>> {
    let mut results: Vec<Result<(), EngineError>> = (0..members.len()).map(|_| Ok(())).collect();
    let mut batch = Batch::default();
    let (mut rounds, mut prompts) = (Vec::new(), Vec::new());
    for (at, Member { task, session, listener }) in members.iter_mut().enumerate() {
        match task.next(session, rows, listener) {
            Some(Next::Rows(want)) => {
                prompts.push(at);
                batch.prompts.push((session, want));
            }
            Some(Next::Round(anchor)) => {
                rounds.push(at);
                let (width, chain) = (task.request.width, &mut task.chain);
                batch.rounds.push(Begun { session, chain, anchor, width });
            }
            None => {}
        }
    }
    if let Some(&last) = rounds.iter().chain(&prompts).max() {
        match batch.step(loaded) {
            Ok(done) => {
                for (at, round) in rounds.into_iter().zip(done.rounds) {
                    let Member { task, listener, .. } = &mut members[at];
                    results[at] = round.and_then(|round| task.write(round, listener));
                }
                for (at, out) in prompts.into_iter().zip(done.prompts) {
                    let Member { task, session, listener } = &mut members[at];
                    results[at] = task.take_prompt(session, out, listener);
                }
            }
            // There is no memory after all: whoever came last makes room for the others.
            Err(error) => results[last] = Err(error),
        }
    }
    let goes_on = |member: &Member<'_>| !matches!(member.task.stage, Stage::Done(_));
    members.iter().zip(results).map(|(member, result)| result.map(|()| goes_on(member))).collect()
}

/// A generation on its way: what it wants of the next step, and what it makes of it.
pub(crate) struct Task {
    request: Request,
    chain: Chain,
    writer: Writer,
    stage: Stage,
    rounds: Vec<RoundRecord>,
    timings: Timings,
    started: Instant,
    decoding: Instant,
}

enum Stage {
    /// Nothing was done yet.
    New,
    /// The prompt is being processed.
    Prompt,
    /// A round follows, from this token on.
    Round(u32),
    /// The output has ended.
    Done(Finish),
}

/// What a generation wants of the next step.
enum Next {
    /// Rows of its prompt.
    Rows(Want),
    /// A round from this token on.
    Round(u32),
}

impl Task {
    /// A generation that can be done.
    pub fn new(loaded: &Loaded, request: Request) -> Result<Self, EngineError> {
        let room = check(loaded, &request)?;
        let mut chain = Chain::new(request.sampling.clone(), loaded.target.config().vocab_size)?;
        let writer = Writer::new(loaded, &request, room)?;
        chain.start(&request.prompt);
        let stage = if writer.clip.exhausted() { Stage::Done(Finish::Length) } else { Stage::New };
        let (rounds, timings, now) = (Vec::new(), Timings::default(), Instant::now());
        Ok(Self { request, chain, writer, stage, rounds, timings, started: now, decoding: now })
    }

    /// Whether it is past its prompt.
    pub fn decodes(&self) -> bool {
        matches!(self.stage, Stage::Round(_))
    }

    /// What it wants of the next step, of a prompt at most `rows` rows; nothing once it has ended.
    fn next(&mut self, session: &mut Session, rows: usize, listener: &mut dyn FnMut(Event) -> Flow) -> Option<Next> {
        let prompt = &self.request.prompt;
        if let Stage::New = self.stage {
            let drafting = Active::ROW_INVARIANT && self.request.width != DraftWidth::Fixed(1);
            self.timings.prefill = session.begin(prompt, drafting);
            self.stage = Stage::Prompt;
        }
        match self.stage {
            Stage::Prompt => {
                let (done, total) = (session.tokens().len(), prompt.len());
                match listener(Event::Prefill { done, total }) {
                    Flow::Continue => Some(Next::Rows(session.want_prompt(prompt, rows))),
                    Flow::Cancel => {
                        self.stage = Stage::Done(Finish::Cancelled);
                        None
                    }
                }
            }
            Stage::Round(anchor) => Some(Next::Round(anchor)),
            Stage::New | Stage::Done(_) => None,
        }
    }

    /// Takes in rows of its prompt.
    fn take_prompt(
        &mut self,
        session: &mut Session,
        out: Out,
        listener: &mut dyn FnMut(Event) -> Flow,
    ) -> Result<(), EngineError> {
        let prompt = &self.request.prompt;
        let Some(logits) = session.take_prompt(prompt, out)? else { return Ok(()) };
        let total = prompt.len();
        if listener(Event::Prefill { done: total, total }) == Flow::Cancel {
            self.stage = Stage::Done(Finish::Cancelled);
            return Ok(());
        }
        let first = session.draw_first(&logits, &mut self.chain)?;
        self.timings.prompt_time = self.started.elapsed();
        self.decoding = Instant::now();
        self.stage = match self.writer.push(first, listener)? {
            Some(finish) => Stage::Done(finish),
            None => Stage::Round(first),
        };
        Ok(())
    }

    /// Takes in a round.
    fn write(&mut self, round: Round, listener: &mut dyn FnMut(Event) -> Flow) -> Result<(), EngineError> {
        let Round { width, proposals, accepted, tokens, trace, notice, .. } = round;
        if let Some(notice) = notice {
            listener(Event::Notice(notice));
        }
        let mut emitted = 0;
        for token in tokens {
            emitted += 1;
            self.stage = match self.writer.push(token, listener)? {
                Some(finish) => Stage::Done(finish),
                None => Stage::Round(token),
            };
            if let Stage::Done(_) = self.stage {
                break;
            }
        }
        self.rounds.push(RoundRecord { width, proposals, accepted, emitted, trace });
        self.timings.predicted_time = self.decoding.elapsed();
        Ok(())
    }

    /// What came of it. The session holds the prompt and the output but its last token.
    pub fn finish(self, session: &mut Session) -> Generation {
        let Self { request, writer, stage, rounds, timings, .. } = self;
        if !writer.token_ids.is_empty() {
            session.rewind(request.prompt.len() + writer.token_ids.len() - 1);
            session.keep();
        }
        let finish = if let Stage::Done(finish) = stage { finish } else { Finish::Cancelled };
        writer.finish(finish, rounds, timings)
    }
}

/// Refuses what cannot be done; returns how many tokens the context leaves for the output.
fn check(loaded: &Loaded, request: &Request) -> Result<usize, EngineError> {
    let vocab_size = loaded.target.config().vocab_size;
    let (tokens, context) = (request.prompt.len(), loaded.settings.context);
    if tokens == 0 {
        return Err(EngineError::EmptyPrompt);
    }
    if let Some(&id) = request.prompt.iter().find(|&&id| id as usize >= vocab_size) {
        return Err(EngineError::UnknownToken { id, vocab_size });
    }
    if tokens >= context {
        return Err(EngineError::PromptTooLong { tokens, context });
    }
    // Where rows know their neighbours, a verified row is not the row that plain decoding computes.
    let widest = if Active::ROW_INVARIANT { loaded.geometry.block } else { 1 };
    if let DraftWidth::Fixed(found) = request.width
        && !(1..=widest).contains(&found)
    {
        let expected = match &loaded.settings.drafter {
            Some(_) => format!("2 to {widest}, the drafter's block size"),
            None => "1, as there is no drafter".to_string(),
        };
        return Err(EngineError::Range { what: "the draft width", found, expected });
    }
    Ok(context - tokens)
}

/// Turns tokens into text and events, and decides where the output ends: the one clip point.
struct Writer {
    clip: Clip,
    reader: Reader,
    token_ids: Vec<u32>,
    text: String,
    reasoning: String,
    tool_messages: Vec<ToolMessage>,
}

enum Reader {
    Ids,
    Text(Detokenizer),
    Chat { detokenizer: Detokenizer, scanner: Scanner, events: Vec<ChannelEvent> },
}

impl Writer {
    fn new(loaded: &Loaded, request: &Request, room: usize) -> Result<Self, EngineError> {
        let mut rule = request.stop.clone();
        rule.max_tokens = Some(rule.max_tokens.map_or(room, |limit| limit.min(room)));
        if rule.eos.is_empty() {
            rule.eos = loaded.eos.clone();
        }
        if let (Output::Chat, Some(frame)) = (request.output, &loaded.frame) {
            // The turn ends there, whatever the checkpoint lists.
            rule.eos.extend([frame.eot, frame.end_of_text]);
        }
        let detokenizer = || Ok::<_, EngineError>(Detokenizer::new(Arc::clone(loaded.tokenizer()?), Specials::Drop));
        let reader = match request.output {
            Output::Ids if rule.strings.is_empty() => Reader::Ids,
            Output::Ids => return Err(loaded.without("tokenizer.json", "stop strings need one")),
            Output::Text => Reader::Text(detokenizer()?),
            Output::Chat => {
                let frame = loaded.frame.ok_or_else(|| loaded.without("chat template", "use --raw"))?;
                Reader::Chat { detokenizer: detokenizer()?, scanner: Scanner::new(frame), events: Vec::new() }
            }
        };
        let (token_ids, text, reasoning, tool_messages) = Default::default();
        Ok(Self { clip: Clip::new(rule)?, reader, token_ids, text, reasoning, tool_messages })
    }

    /// Takes the next token. `Some` ends the output with it.
    fn push(&mut self, token: u32, listener: &mut dyn FnMut(Event) -> Flow) -> Result<Option<Finish>, EngineError> {
        self.token_ids.push(token);
        let mut tell = Vec::new();
        let finish = match &mut self.reader {
            Reader::Ids => self.clip.push(token, "").finish,
            Reader::Text(detokenizer) => {
                let clipped = self.clip.push(token, text_of(detokenizer, token)?);
                tell.push(Event::Content(clipped.emit));
                clipped.finish
            }
            Reader::Chat { detokenizer, scanner, events } => {
                scanner.push(token, text_of(detokenizer, token)?, events);
                let mut answer = String::new();
                let mut closed = false;
                for event in events.drain(..) {
                    match event {
                        ChannelEvent::Content(text) => answer.push_str(&text),
                        ChannelEvent::Reasoning(text) => tell.push(Event::Reasoning(text)),
                        ChannelEvent::ToolText { recipient, text } => tell.push(Event::ToolText { recipient, text }),
                        ChannelEvent::EndMessage { .. } => closed = true,
                        ChannelEvent::Header { recipient: Recipient::Tool(recipient) } => {
                            self.tool_messages.push(ToolMessage { recipient, text: String::new() });
                        }
                        ChannelEvent::Header { .. } => {}
                    }
                }
                let mut clipped = self.clip.push(token, &answer);
                // A stop string does not reach over the end of a message.
                if closed && clipped.finish.is_none() {
                    clipped.emit.push_str(&self.clip.flush());
                }
                tell.push(Event::Content(clipped.emit));
                clipped.finish
            }
        };
        let mut flow = listener(Event::Token(token));
        for event in tell {
            if self.tell(event, listener) == Flow::Cancel {
                flow = Flow::Cancel;
            }
        }
        Ok(match (finish, flow) {
            (Some(FinishReason::Stop(_)), _) => Some(Finish::Stop),
            (Some(FinishReason::Length), _) => {
                self.flush(listener);
                Some(Finish::Length)
            }
            (None, Flow::Cancel) => {
                self.flush(listener);
                Some(Finish::Cancelled)
            }
            (None, Flow::Continue) => None,
        })
    }

    /// Releases text that was held back for a continuation that does not come.
    fn flush(&mut self, listener: &mut dyn FnMut(Event) -> Flow) {
        let mut tell = Vec::new();
        if let Reader::Chat { scanner, events, .. } = &mut self.reader {
            scanner.finish(events);
            for event in events.drain(..) {
                match event {
                    ChannelEvent::Content(text) => tell.push(Event::Content(text)),
                    ChannelEvent::Reasoning(text) => tell.push(Event::Reasoning(text)),
                    ChannelEvent::ToolText { recipient, text } => tell.push(Event::ToolText { recipient, text }),
                    _ => {}
                }
            }
        }
        let held = self.clip.flush();
        self.tell(Event::Content(held), listener);
        for event in tell {
            self.tell(event, listener);
        }
    }

    fn tell(&mut self, event: Event, listener: &mut dyn FnMut(Event) -> Flow) -> Flow {
        match &event {
            Event::Content(text) | Event::Reasoning(text) | Event::ToolText { text, .. } if text.is_empty() => {
                return Flow::Continue;
            }
            Event::Content(text) => self.text.push_str(text),
            Event::Reasoning(text) => self.reasoning.push_str(text),
            Event::ToolText { text, .. } => {
                if let Some(message) = self.tool_messages.last_mut() {
                    message.text.push_str(text);
                }
            }
            _ => {}
        }
        listener(event)
    }

    fn finish(self, finish: Finish, rounds: Vec<RoundRecord>, timings: Timings) -> Generation {
        let text = (!matches!(self.reader, Reader::Ids)).then_some(self.text);
        let Self { token_ids, reasoning, tool_messages, .. } = self;
        Generation { token_ids, text, reasoning, tool_messages, finish, rounds, timings }
    }
}

/// The text that a token completes; an id of a padded vocabulary, which no token has, gives none.
fn text_of(detokenizer: &mut Detokenizer, token: u32) -> Result<&str, EngineError> {
    match detokenizer.push(token) {
        Ok(text) => Ok(text),
        Err(TokenizerError::UnknownId { .. }) => Ok(""),
        Err(error) => Err(error.into()),
    }
}
