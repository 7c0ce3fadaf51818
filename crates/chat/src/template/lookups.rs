//! Lets templates find the markers that they wrote themselves.
//!
//! What a template writes of a marker is a mark (see `mark`), and what it looks for is the spelling, to find it in the
//! request's text. A text that the template put together itself can hold both. So `'<think>' in text` becomes
//! `'<think>' in (text)|spell_markers`, and string methods and `replace` spell the markers they are asked for first.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use minijinja::value::ValueKind;
use minijinja::{Environment, Value};

use super::source::{Kind, Piece};

/// Gives the text in which every marker is spelled.
const SPELL: &str = "spell_markers";

/// The marks of the markers that a template writes.
#[derive(Debug, Clone, Default)]
pub(super) struct WrittenMarkers {
    spelling: Arc<HashMap<char, String>>,
}

impl WrittenMarkers {
    pub(super) fn new(spelling: HashMap<char, String>) -> WrittenMarkers {
        WrittenMarkers { spelling: Arc::new(spelling) }
    }

    pub(super) fn install(&self, env: &mut Environment<'_>) {
        let markers = self.clone();
        env.add_filter(SPELL, move |value: Value| match value.kind() {
            ValueKind::Seq => {
                value.try_iter().map_or(value, |items| items.map(|v| markers.in_text(v)).collect())
            }
            _ => markers.in_text(value),
        });
    }

    fn in_text(&self, value: Value) -> Value {
        value.as_str().and_then(|text| self.spelled(text, |_| true)).map_or(value, Value::from)
    }

    /// `text` with the markers spelled that occur in one of `needles`; `None` if that changes nothing.
    pub(super) fn spelled_for(&self, text: &str, needles: &[Value]) -> Option<String> {
        self.spelled(text, |spelling| needles.iter().any(|needle| mentions(needle, spelling)))
    }

    fn spelled(&self, text: &str, is_wanted: impl Fn(&str) -> bool) -> Option<String> {
        let wanted = |c: char| self.spelling.get(&c).filter(|spelling| is_wanted(spelling));
        if self.spelling.is_empty() || !text.chars().any(|c| wanted(c).is_some()) {
            return None;
        }
        let mut out = String::with_capacity(text.len() * 2);
        for c in text.chars() {
            match wanted(c) {
                Some(spelling) => out.push_str(spelling),
                None => out.push(c),
            }
        }
        Some(out)
    }
}

/// `startswith` and `endswith` take several texts at once.
fn mentions(needle: &Value, spelling: &str) -> bool {
    match needle.as_str() {
        Some(text) => text.contains(spelling),
        None if needle.kind() == ValueKind::Seq => needle
            .try_iter()
            .into_iter()
            .flatten()
            .any(|item| item.as_str().is_some_and(|t| t.contains(spelling))),
        None => false,
    }
}

/// What has to be inserted where for the literal `pieces[index]`, which holds a marker; empty if it is not behind it
/// that something is searched.
pub(super) fn searched_text(source: &str, pieces: &[Piece], index: usize) -> Vec<(Range<usize>, String)> {
    let name = |at: usize| pieces.get(at).filter(|p| p.kind == Kind::Name).map_or("", |p| p.text(source));
    let at = index + 1 + usize::from(name(index + 1) == "not");
    let Some(first) = pieces.get(at + 1).filter(|_| name(at) == "in") else {
        return Vec::new();
    };
    let Some(end) = operand_end(source, pieces, at + 1) else {
        return Vec::new();
    };
    let quote = usize::from(first.kind == Kind::Str);
    let start = first.range.start - quote;
    vec![(start..start, "(".to_owned()), (end..end, format!(")|{SPELL}"))]
}

/// Where in the source the operand ends that starts with `pieces[first]`.
fn operand_end(source: &str, pieces: &[Piece], first: usize) -> Option<usize> {
    const WORDS: [&str; 7] = ["and", "or", "if", "else", "not", "is", "in"];
    const ENDS: [&str; 9] = [",", ":", "==", "!=", "<", ">", "<=", ">=", "="];
    const CLOSES: [&str; 2] = ["%}", "}}"];
    let mut depth = 0_usize;
    let mut end = None;
    for (at, piece) in pieces.iter().enumerate().skip(first) {
        let text = piece.text(source);
        let closes = |at: usize| {
            pieces.get(at).is_some_and(|p| p.kind == Kind::Other && CLOSES.contains(&p.text(source)))
        };
        match piece.kind {
            Kind::Text | Kind::Generation => return end,
            Kind::Name if depth == 0 && WORDS.contains(&text) => return end,
            Kind::Other => match text {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" if depth == 0 => return end,
                ")" | "]" | "}" => depth -= 1,
                "-" | "+" if closes(at + 1) => return end,
                _ if closes(at) || (depth == 0 && ENDS.contains(&text)) => return end,
                _ => {}
            },
            Kind::Name | Kind::Str => {}
        }
        end = Some(piece.range.end + usize::from(piece.kind == Kind::Str));
    }
    end
}
