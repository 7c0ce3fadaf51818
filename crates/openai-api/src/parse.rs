//! From the bytes of a body to a request, with errors that name the field and the place.

use serde::de::DeserializeOwned;

/// What is wrong with a request, said so that the caller can fix it. Always a 400.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InvalidRequest {
    /// Path of the field: `messages[0].content`. `None`: the body as a whole.
    pub param: Option<String>,
    /// Stable, snake_case.
    pub code: &'static str,
    pub message: String,
    pub hint: Option<String>,
}

impl InvalidRequest {
    /// A value that is out of its range or of the wrong kind.
    pub fn value(param: impl Into<String>, message: impl Into<String>) -> InvalidRequest {
        InvalidRequest {
            param: Some(param.into()),
            code: "invalid_value",
            message: message.into(),
            hint: None,
        }
    }

    /// A field that is known and asks for something this server does not do.
    pub fn unsupported(param: impl Into<String>, message: impl Into<String>) -> InvalidRequest {
        InvalidRequest {
            param: Some(param.into()),
            code: "unsupported_parameter",
            message: message.into(),
            hint: None,
        }
    }

    pub fn missing(param: &str) -> InvalidRequest {
        InvalidRequest {
            param: Some(param.to_owned()),
            code: "missing_required_parameter",
            message: format!("`{param}` is required"),
            hint: None,
        }
    }

    pub fn hint(mut self, hint: impl Into<String>) -> InvalidRequest {
        self.hint = Some(hint.into());
        self
    }
}

impl std::fmt::Display for InvalidRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for InvalidRequest {}

/// Reads a JSON body. Unknown, doubled and mistyped fields are refused by name, malformed JSON by line and column.
pub fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, InvalidRequest> {
    // serde would take a list for an object, its fields in the order of their declaration.
    if body.trim_ascii_start().first() == Some(&b'[') {
        let message = "the body is a list; a JSON object is expected".to_owned();
        return Err(InvalidRequest { param: None, code: "invalid_value", message, hint: None });
    }
    let mut json = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|e| refuse(body, &e))?;
    json.end().map_err(|e| malformed(body, &e))?;
    Ok(value)
}

fn refuse(body: &[u8], error: &serde_path_to_error::Error<serde_json::Error>) -> InvalidRequest {
    let inner = error.inner();
    if !inner.is_data() {
        return malformed(body, inner);
    }
    let path = match error.path().to_string() {
        root if root == "." => None,
        path => Some(path),
    };
    let text = in_plain_words(&inner.to_string());
    // serde tells what it found only in words; the tests hold these three forms.
    for (start, code, words) in [
        ("unknown field `", "unknown_parameter", "is not a field of this request"),
        ("missing field `", "missing_required_parameter", "is required"),
        ("duplicate field `", "invalid_value", "is given twice"),
    ] {
        let Some(name) = text.strip_prefix(start).and_then(|rest| rest.split('`').next()) else { continue };
        let param = match &path {
            // The path of an unknown field may or may not end in it already.
            Some(path) if path == name || path.ends_with(&format!(".{name}")) => path.clone(),
            Some(path) => format!("{path}.{name}"),
            None => name.to_owned(),
        };
        let message = format!("`{param}` {words}");
        return InvalidRequest { param: Some(param), code, message, hint: None };
    }
    let message = match &path {
        Some(path) => format!("`{path}`: {text}"),
        None => format!("the body: {text}"),
    };
    InvalidRequest { param: path, code: "invalid_value", message, hint: None }
}

/// serde names the types of this program; callers know those of JSON.
fn in_plain_words(text: &str) -> String {
    let Some((found, rest)) = text.rsplit_once(", expected ") else { return text.to_owned() };
    let (expected, place) = match rest.rfind(" at line ") {
        Some(at) => rest.split_at(at),
        None => (rest, ""),
    };
    let expected = match expected {
        "i8" | "i16" | "i32" | "i64" => "an integer",
        "u8" | "u16" | "u32" | "u64" | "usize" => "an integer of 0 or more",
        "f32" | "f64" => "a number",
        "a map" => "an object",
        "a sequence" => "a list",
        other if other.starts_with("struct ") => "an object",
        other => other,
    };
    format!("{found}, expected {expected}{place}")
}

fn malformed(body: &[u8], error: &serde_json::Error) -> InvalidRequest {
    let message = match body {
        [] => "the body is empty; a JSON object is expected".to_owned(),
        _ => format!("the body is not valid JSON: {error}"),
    };
    InvalidRequest { param: None, code: "invalid_json", message, hint: None }
}

#[cfg(test)]
mod tests;
