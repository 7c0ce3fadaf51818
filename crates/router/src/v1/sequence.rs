//! The choices of a request: each a sequence on some node, put into the API's pieces as its tokens come.

use std::collections::VecDeque;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use futures_util::stream::{self, BoxStream, SelectAll, Stream, StreamExt as _, TryStreamExt as _};
use node_api::{FinishReason, GenerateRequest, Prompt, Token};
use openai_api::Sampling;
use openai_api::usage::Usage;
use time::OffsetDateTime;

use crate::app::App;
use crate::cluster::Registered;
use crate::error::Failure;
use crate::generate::{Started, Step, ending, generate};
use crate::guard::RequestId;
use crate::metrics::Answer;
use crate::queued::Queued;
use crate::sse::Item;

/// Makes pieces of an answer out of tokens. The whole answer is the sum of the pieces, so both ways of delivery agree.
pub trait Assemble: Send + 'static {
    type Piece: Send + 'static;
    type Finish: Copy + Send + 'static;

    /// The sequence runs; what the answer begins with.
    fn begin(&mut self) -> Vec<Self::Piece> {
        Vec::new()
    }

    /// What a token adds. `Some`: the answer ends here, whatever the engine would say further.
    fn push(&mut self, token: &Token) -> (Vec<Self::Piece>, Option<Self::Finish>);

    /// What was held back, and how the answer ended.
    fn finish(&mut self, length: bool) -> (Vec<Self::Piece>, Self::Finish);

    fn reasoning_tokens(&self) -> u32 {
        0
    }
}

/// What a choice comes to.
pub enum Event<A: Assemble> {
    Loading(f32),
    /// Once, before any piece.
    Started(Started),
    Piece(A::Piece),
    /// Nothing comes after it.
    Ended(Ended<A::Finish>),
}

#[derive(Debug, Clone, Copy)]
pub struct Ended<F> {
    pub finish: F,
    pub completion_tokens: u32,
    pub reasoning_tokens: u32,
}

pub type Events<A> = SelectAll<BoxStream<'static, Result<(u32, Event<A>), Failure>>>;

/// A sequence to be run as choice `index`.
pub struct Choice<A> {
    pub index: u32,
    pub request: GenerateRequest,
    pub assembler: A,
}

/// Runs all choices at once. Dropping the stream ends them; after an error it has to be dropped. `in_our_words` makes a
/// node's refusal one of the request's own fields.
pub fn run<A: Assemble>(
    app: &Arc<App>,
    choices: Vec<Choice<A>>,
    queued: &Arc<Queued>,
    in_our_words: fn(Failure) -> Failure,
) -> Events<A> {
    let one = |choice: Choice<A>| {
        let index = choice.index;
        let counted = Answer::begin(app.metrics.model(&choice.request.model));
        let steps = generate(Arc::clone(app), choice.request, Arc::clone(queued)).map_err(in_our_words);
        events(steps, choice.assembler, counted).map(move |event| event.map(|event| (index, event))).boxed()
    };
    stream::select_all(choices.into_iter().map(one))
}

struct Run<S, A: Assemble> {
    steps: S,
    assembler: A,
    counted: Answer,
    pending: VecDeque<Event<A>>,
    tokens: u32,
    started: bool,
    ended: bool,
}

fn events<A: Assemble>(
    steps: impl Stream<Item = Result<Step, Failure>> + Send,
    assembler: A,
    counted: Answer,
) -> impl Stream<Item = Result<Event<A>, Failure>> + Send {
    let steps = Box::pin(steps);
    let run =
        Run { steps, assembler, counted, pending: VecDeque::new(), tokens: 0, started: false, ended: false };
    stream::unfold(Some(run), |run| async move {
        let mut run = run?;
        loop {
            if let Some(event) = run.pending.pop_front() {
                return Some((Ok(event), Some(run)));
            }
            if run.ended {
                return None;
            }
            match run.steps.next().await? {
                Ok(step) => run.take(step),
                Err(failure) => {
                    run.counted.failed(failure.status);
                    return Some((Err(failure), None));
                }
            }
        }
    })
}

impl<S, A: Assemble> Run<S, A> {
    fn take(&mut self, step: Step) {
        match step {
            Step::Loading(progress) => self.pending.push_back(Event::Loading(progress)),
            // A second start is that of a retry, of which the caller need not know.
            Step::Started(_) if self.started => {}
            Step::Started(started) => {
                self.started = true;
                self.counted.started(started.prompt_tokens, started.cached_tokens);
                self.pending.push_back(Event::Started(started));
                let pieces = self.assembler.begin();
                self.pending.extend(pieces.into_iter().map(Event::Piece));
            }
            Step::Token(token) => {
                self.tokens += 1;
                self.counted.token();
                let (pieces, end) = self.assembler.push(&token);
                self.pending.extend(pieces.into_iter().map(Event::Piece));
                if let Some(finish) = end {
                    self.counted.finished(false);
                    self.end(finish, self.tokens);
                }
            }
            // Nobody asked for one here.
            Step::Embedding(_) => {}
            Step::Finished { reason, completion_tokens } => {
                let length = reason == FinishReason::Length;
                self.counted.finished(length);
                let (pieces, finish) = self.assembler.finish(length);
                self.pending.extend(pieces.into_iter().map(Event::Piece));
                self.end(finish, completion_tokens);
            }
        }
    }

    fn end(&mut self, finish: A::Finish, completion_tokens: u32) {
        let reasoning_tokens = self.assembler.reasoning_tokens();
        self.pending.push_back(Event::Ended(Ended { finish, completion_tokens, reasoning_tokens }));
        self.ended = true;
    }
}

/// An answer that is sent while it is made.
pub trait Chunks<A: Assemble>: Send + 'static {
    fn item(&mut self, index: u32, event: Event<A>) -> Option<Item>;

    /// After the last choice has ended.
    fn last(&mut self) -> Option<Item>;
}

/// The items of a stream, in the order in which the choices' events come.
pub fn items<A: Assemble>(
    chunks: impl Chunks<A>,
    events: Events<A>,
) -> BoxStream<'static, Result<Item, Failure>> {
    let items = stream::unfold(Some((chunks, events)), |state| async move {
        let (mut chunks, mut events) = state?;
        loop {
            match events.next().await {
                Some(Ok((index, event))) => {
                    if let Some(item) = chunks.item(index, event) {
                        return Some((Ok(item), Some((chunks, events))));
                    }
                }
                Some(Err(failure)) => return Some((Err(failure), None)),
                None => return chunks.last().map(|item| (Ok(item), None)),
            }
        }
    });
    items.boxed()
}

/// What the answers of one request have in common.
#[derive(Debug, Clone)]
pub struct Common {
    pub id: String,
    pub created: i64,
    pub model: String,
    manifest: String,
    /// Choices that share one prompt, whose tokens count once.
    choices_per_prompt: u32,
    pub system_fingerprint: Option<String>,
    usage: Usage,
}

impl Common {
    pub fn new(prefix: &str, model: &Registered, choices_per_prompt: u32) -> Common {
        Common {
            id: format!("{prefix}-{}", uuid::Uuid::new_v4().simple()),
            created: OffsetDateTime::now_utc().unix_timestamp(),
            model: model.manifest.id.clone(),
            manifest: model.fingerprint.chars().take(12).collect(),
            choices_per_prompt: choices_per_prompt.max(1),
            system_fingerprint: None,
            usage: Usage::default(),
        }
    }

    pub fn started(&mut self, index: u32, started: &Started) {
        self.system_fingerprint.get_or_insert_with(|| format!("{}-{}", self.manifest, started.engine));
        if index.is_multiple_of(self.choices_per_prompt) {
            let usage = self.usage;
            self.usage = Usage::new(
                usage.prompt_tokens + started.prompt_tokens,
                usage.prompt_tokens_details.cached_tokens + started.cached_tokens,
                usage.completion_tokens,
                usage.completion_tokens_details.reasoning_tokens,
            );
        }
    }

    pub fn ended<F>(&mut self, ended: &Ended<F>) {
        let usage = self.usage;
        self.usage = Usage::new(
            usage.prompt_tokens,
            usage.prompt_tokens_details.cached_tokens,
            usage.completion_tokens + ended.completion_tokens,
            usage.completion_tokens_details.reasoning_tokens + ended.reasoning_tokens,
        );
    }

    pub fn usage(&self) -> Usage {
        self.usage
    }
}

/// Whose request it is.
#[derive(Debug, Clone)]
pub struct Caller {
    pub request_id: String,
    pub cache_salt: u64,
}

impl Caller {
    /// Refused while the router ends.
    pub fn admit(app: &App, request: &Request<Body>) -> Result<Caller, Failure> {
        if app.draining() {
            return Err(ending());
        }
        let RequestId(request_id) = request.extensions().get().cloned().unwrap_or_default();
        let peer = request.extensions().get().copied();
        Ok(Caller { request_id, cache_salt: app.cache_salts.of(request.headers(), peer) })
    }
}

/// What an answer is held to.
#[derive(Debug, Clone, Default)]
pub struct Held {
    /// Texts of which it has to begin with one; none: with anything.
    pub begin_with: Vec<String>,
    /// What all of it has to be; then it need not begin with anything.
    pub constraint: Option<node_api::Constraint>,
}

/// What is asked of a node for choice `index`. Choices of a seeded request have seeds of their own, in order.
pub fn node_request(
    caller: &Caller,
    model: &Registered,
    prompt: Prompt,
    sampling: &Sampling,
    stop: Vec<String>,
    held: Held,
    index: u32,
) -> GenerateRequest {
    let affinity = match &prompt {
        Prompt::Text { text, .. } => dispatch::affinity::of_text(caller.cache_salt, text),
        Prompt::Tokens(ids) => dispatch::affinity::of_tokens(caller.cache_salt, ids),
    };
    GenerateRequest {
        request_id: caller.request_id.clone(),
        model: model.manifest.id.clone(),
        fingerprint: model.fingerprint.clone(),
        prompt,
        sampling: node_api::Sampling {
            temperature: sampling.temperature,
            top_p: sampling.top_p,
            top_k: sampling.top_k,
            min_p: sampling.min_p,
            seed: sampling.seed.map(|seed| seed.wrapping_add(u64::from(index))),
            presence_penalty: sampling.presence_penalty,
            frequency_penalty: sampling.frequency_penalty,
            repetition_penalty: sampling.repetition_penalty,
            logit_bias: sampling.logit_bias.clone(),
            tokens_max: sampling.tokens_max,
            tokens_min: sampling.tokens_min,
            stop,
            stop_tokens: sampling.stop_tokens.clone(),
            ignore_end_tokens: sampling.ignore_end_tokens,
            logprobs: sampling.logprobs,
            begin_with: held.begin_with,
            constraint: held.constraint,
        },
        embed: false,
        worker_deaths: 0,
        cache_salt: caller.cache_salt,
        affinity,
    }
}
