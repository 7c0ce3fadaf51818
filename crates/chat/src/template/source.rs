//! Cuts a template's source into text, string literals and the tokens between them.
//!
//! Only as deep as marking control tokens needs (see `mark`); the template engine parses for itself.

use std::ops::Range;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Text outside of every tag.
    Text,
    /// The inside of a string literal, without its quotes.
    Str,
    /// A name or keyword.
    Name,
    /// A number, an operator, `{{`, `}}`, `{%` or `%}`.
    Other,
    /// `generation` or `endgeneration` as the word of a block tag.
    Generation,
}

/// A piece of the source, in bytes.
#[derive(Debug, Clone)]
pub(super) struct Piece {
    pub kind: Kind,
    pub range: Range<usize>,
}

impl Piece {
    pub(super) fn text<'s>(&self, source: &'s str) -> &'s str {
        &source[self.range.clone()]
    }
}

/// The pieces, in order. Comments are left out. A source that breaks off inside a tag yields what was there; the
/// template engine refuses it.
pub(super) fn pieces(source: &str) -> Vec<Piece> {
    Cutter { source, at: 0, out: Vec::new() }.run()
}

struct Cutter<'s> {
    source: &'s str,
    at: usize,
    out: Vec<Piece>,
}

impl Cutter<'_> {
    fn run(mut self) -> Vec<Piece> {
        while self.at < self.source.len() {
            let rest = &self.source[self.at..];
            let open = ["{{", "{%", "{#"].into_iter().filter_map(|tag| rest.find(tag)).min();
            let Some(open) = open else {
                self.push(Kind::Text, self.source.len());
                break;
            };
            self.push(Kind::Text, self.at + open);
            match &self.source[self.at..self.at + 2] {
                "{#" => self.skip_past("#}"),
                "{%" if self.verbatim() => {}
                _ => self.tag(),
            }
        }
        self.out
    }

    fn push(&mut self, kind: Kind, end: usize) {
        if end > self.at {
            self.out.push(Piece { kind, range: self.at..end });
        }
        self.at = end;
    }

    fn skip_past(&mut self, end: &str) {
        self.at = self.source[self.at..].find(end).map_or(self.source.len(), |i| self.at + i + end.len());
    }

    /// `{% raw %} … {% endraw %}`: all of it is text.
    fn verbatim(&mut self) -> bool {
        if self.block_word(self.at) != Some("raw") {
            return false;
        }
        self.skip_past("%}");
        let mut end = self.at;
        while let Some(i) = self.source[end..].find("{%") {
            end += i;
            if self.block_word(end) == Some("endraw") {
                break;
            }
            end += 2;
        }
        if self.block_word(end) != Some("endraw") {
            end = self.source.len();
        }
        self.push(Kind::Text, end);
        self.skip_past("%}");
        true
    }

    /// The first word of the block tag that opens at `at`.
    fn block_word(&self, at: usize) -> Option<&str> {
        let inside = self.source.get(at..)?.strip_prefix("{%")?;
        let inside = inside.strip_prefix(['-', '+']).unwrap_or(inside).trim_start();
        let end = inside.find(|c: char| !is_name(c)).unwrap_or(inside.len());
        Some(&inside[..end])
    }

    fn tag(&mut self) {
        let is_generation = matches!(self.block_word(self.at), Some("generation" | "endgeneration"));
        let close = if self.source[self.at..].starts_with("{{") { "}}" } else { "%}" };
        self.push(Kind::Other, self.at + 2);
        let mut braces = 0_usize;
        let mut is_first_name = true;
        while let Some(c) = self.source[self.at..].chars().next() {
            let rest = &self.source[self.at..];
            if braces == 0 && rest.starts_with(close) {
                self.push(Kind::Other, self.at + 2);
                return;
            }
            match c {
                '\'' | '"' => self.string(c),
                c if c.is_whitespace() => self.at += c.len_utf8(),
                c if is_name(c) => {
                    let end = rest.find(|c: char| !is_name(c)).map_or(self.source.len(), |i| self.at + i);
                    let kind = match c {
                        '0'..='9' => Kind::Other,
                        _ if is_first_name && is_generation => Kind::Generation,
                        _ => Kind::Name,
                    };
                    is_first_name = false;
                    self.push(kind, end);
                }
                _ => {
                    match c {
                        '{' => braces += 1,
                        '}' => braces = braces.saturating_sub(1),
                        _ => {}
                    }
                    let two = ["==", "!=", "<=", ">=", "//", "**"].into_iter().any(|op| rest.starts_with(op));
                    self.push(Kind::Other, self.at + if two { 2 } else { c.len_utf8() });
                }
            }
        }
    }

    fn string(&mut self, quote: char) {
        self.at += 1;
        let mut escaped = false;
        let end = self.source[self.at..].char_indices().find(|&(_, c)| {
            let closes = c == quote && !escaped;
            escaped = c == '\\' && !escaped;
            closes
        });
        let end = end.map_or(self.source.len(), |(i, _)| self.at + i);
        // Empty literals are pieces too: they are operands.
        self.out.push(Piece { kind: Kind::Str, range: self.at..end });
        self.at = (end + 1).min(self.source.len());
    }
}

fn is_name(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}
