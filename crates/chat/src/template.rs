//! Renders a model's chat template as `transformers` would, and says where in the prompt the control tokens are.

use std::collections::{BTreeMap, HashSet};
use std::io;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{Environment, Error, ErrorKind, Value};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use sha2::{Digest, Sha256};
use time::PrimitiveDateTime;

use crate::prepare;

mod filters;
mod lookups;
pub(crate) mod mark;
mod python;
mod select;
mod source;
mod strftime;
mod tojson;

use mark::Marks;
pub(crate) use select::HARMONY_ARCHITECTURES;
pub use select::{Origin, SelectError, TemplateSet, plain_beginning};

/// Longest template that is compiled; the longest published ones have 20 kB.
pub const TEMPLATE_BYTES_MAX: usize = 1 << 20;
/// Longest prompt a template may write: above what any model's context holds.
const OUTPUT_BYTES_MAX: usize = 8 << 20;
/// Steps of the template engine. A conversation of a thousand turns takes some hundred thousand.
const FUEL_MAX: u64 = 20_000_000;
/// Nested calls of macros and blocks.
const RECURSION_MAX: usize = 200;
/// A literal range's offsets are 32-bit numbers.
pub const LITERAL_BYTES_MAX: usize = u32::MAX as usize;
const _: () = assert!(OUTPUT_BYTES_MAX < LITERAL_BYTES_MAX);
/// The one template of an environment.
const NAME: &str = "chat_template";

/// A template with everything of the model that its rendering depends on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateSource {
    pub text: String,
    /// `model_type` of `config.json`; decides how messages are prepared (see `prepare`).
    pub architecture: String,
    /// Spellings of the control tokens.
    pub control_tokens: Vec<String>,
    /// Spellings of the markers (see [`crate::ControlTokens::markers`]).
    #[serde(default)]
    pub markers: Vec<String>,
    /// `bos_token` and the like.
    pub variables: BTreeMap<String, String>,
}

impl TemplateSource {
    /// sha256 over all of it, lower-case hex: equal templates have equal ids.
    pub fn id(&self) -> String {
        let mut hash = Sha256::new();
        let mut part = |text: &str| {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text.as_bytes());
        };
        part(&self.text);
        part(&self.architecture);
        for spellings in [&self.control_tokens, &self.markers] {
            part(&spellings.len().to_string());
            for spelling in spellings {
                part(spelling);
            }
        }
        for (name, value) in &self.variables {
            part(name);
            part(value);
        }
        hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// What a template is rendered with. Messages and tools have the form of the OpenAI API.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RenderRequest {
    pub messages: Vec<Json>,
    /// Empty: the template sees no tools.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tools: Vec<Json>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub documents: Option<Vec<Json>>,
    pub add_generation_prompt: bool,
    /// `chat_template_kwargs`, and what the API has fields for (`reasoning_effort`).
    #[serde(default, skip_serializing_if = "serde_json::Map::is_empty")]
    pub kwargs: serde_json::Map<String, Json>,
    /// What `strftime_now` tells: local time, as `transformers` has it.
    pub now: PrimitiveDateTime,
}

/// Bytes `start..end` of a prompt in which spellings of control tokens stay text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LiteralRange {
    pub start: u32,
    pub end: u32,
}

/// A prompt.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rendered {
    pub text: String,
    /// Everything that is not a control token written by the template; in order, not overlapping, not empty. None
    /// where the model has no control tokens.
    pub literal: Vec<LiteralRange>,
}

impl Rendered {
    /// Appends text in which control tokens are control tokens.
    pub fn push_control(&mut self, text: &str) {
        self.text.push_str(text);
    }

    /// Appends text in which spellings of control tokens stay text.
    pub fn push_literal(&mut self, text: &str) {
        let start = self.text.len();
        self.text.push_str(text);
        if let (Ok(start), Ok(end)) = (u32::try_from(start), u32::try_from(self.text.len()))
            && start < end
        {
            self.literal.push(LiteralRange { start, end });
        }
    }
}

/// Why there is no prompt.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum RenderError {
    /// The caller can change it: `param` is the path of the request's field.
    #[error("{param}: {message}")]
    Request { param: String, message: String },
    /// The template called `raise_exception`: it refuses these messages.
    #[error("the model's chat template refuses this conversation: {message}")]
    Refused { message: String },
    /// No text can be rendered with this template.
    #[error("the model's chat template cannot be compiled: {message}")]
    Syntax { message: String },
    #[error("the model's chat template failed: {message}")]
    Failed { message: String },
    /// `limit` in words: `20000000 steps`, `100 ms`.
    #[error("the model's chat template takes more than {limit}")]
    Limit { limit: String },
}

/// A compiled template. Rendering changes nothing in it.
pub struct Template {
    source: TemplateSource,
    nonce: u64,
    compiled: Compiled,
}

struct Compiled {
    environment: Environment<'static>,
    marks: Marks,
    variables: BTreeMap<String, String>,
}

impl Template {
    /// `nonce` is any number that a requester cannot guess; it chooses the placeholders of control tokens.
    pub fn compile(source: TemplateSource, nonce: u64) -> Result<Template, RenderError> {
        let compiled = Compiled::new(&source, nonce, &HashSet::new())?;
        Ok(Template { source, nonce, compiled })
    }

    /// The prompt of a request.
    ///
    /// A byte of the result is outside of `literal` only if it belongs to a control token that the template itself
    /// wrote: whole in its source, as a special-token variable, or around the role of a message. Text of the request
    /// never is, whatever the template does with it.
    pub fn render(&self, request: &RenderRequest) -> Result<Rendered, RenderError> {
        let mut taken = HashSet::new();
        private_characters(request, &mut taken);
        let again;
        let compiled = if taken.iter().any(|&c| self.compiled.marks.is_mark(c)) {
            again = Compiled::new(&self.source, self.nonce, &taken)?;
            &again
        } else {
            &self.compiled
        };
        let prepared = prepare::prepare(request, &self.source.architecture)?;
        match compiled.render_fenced(&prepared, request.now) {
            // Templates that print every tool's description fail on a tool without one.
            Err(RenderError::Failed { message }) => {
                let Some(described) = prepare::with_descriptions(&prepared) else {
                    return Err(RenderError::Failed { message });
                };
                compiled.render_fenced(&described, request.now).map_err(|_| RenderError::Failed { message })
            }
            result => result,
        }
    }
}

impl Compiled {
    fn new(source: &TemplateSource, nonce: u64, avoid: &HashSet<char>) -> Result<Compiled, RenderError> {
        if source.text.len() > TEMPLATE_BYTES_MAX {
            return Err(RenderError::Limit { limit: format!("{TEMPLATE_BYTES_MAX} bytes of source") });
        }
        let crowded = || RenderError::Request {
            param: "messages".to_owned(),
            message: "they use up the private-use characters of Unicode".to_owned(),
        };
        let marked = Marks::mark(source, nonce, avoid).ok_or_else(crowded)?;
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|e| RenderError::Syntax { message: e.to_string() })?);
        environment.set_auto_escape_callback(|_| minijinja::AutoEscape::None);
        environment.set_fuel(Some(FUEL_MAX));
        environment.set_recursion_limit(RECURSION_MAX);
        environment.set_debug(false);
        marked.written.install(&mut environment);
        python::install(&mut environment, &marked.written);
        filters::install(&mut environment);
        environment.add_filter("tojson", |v: &Value, rest: minijinja::value::Rest<Value>, kwargs| {
            tojson::tojson(v, rest, kwargs)
        });
        environment.add_function("raise_exception", |message: Value| -> Result<Value, Error> {
            let message = python::str_of(&message);
            Err(Error::new(ErrorKind::InvalidOperation, "refused").with_source(Raised(message)))
        });
        environment
            .add_template_owned(NAME, marked.text)
            .map_err(|e| RenderError::Syntax { message: describe(&e) })?;
        Ok(Compiled { environment, marks: marked.marks, variables: marked.variables })
    }

    /// The template engine has panicked on rare input (an empty text sliced backwards): a template's fault, not ours.
    fn render_fenced(
        &self,
        prepared: &prepare::Prepared,
        now: PrimitiveDateTime,
    ) -> Result<Rendered, RenderError> {
        // Nothing is changed by a rendering, so nothing is left half-changed.
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.render(prepared, now)));
        result.unwrap_or_else(|_| {
            Err(RenderError::Failed { message: "the template engine broke down".to_owned() })
        })
    }

    fn render(&self, prepared: &prepare::Prepared, now: PrimitiveDateTime) -> Result<Rendered, RenderError> {
        let mut context: BTreeMap<&str, Value> = BTreeMap::new();
        for (name, text) in &self.variables {
            context.insert(name, Value::from(text.as_str()));
        }
        for (name, value) in &prepared.kwargs {
            context.insert(name, Value::from(Serde(value)));
        }
        let list =
            |items: &Option<Vec<Json>>| items.as_ref().map_or(Value::from(()), |v| Value::from(Serde(v)));
        context.insert("messages", Value::from(Serde(&prepared.messages)));
        context.insert("tools", list(&prepared.tools));
        context.insert("documents", list(&prepared.documents));
        context.insert("add_generation_prompt", Value::from(prepared.add_generation_prompt));
        context.insert(
            "strftime_now",
            Value::from_function(move |format: &str| strftime::strftime(now, format)),
        );

        let failed = |e: Error| self.failure(&e);
        let template = self.environment.get_template(NAME).map_err(failed)?;
        let mut out = Capped(Vec::new());
        template.render_captured_to(Value::from_pairs(context), &mut out).map_err(failed)?;
        let marked = String::from_utf8(out.0).map_err(|e| RenderError::Failed { message: e.to_string() })?;
        let unmarked = self.marks.unmark(&marked);
        let literal = match self.marks.has_spellings() {
            true => complement(&unmarked.control, unmarked.text.len()),
            false => Vec::new(),
        };
        Ok(Rendered { text: unmarked.text, literal })
    }

    fn failure(&self, error: &Error) -> RenderError {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
        while let Some(e) = cause {
            if let Some(Raised(message)) = e.downcast_ref() {
                return RenderError::Refused { message: self.marks.unmark(message).text };
            }
            if e.downcast_ref::<TooLong>().is_some()
                || e.downcast_ref::<io::Error>()
                    .and_then(io::Error::get_ref)
                    .is_some_and(|e| e.is::<TooLong>())
            {
                return RenderError::Limit { limit: format!("{OUTPUT_BYTES_MAX} bytes of prompt") };
            }
            if e.downcast_ref::<Error>().is_some_and(|e| e.kind() == ErrorKind::OutOfFuel) {
                return RenderError::Limit { limit: format!("{FUEL_MAX} steps") };
            }
            cause = e.source();
        }
        RenderError::Failed { message: self.marks.unmark(&describe(error)).text }
    }
}

/// What the template said to `raise_exception`.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

#[derive(Debug, thiserror::Error)]
#[error("the prompt is too long")]
struct TooLong;

/// A buffer that refuses to grow past [`OUTPUT_BYTES_MAX`].
struct Capped(Vec<u8>);

impl io::Write for Capped {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > OUTPUT_BYTES_MAX {
            return Err(io::Error::other(TooLong));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn describe(error: &Error) -> String {
    let detail = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    match error.line() {
        Some(line) => format!("{detail} (line {line})"),
        None => detail,
    }
}

/// The ranges of `0..len` that `control` leaves.
fn complement(control: &[std::ops::Range<usize>], len: usize) -> Vec<LiteralRange> {
    let mut literal = Vec::with_capacity(control.len() + 1);
    let mut done = 0;
    for (start, next) in control.iter().map(|r| (r.start, r.end)).chain([(len, len)]) {
        if let (Ok(start), Ok(end)) = (u32::try_from(done), u32::try_from(start))
            && start < end
        {
            literal.push(LiteralRange { start, end });
        }
        done = next;
    }
    literal
}

/// Collects the characters of a request that could be taken for marks.
fn private_characters(request: &RenderRequest, into: &mut HashSet<char>) {
    fn walk(value: &Json, into: &mut HashSet<char>) {
        match value {
            Json::String(text) => into.extend(mark::private_characters(text)),
            Json::Array(items) => items.iter().for_each(|item| walk(item, into)),
            Json::Object(map) => {
                for (key, item) in map {
                    into.extend(mark::private_characters(key));
                    walk(item, into);
                }
            }
            Json::Null | Json::Bool(_) | Json::Number(_) => {}
        }
    }
    let documents = request.documents.iter().flatten();
    for value in request.messages.iter().chain(&request.tools).chain(documents).chain(request.kwargs.values())
    {
        walk(value, into);
    }
    for key in request.kwargs.keys() {
        into.extend(mark::private_characters(key));
    }
}

#[cfg(test)]
mod tests;
