//! Replies in the harmony form: messages with a header that names channel and recipient.
//!
//! `{header}<|message|>{body}<|end|>`, the first header being what follows the prompt's `<|start|>assistant`. Channel
//! `analysis` is reasoning, a recipient `functions.NAME` is a call, calls of built-in tools are not shown, all else is
//! content. Only control tokens structure a reply; text that spells them is text.

use std::ops::Range;

use super::utf8::TextBuffer;
use super::{CallIds, Delta, DeltaKind, Finish};
use crate::template::Rendered;

const START: &str = "<|start|>";
const CHANNEL: &str = "<|channel|>";
const CONSTRAIN: &str = "<|constrain|>";
const MESSAGE: &str = "<|message|>";
const CALL: &str = "<|call|>";
/// These end a message.
const ENDS: [&str; 4] = ["<|end|>", CALL, "<|return|>", "<|endoftext|>"];
const ROLE: &str = "assistant";
/// What a header may hold beside its recipient and one word for the type of the body.
const HEADER_WORDS: [&str; 6] = [ROLE, "analysis", "commentary", "final", "json", "code"];
/// Between two messages of one channel.
const MESSAGE_SEPARATOR: &str = "\n";
/// A header longer than this is content.
const HEADER_BYTES_MAX: usize = 4096;
const FUNCTIONS: &str = "functions.";
/// Tools that the model knows without being told of them.
const BUILT_IN: [&str; 3] = ["browser", "python", "container"];

pub(super) struct Harmony {
    state: State,
    text: TextBuffer,
    tools: Vec<String>,
    ids: CallIds,
    calls: usize,
    has_content: bool,
    has_reasoning: bool,
    next_token: u64,
    out: Vec<Delta>,
}

enum State {
    /// Before the `<|message|>` of a message.
    Header(Header),
    Body(Body),
    /// Behind a message, before the next `<|start|>`.
    Between,
}

#[derive(Default)]
struct Header {
    /// With the spellings of its control tokens.
    bytes: Vec<u8>,
    /// The tokens it is made of.
    tokens: Option<Range<u64>>,
    /// How many of the bytes came with the prompt.
    from_prompt: usize,
    /// The role is given: only a recipient or a control token can follow.
    role_is_known: bool,
    /// A control token was in it: any words may follow.
    is_open: bool,
}

struct Body {
    target: Target,
    /// Something of it was put out.
    is_begun: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    Content,
    Reasoning,
    Call(usize),
    /// A built-in tool.
    Hidden,
}

impl Harmony {
    pub(super) fn new(prompt: &Rendered, tools: Vec<String>, ids: CallIds) -> Harmony {
        let mut harmony = Harmony {
            state: State::Between,
            text: TextBuffer::default(),
            tools,
            ids,
            calls: 0,
            has_content: false,
            has_reasoning: false,
            next_token: 0,
            out: Vec::new(),
        };
        harmony.begin(prompt);
        harmony
    }

    /// Starts where the prompt stops: usually behind `<|start|>assistant`, further on if a reply is forced.
    fn begin(&mut self, prompt: &Rendered) {
        let is_literal =
            |at: usize| prompt.literal.iter().any(|r| (r.start as usize..r.end as usize).contains(&at));
        let Some((start, _)) = prompt.text.rmatch_indices(START).find(|&(at, _)| !is_literal(at)) else {
            return;
        };
        let open = &prompt.text[start + START.len()..];
        let offset = start + START.len();
        let control = |spelling: &str| {
            open.match_indices(spelling).map(|(at, _)| at).find(|&at| !is_literal(offset + at))
        };
        if ENDS.into_iter().any(|end| control(end).is_some()) {
            return;
        }
        let header = &open[..control(MESSAGE).unwrap_or(open.len())];
        self.state = State::Header(Header {
            bytes: header.into(),
            from_prompt: header.len(),
            is_open: header.contains(CHANNEL),
            role_is_known: true,
            tokens: None,
        });
        if control(MESSAGE).is_some() {
            self.open_body();
        }
    }

    pub(super) fn push(&mut self, token: u64, bytes: &[u8], is_control: bool) -> Vec<Delta> {
        self.next_token = token + 1;
        if is_control {
            self.control(token, &String::from_utf8_lossy(bytes));
        } else {
            self.bytes(token, bytes);
        }
        std::mem::take(&mut self.out)
    }

    pub(super) fn finish(&mut self, ended_by: Finish) -> (Vec<Delta>, Finish) {
        self.end_message(self.next_token, ended_by == Finish::Stop);
        let finish = if ended_by == Finish::Stop && self.calls > 0 { Finish::ToolCalls } else { ended_by };
        (std::mem::take(&mut self.out), finish)
    }

    fn control(&mut self, token: u64, spelling: &str) {
        match spelling {
            START => {
                self.end_message(token, true);
                self.state = State::Header(Header::default());
            }
            MESSAGE => match self.state {
                State::Header(_) => self.open_body(),
                State::Between => self.state = State::Body(Body { target: Target::Content, is_begun: false }),
                State::Body(_) => {}
            },
            CHANNEL | CONSTRAIN => {
                if !matches!(self.state, State::Header(_)) {
                    // A body's own `<|constrain|>` means nothing; a channel begins the next message.
                    if spelling == CONSTRAIN {
                        return;
                    }
                    self.end_message(token, true);
                    self.state = State::Header(Header { role_is_known: true, ..Header::default() });
                }
                if let State::Header(header) = &mut self.state {
                    header.add(token, spelling.as_bytes());
                    header.is_open = true;
                }
            }
            _ if ENDS.contains(&spelling) => {
                if spelling == CALL && self.is_bare_call() {
                    self.open_body();
                }
                self.end_message(token, true);
                self.state = State::Between;
            }
            // Reserved tokens say nothing.
            _ => {}
        }
    }

    fn bytes(&mut self, token: u64, bytes: &[u8]) {
        match &mut self.state {
            State::Header(header) => {
                // Byte by byte: how the reply is cut must not matter.
                for (index, byte) in bytes.iter().enumerate() {
                    header.add(token, std::slice::from_ref(byte));
                    if !header.is_possible() {
                        self.header_is_content(&bytes[index + 1..]);
                        break;
                    }
                }
            }
            // Models forget `<|start|>` now and then, and go on with the role.
            State::Between => {
                self.state = State::Header(Header { role_is_known: true, ..Header::default() });
                self.bytes(token, bytes);
            }
            State::Body(_) => self.body(token, bytes),
        }
    }

    fn body(&mut self, token: u64, bytes: &[u8]) {
        if let Some((text, tokens)) = self.text.push(token, bytes) {
            self.put(text, tokens);
        }
    }

    fn put(&mut self, mut text: String, tokens: Range<u64>) {
        let State::Body(body) = &mut self.state else { return };
        let is_first = !std::mem::replace(&mut body.is_begun, true);
        let seen = match body.target {
            Target::Content => std::mem::replace(&mut self.has_content, true),
            Target::Reasoning => std::mem::replace(&mut self.has_reasoning, true),
            Target::Call(_) | Target::Hidden => false,
        };
        if is_first && seen {
            text.insert_str(0, MESSAGE_SEPARATOR);
        }
        let kind = match body.target {
            Target::Content => DeltaKind::Content(text),
            Target::Reasoning => DeltaKind::Reasoning(text),
            Target::Call(index) => DeltaKind::ToolCallArguments { index, arguments: text },
            Target::Hidden => return,
        };
        self.out.push(Delta { kind, tokens });
    }

    /// `<|message|>` came.
    fn open_body(&mut self) {
        let State::Header(header) = &self.state else { return };
        let said = header.said();
        let tokens_of_header = header.tokens.clone();
        let header = header.parse();
        let target = match header.recipient.as_deref().and_then(|to| self.recipient(to)) {
            Some(Recipient::Function(name)) => {
                let index = self.calls;
                self.calls += 1;
                let id = (self.ids)();
                let tokens = self.next_token..self.next_token;
                self.out.push(Delta { kind: DeltaKind::ToolCallStart { index, id, name }, tokens });
                Target::Call(index)
            }
            Some(Recipient::BuiltIn) => Target::Hidden,
            None if header.channel.as_deref() == Some("analysis") => Target::Reasoning,
            None => Target::Content,
        };
        self.state = State::Body(Body { target, is_begun: false });
        if let Some(tokens) = tokens_of_header
            && matches!(target, Target::Content | Target::Reasoning)
            && !said.is_empty()
            && let Some((text, tokens)) = self.text.push_range(tokens, &said)
        {
            self.put(text, tokens);
        }
    }

    /// A header that names a function and has no body.
    fn is_bare_call(&self) -> bool {
        let State::Header(header) = &self.state else { return false };
        let recipient = header.parse().recipient.and_then(|to| self.recipient(&to));
        matches!(recipient, Some(Recipient::Function(_))) && header.leftover().is_empty()
    }

    fn recipient(&self, to: &str) -> Option<Recipient> {
        if let Some(name) = to.strip_prefix(FUNCTIONS).filter(|name| !name.is_empty()) {
            return Some(Recipient::Function(name.to_owned()));
        }
        // The prefix is forgotten now and then.
        if self.tools.iter().any(|name| name == to) {
            return Some(Recipient::Function(to.to_owned()));
        }
        let tool = to.split('.').next().unwrap_or_default();
        BUILT_IN.contains(&tool).then_some(Recipient::BuiltIn)
    }

    /// `is_complete`: the message was ended, not cut off.
    fn end_message(&mut self, token: u64, is_complete: bool) {
        match &self.state {
            State::Header(_) => self.header_is_content(&[]),
            State::Body(_) => {}
            State::Between => return,
        }
        if let Some((text, tokens)) = self.text.finish(token) {
            self.put(text, tokens);
        }
        if let State::Body(Body { target: Target::Call(_), is_begun: false }) = self.state
            && is_complete
        {
            // A call without arguments is a call with none of them.
            self.put("{}".to_owned(), token..token);
        }
        self.state = State::Between;
    }

    /// The header has no end: what is not a header's own words in it is content, and so is what follows.
    fn header_is_content(&mut self, behind: &[u8]) {
        let state = std::mem::replace(
            &mut self.state,
            State::Body(Body { target: Target::Content, is_begun: false }),
        );
        let State::Header(header) = state else { return };
        let Some(tokens) = header.tokens.clone() else { return };
        let mut leftover = header.leftover();
        leftover.extend_from_slice(behind);
        if leftover.is_empty() {
            return;
        }
        if let Some((text, tokens)) = self.text.push_range(tokens, &leftover) {
            self.put(text, tokens);
        }
    }
}

enum Recipient {
    Function(String),
    BuiltIn,
}

/// What a header says.
struct Parsed {
    channel: Option<String>,
    recipient: Option<String>,
}

impl Header {
    fn add(&mut self, token: u64, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        let first = self.tokens.as_ref().map_or(token, |tokens| tokens.start);
        self.tokens = Some(first..token + 1);
    }

    /// Channel: the word behind the last `<|channel|>`. Recipient: the last `to=`.
    fn parse(&self) -> Parsed {
        let text = String::from_utf8_lossy(&self.bytes);
        let word = |text: &str| {
            let end = text.find(|c: char| c.is_whitespace() || c == '<').unwrap_or(text.len());
            text[..end].to_owned()
        };
        let channel = text.rsplit_once(CHANNEL).map(|(_, behind)| word(behind.trim_start()));
        // `to=` begins a word; a control token before it is a border as well, and the role.
        let is_border = |before: &str| {
            before.ends_with([' ', '\n', '\t', '>']) || before.trim_start_matches(ROLE).is_empty()
        };
        let recipient = text
            .rmatch_indices("to=")
            .find(|(at, _)| is_border(&text[..*at]))
            .map(|(at, _)| word(&text[at + "to=".len()..]))
            .filter(|to| !to.is_empty());
        Parsed { channel, recipient }
    }

    /// Whether more tokens could make it a header.
    fn is_possible(&self) -> bool {
        if self.bytes.len() > HEADER_BYTES_MAX {
            return false;
        }
        if !self.role_is_known || self.is_open {
            return true;
        }
        // Behind the role a recipient or a channel may follow, or the role once more; other text is an answer without
        // a header.
        let text = self.behind_role().trim_ascii_start();
        let expected = b"to=";
        let common = text.len().min(expected.len());
        text[..common] == expected[..common] || ROLE.as_bytes().starts_with(text)
    }

    fn behind_role(&self) -> &[u8] {
        let mut text = self.bytes.as_slice();
        while let Some(behind) = text.strip_prefix(ROLE.as_bytes()) {
            text = behind;
        }
        text
    }

    /// Text in an ended header that is too much to be the header's own.
    fn said(&self) -> Vec<u8> {
        let leftover = self.leftover();
        let text = String::from_utf8_lossy(&leftover);
        let is_role = |at: usize| at == 0 && !self.role_is_known && !self.bytes.starts_with(ROLE.as_bytes());
        let words = text.split_whitespace().enumerate();
        let strange = words.filter(|(at, word)| !HEADER_WORDS.contains(word) && !is_role(*at)).count();
        if strange > 1 { leftover } else { Vec::new() }
    }

    /// The bytes that are no words of a header.
    fn leftover(&self) -> Vec<u8> {
        let parsed = self.parse();
        if self.role_is_known && !self.is_open {
            // An answer without a header: every byte of it counts. The beginning of a call is none.
            let recipient = parsed.recipient.filter(|to| to.starts_with(FUNCTIONS));
            let call = recipient.map(|to| format!("to={to}"));
            let is_call = call.is_some_and(|call| self.behind_role().trim_ascii() == call.as_bytes());
            return if is_call { Vec::new() } else { self.bytes[self.from_prompt..].to_vec() };
        }
        let text = String::from_utf8_lossy(self.behind_role()).into_owned();
        let mut text = [CHANNEL, CONSTRAIN].into_iter().fold(text, |text, token| text.replace(token, " "));
        if let Some(recipient) = parsed.recipient {
            text = text.replacen(&format!("to={recipient}"), "", 1);
        }
        let mut rest = text.trim_start();
        if let Some(channel) = parsed.channel
            && ["analysis", "commentary", "final"].contains(&channel.as_str())
        {
            rest = rest.strip_prefix(channel.as_str()).unwrap_or(rest).trim_start();
        }
        let rest = if rest.trim() == "json" { "" } else { rest };
        rest.trim_end().as_bytes().to_vec()
    }
}
