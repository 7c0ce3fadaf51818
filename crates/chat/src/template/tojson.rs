//! The `tojson` filter as `transformers` has it: `json.dumps` of Python, `ensure_ascii=False` unless asked.

use std::fmt::Write as _;

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Error, ErrorKind, Value};

use super::python::float_repr;

struct Style {
    ascii: bool,
    indent: Option<String>,
    item_separator: String,
    key_separator: String,
    sort_keys: bool,
}

/// `x | tojson(ensure_ascii=False, indent=None, separators=None, sort_keys=False)`.
pub(super) fn tojson(value: &Value, rest: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let mut positional = rest.iter();
    let mut take = |name: &str| -> Result<Option<Value>, Error> {
        let given = match positional.next() {
            Some(value) => Some(value.clone()),
            None => kwargs.get::<Option<Value>>(name)?,
        };
        Ok(given.filter(|v| !v.is_none() && !v.is_undefined()))
    };
    let ascii = take("ensure_ascii")?.is_some_and(|v| v.is_true());
    let indent = match take("indent")? {
        None => None,
        Some(v) => Some(match v.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(usize::try_from(i64::try_from(v)?.clamp(0, 64)).unwrap_or(0)),
        }),
    };
    let (mut item_separator, mut key_separator) =
        (if indent.is_some() { "," } else { ", " }.to_owned(), ": ".to_owned());
    if let Some(separators) = take("separators")? {
        item_separator = separators.get_item_by_index(0)?.to_string();
        key_separator = separators.get_item_by_index(1)?.to_string();
    }
    let sort_keys = take("sort_keys")?.is_some_and(|v| v.is_true());
    kwargs.assert_all_used()?;
    let style = Style { ascii, indent, item_separator, key_separator, sort_keys };
    let mut out = String::new();
    style.value(&mut out, value, 0)?;
    Ok(out)
}

impl Style {
    fn value(&self, out: &mut String, value: &Value, depth: usize) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => out.push_str(&number(value)?),
            ValueKind::String => self.string(out, value.as_str().unwrap_or_default()),
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?.map(|item| (None, item));
                self.container(out, items, ('[', ']'), depth)?;
            }
            ValueKind::Map => {
                let mut pairs = Vec::new();
                for key in value.try_iter()? {
                    let item = value.get_item(&key)?;
                    pairs.push((key_text(&key)?, item));
                }
                if self.sort_keys {
                    pairs.sort_by(|a, b| a.0.cmp(&b.0));
                }
                let items = pairs.into_iter().map(|(key, item)| (Some(key), item));
                self.container(out, items, ('{', '}'), depth)?;
            }
            kind => {
                return Err(Error::new(
                    ErrorKind::InvalidOperation,
                    format!("a value of type {kind} cannot be written as JSON"),
                ));
            }
        }
        Ok(())
    }

    fn container(
        &self,
        out: &mut String,
        items: impl Iterator<Item = (Option<String>, Value)>,
        (open, close): (char, char),
        depth: usize,
    ) -> Result<(), Error> {
        out.push(open);
        let mut is_empty = true;
        for (key, item) in items {
            if !is_empty {
                out.push_str(&self.item_separator);
            }
            is_empty = false;
            self.new_line(out, depth + 1);
            if let Some(key) = key {
                self.string(out, &key);
                out.push_str(&self.key_separator);
            }
            self.value(out, &item, depth + 1)?;
        }
        if !is_empty {
            self.new_line(out, depth);
        }
        out.push(close);
        Ok(())
    }

    fn new_line(&self, out: &mut String, depth: usize) {
        if let Some(indent) = &self.indent {
            out.push('\n');
            for _ in 0..depth {
                out.push_str(indent);
            }
        }
    }

    fn string(&self, out: &mut String, text: &str) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if u32::from(c) < 0x20 || (self.ascii && !(' '..='~').contains(&c)) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        // Writing to a String does not fail.
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

fn number(value: &Value) -> Result<String, Error> {
    if value.is_integer() {
        return Ok(value.to_string());
    }
    let x = f64::try_from(value.clone())?;
    Ok(match x {
        x if x.is_nan() => "NaN".to_owned(),
        f64::INFINITY => "Infinity".to_owned(),
        f64::NEG_INFINITY => "-Infinity".to_owned(),
        x => float_repr(x),
    })
}

fn key_text(key: &Value) -> Result<String, Error> {
    Ok(match key.kind() {
        ValueKind::String => key.to_string(),
        ValueKind::None => "null".to_owned(),
        ValueKind::Bool => if key.is_true() { "true" } else { "false" }.to_owned(),
        ValueKind::Number => number(key)?,
        kind => {
            return Err(Error::new(ErrorKind::InvalidOperation, format!("a key of type {kind} is not JSON")));
        }
    })
}
