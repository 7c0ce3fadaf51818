//! Filters as Jinja has them, where the template engine has others, stricter ones or none.

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, Value, filters};

use super::python::{pad, str_of};

pub(super) fn install(env: &mut Environment<'_>) {
    env.add_filter("default", default);
    env.add_filter("d", default);
    env.add_filter("int", int);
    env.add_filter("float", float);
    env.add_filter("items", |value: Value| match value.is_undefined() {
        true => Ok(Value::from(Vec::<Value>::new())),
        false => filters::items(&value),
    });
    env.add_filter("e", escape);
    env.add_filter("escape", escape);
    env.add_filter("forceescape", |value: Value| escaped(&value));
    env.add_filter("center", |value: Value, width: Option<Value>| {
        pad(&str_of(&value), "center", &[width.unwrap_or(Value::from(80))])
    });
    env.add_filter("wordcount", |value: Value| {
        str_of(&value)
            .split(|c: char| !c.is_alphanumeric() && c != '_')
            .filter(|word| !word.is_empty())
            .count()
    });
    env.add_function("cycler", |items: Rest<Value>| minijinja_contrib::globals::cycler(items.to_vec()));
    env.add_function("joiner", minijinja_contrib::globals::joiner);
    // Jinja has none: it would print what the template is given.
    env.remove_global("debug");
}

/// `N` arguments by place or by name; what is not given is `None`.
fn arguments<const N: usize>(
    names: [&str; N],
    rest: &Rest<Value>,
    kwargs: &Kwargs,
) -> Result<[Option<Value>; N], Error> {
    if rest.len() > N {
        return Err(Error::from(ErrorKind::TooManyArguments));
    }
    let mut found = [const { None }; N];
    for (index, name) in names.into_iter().enumerate() {
        found[index] = match rest.get(index) {
            Some(value) => Some(value.clone()),
            None if kwargs.has(name) => Some(kwargs.get::<Value>(name)?),
            None => None,
        };
    }
    kwargs.assert_all_used()?;
    Ok(found)
}

/// `x | default(default_value="", boolean=False)`.
fn default(value: Value, rest: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    let [otherwise, boolean] = arguments(["default_value", "boolean"], &rest, &kwargs)?;
    let is_missing = value.is_undefined() || (boolean.is_some_and(|v| v.is_true()) && !value.is_true());
    Ok(if is_missing { otherwise.unwrap_or_else(|| Value::from("")) } else { value })
}

fn defined(value: &Value) -> Result<(), Error> {
    if value.is_undefined() { Err(Error::from(ErrorKind::UndefinedError)) } else { Ok(()) }
}

/// `x | int(default=0, base=10)`: the default for everything that is no number.
fn int(value: Value, rest: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    defined(&value)?;
    let [otherwise, base] = arguments(["default", "base"], &rest, &kwargs)?;
    if value.is_integer() {
        return Ok(value);
    }
    let base = base.and_then(|v| u32::try_from(v).ok()).unwrap_or(10);
    let whole = value.as_str().and_then(|text| parse_int(text, base)).map(Value::from);
    let cut = || {
        let number = number(&value)?.trunc();
        // Beyond these the conversion would give another number.
        (number.abs() < i128::MAX as f64).then(|| Value::from(number as i128))
    };
    Ok(whole.or_else(cut).or(otherwise).unwrap_or_else(|| Value::from(0)))
}

/// `x | float(default=0.0)`.
fn float(value: Value, rest: Rest<Value>, kwargs: Kwargs) -> Result<Value, Error> {
    defined(&value)?;
    let [otherwise] = arguments(["default"], &rest, &kwargs)?;
    Ok(number(&value).map(Value::from).or(otherwise).unwrap_or_else(|| Value::from(0.0)))
}

fn number(value: &Value) -> Option<f64> {
    match value.kind() {
        ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        ValueKind::Number => f64::try_from(value.clone()).ok(),
        ValueKind::String => value.as_str()?.trim().replace('_', "").parse().ok(),
        _ => None,
    }
}

/// `int(text, base)` of Python.
fn parse_int(text: &str, base: u32) -> Option<i128> {
    let text = text.trim().replace('_', "").to_ascii_lowercase();
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", text.strip_prefix('+').unwrap_or(&text)),
    };
    let prefixed = [("0x", 16), ("0o", 8), ("0b", 2)].into_iter().find_map(|(prefix, of)| {
        Some((digits.strip_prefix(prefix)?, of)).filter(|_| base == 0 || base == of)
    });
    let (digits, base) = prefixed.unwrap_or((digits, if base == 0 { 10 } else { base }));
    if !(2..=36).contains(&base) || !digits.chars().all(|c| c.is_digit(base)) {
        return None;
    }
    i128::from_str_radix(&format!("{sign}{digits}"), base).ok()
}

/// Text that is marked safe stays as it is.
fn escape(value: Value) -> Value {
    if value.is_safe() { value } else { escaped(&value) }
}

fn escaped(value: &Value) -> Value {
    let text = str_of(value);
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '\'' => out.push_str("&#39;"),
            '"' => out.push_str("&#34;"),
            c => out.push(c),
        }
    }
    Value::from_safe_string(out)
}
