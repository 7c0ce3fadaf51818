//! Tells control tokens that the template writes from text of the request that only looks like one.
//!
//! Every spelling of a control token in the template's own text, and in the special-token variables, is replaced by one
//! private-use character that occurs nowhere else before the template runs. After rendering, a mark is a control token
//! and everything else is literal text. So text of the request cannot become a control token by any way through
//! the template: whole, in pieces, joined with the template's own words, or cut out by its string functions.
//!
//! Some templates spell control tokens around the role of a message: `'<|' + message.role + '|>'`. There the two ends are
//! marked, if what the source has between them can only give a role or the template's own words. Roles are checked
//! against a closed list before rendering, so such a token is the template's choice as well.
//!
//! Markers (`<think>`) are marked where the template writes them. Where it looks for them in the request's text
//! (`'</think>' in content`, `content.split('</think>')`) they stay as they are: there they have to be found. So that
//! it finds those it wrote itself as well, see `lookups`.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

use super::TemplateSource;
use super::lookups::{self, WrittenMarkers};
use super::source::{Kind, Piece, pieces};
use crate::control_tokens::Finder;

/// What `role` of a message may be.
pub(crate) const ROLES: [&str; 6] = ["system", "developer", "user", "assistant", "tool", "function"];

/// The private-use characters of planes 15 and 16.
const PRIVATE: [Range<u32>; 2] = [0xF_0000..0xF_FFFE, 0x10_0000..0x10_FFFE];
/// Tokens of source looked at between the two ends of a spelling.
const BETWEEN_MAX: usize = 24;

/// The marks of one compiled template.
pub(super) struct Marks {
    meaning: HashMap<char, Mark>,
    spelling: HashMap<String, char>,
    spellings: HashSet<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Mark {
    Token(String),
    /// `<|` before a role.
    Head(String),
    /// `|>` behind it.
    Tail(String),
}

/// A template ready to be compiled, in which control tokens are marks.
pub(super) struct Marked {
    pub marks: Marks,
    pub written: WrittenMarkers,
    pub text: String,
    /// The special-token variables.
    pub variables: BTreeMap<String, String>,
}

/// A text, and where in it control tokens are.
pub(super) struct Unmarked {
    pub text: String,
    pub control: Vec<Range<usize>>,
}

/// Hands out characters that occur in none of the texts it was shown.
struct Fresh {
    used: HashSet<char>,
    next: u32,
    left: u32,
}

impl Fresh {
    const COUNT: u32 = (PRIVATE[0].end - PRIVATE[0].start) + (PRIVATE[1].end - PRIVATE[1].start);

    fn take(&mut self) -> Option<char> {
        while self.left > 0 {
            self.left -= 1;
            let index = self.next;
            self.next = (index + 1) % Self::COUNT;
            let first = PRIVATE[0].end - PRIVATE[0].start;
            let code =
                if index < first { PRIVATE[0].start + index } else { PRIVATE[1].start + (index - first) };
            let c = char::from_u32(code)?;
            if self.used.insert(c) {
                return Some(c);
            }
        }
        None
    }
}

/// Whether a text has any character that could be a mark.
pub(super) fn private_characters(text: &str) -> impl Iterator<Item = char> + '_ {
    // UTF-8 of planes 15 and 16 starts with F3 or F4: the common text is passed over without decoding.
    let any = text.bytes().any(|b| b >= 0xF3);
    text.chars().filter(move |&c| any && PRIVATE.iter().any(|r| r.contains(&u32::from(c))))
}

impl Marks {
    /// The source with its control tokens marked and `generation` tags made plain blocks. `None`: no private-use
    /// characters are left. `start` is where among them to begin; the characters of `avoid` are passed over.
    pub(super) fn mark(source: &TemplateSource, start: u64, avoid: &HashSet<char>) -> Option<Marked> {
        let given_variables = &source.variables;
        let all = || source.control_tokens.iter().chain(&source.markers);
        let markers: HashSet<&str> = source.markers.iter().map(String::as_str).collect();
        let source = source.text.as_str();
        let mut used = avoid.clone();
        used.extend(private_characters(source));
        for text in all().chain(given_variables.values()) {
            used.extend(private_characters(text));
        }
        let next = u32::try_from(start % u64::from(Fresh::COUNT)).unwrap_or(0);
        let mut fresh = Fresh { used, next, left: Fresh::COUNT };
        let mut marks =
            Marks { meaning: HashMap::new(), spelling: HashMap::new(), spellings: all().cloned().collect() };

        let pieces = pieces(source);
        let mut edits: Vec<(Range<usize>, String)> = Vec::new();
        // A vocabulary in which "user" is a control token must not break the template's `role == "user"`.
        let finder = Finder::new(all().map(String::as_str).filter(|s| !ROLES.contains(s)));
        for (index, piece) in pieces.iter().enumerate() {
            match piece.kind {
                Kind::Text | Kind::Str => {
                    let is_looked_for = piece.kind == Kind::Str && is_looked_for(source, &pieces, index);
                    let mut is_marker_looked_for = false;
                    for (at, spelling) in finder.find_all(piece.text(source)) {
                        if is_looked_for && markers.contains(spelling) {
                            is_marker_looked_for = true;
                            continue;
                        }
                        let start = piece.range.start + at;
                        let mark = marks.token(spelling, &mut fresh)?;
                        edits.push((start..start + spelling.len(), mark.to_string()));
                    }
                    if is_marker_looked_for {
                        edits.extend(lookups::searched_text(source, &pieces, index));
                    }
                }
                Kind::Generation => {
                    let word = if piece.text(source) == "generation" { "if true" } else { "endif" };
                    edits.push((piece.range.clone(), word.to_owned()));
                }
                Kind::Name | Kind::Other => {}
            }
        }
        for (head, tail) in around_roles(source, &pieces, all()) {
            for (range, is_head) in [(head, true), (tail, false)] {
                if edits.iter().any(|(other, _)| other.start < range.end && range.start < other.end) {
                    continue;
                }
                let text = source[range.clone()].to_owned();
                let mark = marks.part(text, is_head, &mut fresh)?;
                edits.push((range, mark.to_string()));
            }
        }
        edits.sort_by_key(|(range, _)| range.start);
        let mut marked = String::with_capacity(source.len());
        let mut done = 0;
        for (range, with) in edits {
            marked.push_str(&source[done..range.start]);
            marked.push_str(&with);
            done = range.end;
        }
        marked.push_str(&source[done..]);
        let mut variables = BTreeMap::new();
        for (name, text) in given_variables {
            let is_token = marks.spellings.contains(text);
            let marked = if is_token { marks.token(text, &mut fresh)?.to_string() } else { text.clone() };
            variables.insert(name.clone(), marked);
        }
        let is_marker = |spelling: &String| markers.contains(spelling.as_str());
        let written = marks.spelling.iter().filter(|(spelling, _)| is_marker(spelling));
        let written =
            WrittenMarkers::new(written.map(|(spelling, &mark)| (mark, spelling.clone())).collect());
        Some(Marked { marks, written, text: marked, variables })
    }

    fn token(&mut self, spelling: &str, fresh: &mut Fresh) -> Option<char> {
        if let Some(&mark) = self.spelling.get(spelling) {
            return Some(mark);
        }
        let mark = fresh.take()?;
        self.meaning.insert(mark, Mark::Token(spelling.to_owned()));
        self.spelling.insert(spelling.to_owned(), mark);
        Some(mark)
    }

    fn part(&mut self, text: String, is_head: bool, fresh: &mut Fresh) -> Option<char> {
        let meaning = if is_head { Mark::Head(text) } else { Mark::Tail(text) };
        if let Some((&mark, _)) = self.meaning.iter().find(|(_, m)| **m == meaning) {
            return Some(mark);
        }
        let mark = fresh.take()?;
        self.meaning.insert(mark, meaning);
        Some(mark)
    }

    pub(super) fn has_spellings(&self) -> bool {
        !self.spellings.is_empty()
    }

    pub(super) fn is_mark(&self, c: char) -> bool {
        self.meaning.contains_key(&c)
    }

    /// Puts the spellings back.
    pub(super) fn unmark(&self, marked: &str) -> Unmarked {
        let mut out =
            Unmarked { text: String::with_capacity(marked.len() + marked.len() / 8), control: Vec::new() };
        let mut rest = marked;
        while let Some((at, mark, meaning)) = self.next_mark(rest) {
            out.text.push_str(&rest[..at]);
            rest = &rest[at + mark.len_utf8()..];
            let start = out.text.len();
            match meaning {
                Mark::Token(spelling) => {
                    out.text.push_str(spelling);
                    out.control.push(start..out.text.len());
                }
                Mark::Tail(text) => out.text.push_str(text),
                Mark::Head(head) => {
                    out.text.push_str(head);
                    if let Some((at, mark, Mark::Tail(tail))) = self.next_mark(rest) {
                        let whole = format!("{head}{}{tail}", &rest[..at]);
                        if self.spellings.contains(&whole) {
                            out.text.truncate(start);
                            out.text.push_str(&whole);
                            out.control.push(start..out.text.len());
                            rest = &rest[at + mark.len_utf8()..];
                        }
                    }
                }
            }
        }
        out.text.push_str(rest);
        out
    }

    fn next_mark(&self, text: &str) -> Option<(usize, char, &Mark)> {
        text.char_indices()
            .filter(|&(_, c)| u32::from(c) >= PRIVATE[0].start)
            .find_map(|(at, c)| Some((at, c, self.meaning.get(&c)?)))
    }
}

/// The ends (`<|` and `|>`) of spellings that the source builds around the role of a message.
fn around_roles<'s>(
    source: &str,
    pieces: &[Piece],
    spellings: impl Iterator<Item = &'s String>,
) -> Vec<(Range<usize>, Range<usize>)> {
    let mut found = Vec::new();
    // Only spellings with a role inside can be built so, and few vocabularies have any.
    let around: Vec<(&str, &str)> = spellings
        .flat_map(|s| {
            ROLES.into_iter().filter_map(move |role| {
                let (head, tail) = s.split_once(role)?;
                (!head.is_empty() && !tail.is_empty()).then_some((head, tail))
            })
        })
        .collect::<HashSet<_>>()
        .into_iter()
        .collect();
    if around.is_empty() {
        return found;
    }
    for (index, piece) in pieces.iter().enumerate() {
        if !matches!(piece.kind, Kind::Text | Kind::Str) {
            continue;
        }
        let before = piece.text(source);
        let heads: Vec<&(&str, &str)> = around.iter().filter(|(head, _)| before.ends_with(head)).collect();
        if heads.is_empty() {
            continue;
        }
        for behind in behind_role(source, pieces, index) {
            let text = behind.text(source);
            if let Some((head, tail)) = heads.iter().find(|(_, tail)| text.starts_with(tail)) {
                let head = piece.range.end - head.len()..piece.range.end;
                found.push((head, behind.range.start..behind.range.start + tail.len()));
                break;
            }
        }
    }
    found
}

/// Whether a literal is compared with something or looked for in it, and not written.
fn is_looked_for(source: &str, pieces: &[Piece], index: usize) -> bool {
    const COMPARISONS: [&str; 5] = ["in", "not", "is", "==", "!="];
    const SEARCHES: [&str; 17] = [
        "split",
        "rsplit",
        "startswith",
        "endswith",
        "find",
        "rfind",
        "index",
        "rindex",
        "count",
        "strip",
        "lstrip",
        "rstrip",
        "removeprefix",
        "removesuffix",
        "partition",
        "rpartition",
        "replace",
    ];
    let text = |at: usize| pieces.get(at).filter(|p| p.kind != Kind::Str).map_or("", |p| p.text(source));
    let before = index.checked_sub(1).map_or("", text);
    if COMPARISONS.contains(&before) || COMPARISONS.contains(&text(index + 1)) {
        return true;
    }
    // Back to the parenthesis it stands in.
    let mut depth = 0_usize;
    for at in (index.saturating_sub(BETWEEN_MAX)..index).rev() {
        match text(at) {
            ")" => depth += 1,
            "(" if depth == 0 => return at > 0 && SEARCHES.contains(&text(at - 1)),
            "(" => depth -= 1,
            _ => {}
        }
    }
    false
}

/// The literals that can stand behind `pieces[index]` with nothing but a role or literals between them.
fn behind_role<'p>(source: &str, pieces: &'p [Piece], index: usize) -> Vec<&'p Piece> {
    const WORDS: [&str; 8] = ["if", "else", "is", "not", "and", "or", "in", "loop"];
    const FILTERS: [&str; 6] = ["trim", "lower", "upper", "capitalize", "title", "string"];
    const OPERATORS: [&str; 9] = ["+", "~", "-", "(", ")", "{{", "}}", "==", "!="];
    let mut literals = Vec::new();
    let mut at = index + 1;
    let end = pieces.len().min(index + 1 + BETWEEN_MAX);
    while at < end {
        let piece = &pieces[at];
        let text = piece.text(source);
        at += 1;
        match piece.kind {
            Kind::Str => literals.push(piece),
            Kind::Text => {
                literals.push(piece);
                break;
            }
            Kind::Other if OPERATORS.contains(&text) => {}
            Kind::Other if text == "|" => {
                if !pieces.get(at).is_some_and(|p| p.kind == Kind::Name && FILTERS.contains(&p.text(source)))
                {
                    break;
                }
                at += 1;
            }
            Kind::Name if WORDS.contains(&text) => {}
            Kind::Name => match path_to_role(source, pieces, at - 1) {
                Some(behind) => at = behind,
                None => break,
            },
            Kind::Other | Kind::Generation => break,
        }
    }
    literals
}

/// Index behind `message.role`, `messages[0]['role']` or `role`, if that is what starts at `at`.
fn path_to_role(source: &str, pieces: &[Piece], at: usize) -> Option<usize> {
    let mut last = pieces[at].text(source);
    let mut at = at + 1;
    loop {
        match pieces.get(at).map(|p| p.text(source)) {
            Some(".") if pieces.get(at)?.kind == Kind::Other => {
                last = pieces.get(at + 1)?.text(source);
                at += 2;
            }
            Some("[") if pieces.get(at)?.kind == Kind::Other => {
                let key = pieces.get(at + 1)?;
                last = key.text(source);
                let close = (at + 2..pieces.len().min(at + 2 + BETWEEN_MAX))
                    .find(|&i| pieces[i].kind == Kind::Other && pieces[i].text(source) == "]")?;
                if close > at + 2 {
                    last = "";
                }
                at = close + 1;
            }
            _ => return (last == "role").then_some(at),
        }
    }
}

#[cfg(test)]
mod tests;
