//! Where values behave as Python's and not as the template engine's own.

use minijinja::value::{Kwargs, Rest, Tuple, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Output, State, Value};

use super::lookups::WrittenMarkers;

/// Longest result of `zfill`, `center` and the like, in characters.
const PAD_CHARS_MAX: usize = 1 << 20;

/// Installs Python's methods, tests, filters and the way values are printed.
pub(super) fn install(env: &mut Environment<'_>, markers: &WrittenMarkers) {
    let written = markers.clone();
    env.set_unknown_method_callback(move |state, value, name, args| {
        let spelled = value.as_str().and_then(|text| written.spelled_for(text, args)).map(Value::from);
        method(state, spelled.as_ref().unwrap_or(value), name, args)
    });
    env.set_formatter(write_value);
    env.add_test("sequence", |v: Value| {
        matches!(v.kind(), ValueKind::Seq | ValueKind::String | ValueKind::Map)
    });
    // The template engine loops over nothing at all as over an empty list.
    env.add_test("iterable", |v: Value| v.is_undefined() || (!v.is_none() && v.try_iter().is_ok()));
    env.add_test("callable", |v: Value| v.kind() == ValueKind::Plain);
    env.add_filter("string", |v: Value| str_of(&v));
    env.add_filter("length", length);
    env.add_filter("count", length);
    env.add_filter("indent", indent);
    let written = markers.clone();
    env.add_filter("replace", move |text: Value, from: String, to: String, count: Option<i64>| {
        let text = str_of(&text);
        let text = written.spelled_for(&text, &[Value::from(from.as_str())]).unwrap_or(text);
        match count.and_then(|n| usize::try_from(n).ok()) {
            Some(count) => text.replacen(&from, &to, count),
            None => text.replace(&from, &to),
        }
    });
}

/// `str(value)`.
pub(super) fn str_of(value: &Value) -> String {
    match value.kind() {
        ValueKind::Number | ValueKind::Seq | ValueKind::Map => {
            let mut out = String::new();
            repr(&mut out, value);
            out
        }
        _ => value.to_string(),
    }
}

fn write_value(out: &mut Output<'_>, _: &mut State<'_, '_>, value: &Value) -> Result<(), Error> {
    if value.kind() == ValueKind::Invalid {
        return Err(Error::new(ErrorKind::InvalidOperation, value.to_string()));
    }
    let written = match value.as_str() {
        Some(text) => out.write_str(text),
        None => out.write_str(&str_of(value)),
    };
    written.map_err(Error::from)
}

/// `repr(value)`.
fn repr(out: &mut String, value: &Value) {
    match value.kind() {
        ValueKind::String => repr_str(out, value.as_str().unwrap_or_default()),
        ValueKind::Number if !value.is_integer() => {
            out.push_str(&f64::try_from(value.clone()).map_or_else(|_| value.to_string(), float_repr));
        }
        ValueKind::Seq => {
            let (open, close) = if value.is_tuple() { ('(', ')') } else { ('[', ']') };
            out.push(open);
            let mut count = 0;
            for item in value.try_iter().into_iter().flatten() {
                if count > 0 {
                    out.push_str(", ");
                }
                repr(out, &item);
                count += 1;
            }
            if value.is_tuple() && count == 1 {
                out.push(',');
            }
            out.push(close);
        }
        ValueKind::Map => {
            out.push('{');
            for (index, key) in value.try_iter().into_iter().flatten().enumerate() {
                if index > 0 {
                    out.push_str(", ");
                }
                repr(out, &key);
                out.push_str(": ");
                repr(out, &value.get_item(&key).unwrap_or_default());
            }
            out.push('}');
        }
        _ => out.push_str(&value.to_string()),
    }
}

fn repr_str(out: &mut String, text: &str) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if c == quote => {
                out.push('\\');
                out.push(c);
            }
            c if is_printable(c) => out.push(c),
            c => match u32::from(c) {
                code @ 0..=0xff => out.push_str(&format!("\\x{code:02x}")),
                code => out.push_str(&format!("\\u{code:04x}")),
            },
        }
    }
    out.push(quote);
}

/// Whether `repr` shows a character of the basic plane as it is. The private-use planes are: marks are there.
fn is_printable(c: char) -> bool {
    let is_invisible = matches!(c,
        '\u{ad}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{180e}' | '\u{200b}'..='\u{200f}'
        | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{e000}'..='\u{f8ff}' | '\u{feff}'
        | '\u{fff0}'..='\u{fffb}' | '\u{fffe}' | '\u{ffff}');
    c == ' ' || !(c.is_control() || c.is_whitespace() || is_invisible)
}

/// `repr` of a float: the shortest digits that read back the same, an exponent below 1e-4 and from 1e16 on.
pub(super) fn float_repr(x: f64) -> String {
    if x.is_nan() {
        return "nan".to_owned();
    }
    if x.is_infinite() {
        return if x > 0.0 { "inf" } else { "-inf" }.to_owned();
    }
    let scientific = format!("{x:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    if x != 0.0 && !(-4..16).contains(&exponent) {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{digits}e{sign}{:02}", exponent.abs());
    }
    let plain = format!("{x}");
    if plain.contains('.') { plain } else { format!("{plain}.0") }
}

/// `s | indent(width=4, first=False, blank=False)`, the width a number or a text.
fn indent(text: String, rest: Rest<Value>, kwargs: Kwargs) -> Result<String, Error> {
    let mut positional = rest.iter();
    let mut take = |name: &str| match positional.next() {
        Some(value) => Ok(Some(value.clone())),
        None => kwargs.get::<Option<Value>>(name),
    };
    let margin = match take("width")? {
        None => " ".repeat(4),
        Some(width) => match width.as_str() {
            Some(text) => text.to_owned(),
            None => " ".repeat(
                width.as_usize().filter(|&n| n <= PAD_CHARS_MAX).ok_or_else(|| invalid("bad width"))?,
            ),
        },
    };
    let first = take("first")?.is_some_and(|v| v.is_true());
    let blank = take("blank")?.is_some_and(|v| v.is_true());
    kwargs.assert_all_used()?;
    // The extra line end keeps an empty last line.
    let text = format!("{text}\n");
    let mut out = String::new();
    for (index, line) in split_lines(&text, false).into_iter().enumerate() {
        if index > 0 {
            out.push('\n');
        }
        let wanted = if index == 0 { first } else { blank || !line.is_empty() };
        if wanted {
            out.push_str(&margin);
        }
        out.push_str(line);
    }
    Ok(out)
}

/// `str.splitlines`: at every line end that Unicode knows.
fn split_lines(text: &str, keep_ends: bool) -> Vec<&str> {
    const ENDS: [char; 10] =
        ['\n', '\r', '\u{b}', '\u{c}', '\u{1c}', '\u{1d}', '\u{1e}', '\u{85}', '\u{2028}', '\u{2029}'];
    let mut lines = Vec::new();
    let mut rest = text;
    while let Some((at, end)) = rest.char_indices().find(|(_, c)| ENDS.contains(c)) {
        let behind = if rest[at..].starts_with("\r\n") { at + 2 } else { at + end.len_utf8() };
        lines.push(&rest[..if keep_ends { behind } else { at }]);
        rest = &rest[behind..];
    }
    if !rest.is_empty() {
        lines.push(rest);
    }
    lines
}

/// `str.title`: a capital wherever a word begins, a word being letters only.
fn title(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut in_word = false;
    for c in text.chars() {
        let is_cased = c.is_lowercase() || c.is_uppercase();
        if in_word || !is_cased {
            out.extend(c.to_lowercase());
        } else {
            let mut upper = c.to_uppercase();
            out.extend(upper.next());
            out.extend(upper.flat_map(char::to_lowercase));
        }
        in_word = is_cased;
    }
    out
}

fn length(value: Value) -> Result<usize, Error> {
    if value.is_undefined() {
        return Ok(0);
    }
    value.len().ok_or_else(|| {
        Error::new(ErrorKind::InvalidOperation, format!("a value of type {} has no length", value.kind()))
    })
}

fn method(state: &mut State<'_, '_>, value: &Value, name: &str, args: &[Value]) -> Result<Value, Error> {
    match (value.as_str(), value.kind()) {
        (Some(text), _) => {
            if let Some(result) = string_method(text, name, args)? {
                return Ok(result);
            }
        }
        (None, ValueKind::Map) if name == "copy" && args.is_empty() => return Ok(value.clone()),
        (None, ValueKind::Seq) => match (name, args) {
            ("index", [item]) => {
                let at = value.try_iter()?.position(|other| other == *item);
                return at.map(Value::from).ok_or_else(|| invalid("the item is not in the list"));
            }
            ("copy", []) => return Ok(value.clone()),
            _ => {}
        },
        _ => {}
    }
    minijinja_contrib::pycompat::unknown_method_callback(state, value, name, args)
}

/// The methods of `str` that the library does not bring, or brings with fewer arguments.
fn string_method(text: &str, name: &str, args: &[Value]) -> Result<Option<Value>, Error> {
    let text_arg = |index: usize| {
        args.get(index).and_then(Value::as_str).ok_or_else(|| invalid(&format!("{name}() needs a string")))
    };
    Ok(Some(match name {
        "removeprefix" => Value::from(text.strip_prefix(text_arg(0)?).unwrap_or(text)),
        "removesuffix" => Value::from(text.strip_suffix(text_arg(0)?).unwrap_or(text)),
        "partition" | "rpartition" => {
            let separator = text_arg(0)?;
            if separator.is_empty() {
                return Err(invalid("empty separator"));
            }
            let (cut, otherwise) = if name == "partition" {
                (text.split_once(separator), [text, "", ""])
            } else {
                (text.rsplit_once(separator), ["", "", text])
            };
            let parts = cut.map_or(otherwise, |(before, behind)| [before, separator, behind]);
            Value::from(Tuple::from(parts.map(Value::from)))
        }
        "rsplit" => {
            let at_most = match args.get(1) {
                Some(n) => usize::try_from(i64::try_from(n.clone())?).unwrap_or(usize::MAX),
                None => usize::MAX,
            };
            let mut parts: Vec<&str> = match args.first().filter(|v| !v.is_none()) {
                Some(_) => {
                    let separator = text_arg(0)?;
                    if separator.is_empty() {
                        return Err(invalid("empty separator"));
                    }
                    text.rsplitn(at_most.saturating_add(1), separator).collect()
                }
                None if at_most == usize::MAX => text.split_whitespace().rev().collect(),
                None => return Err(invalid("rsplit() with a limit needs a separator")),
            };
            parts.reverse();
            parts.into_iter().map(Value::from).collect()
        }
        "index" | "rindex" => {
            let found = if name == "index" { text.find(text_arg(0)?) } else { text.rfind(text_arg(0)?) };
            let at = found.ok_or_else(|| invalid("substring not found"))?;
            Value::from(text[..at].chars().count())
        }
        "title" => Value::from(title(text)),
        "splitlines" => {
            let keep_ends = args.first().is_some_and(Value::is_true);
            split_lines(text, keep_ends).into_iter().map(Value::from).collect()
        }
        "casefold" => Value::from(text.to_lowercase()),
        "swapcase" => {
            let swap = |c: char| -> String {
                if c.is_uppercase() { c.to_lowercase().collect() } else { c.to_uppercase().collect() }
            };
            Value::from(text.chars().map(swap).collect::<String>())
        }
        "isdecimal" => Value::from(!text.is_empty() && text.chars().all(char::is_numeric)),
        "zfill" | "ljust" | "rjust" | "center" => Value::from(pad(text, name, args)?),
        _ => return Ok(None),
    }))
}

pub(super) fn pad(text: &str, name: &str, args: &[Value]) -> Result<String, Error> {
    let width =
        args.first().and_then(Value::as_usize).ok_or_else(|| invalid(&format!("{name}() needs a width")))?;
    if width > PAD_CHARS_MAX {
        return Err(invalid("the width is too large"));
    }
    let default = if name == "zfill" { "0" } else { " " };
    let fill = args.get(1).and_then(Value::as_str).unwrap_or(default);
    let missing = width.saturating_sub(text.chars().count());
    Ok(match name {
        "ljust" => format!("{text}{}", fill.repeat(missing)),
        "rjust" => format!("{}{text}", fill.repeat(missing)),
        "center" => {
            // Where it is uneven, Python puts the extra one on the left of an even width.
            let left = missing / 2 + (missing & width & 1);
            format!("{}{text}{}", fill.repeat(left), fill.repeat(missing - left))
        }
        _ => {
            let (sign, digits) = text.split_at(usize::from(text.starts_with(['+', '-'])));
            format!("{sign}{}{digits}", fill.repeat(missing))
        }
    })
}

fn invalid(message: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.to_owned())
}
