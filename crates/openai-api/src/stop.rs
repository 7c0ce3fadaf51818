//! `stop`: one string or up to four.

use serde::de::{SeqAccess, Visitor, value::SeqAccessDeserializer};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use crate::InvalidRequest;

/// As many as the OpenAI API takes.
pub const STOP_STRINGS_MAX: usize = 4;
/// Bytes. What could become a stop string is held back, so a long one delays a stream.
pub const STOP_BYTES_MAX: usize = 1024;

/// Strings that end the answer; the answer does not contain them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum Stop {
    One(String),
    Many(Vec<String>),
}

impl Stop {
    /// The strings, checked.
    pub fn strings(stop: Option<Stop>) -> Result<Vec<String>, InvalidRequest> {
        let strings = match stop {
            None => Vec::new(),
            Some(Stop::One(one)) => vec![one],
            Some(Stop::Many(many)) => many,
        };
        if strings.len() > STOP_STRINGS_MAX {
            let count = strings.len();
            return Err(InvalidRequest::value(
                "stop",
                format!("`stop` has {count} strings, {STOP_STRINGS_MAX} at most"),
            ));
        }
        for (at, string) in strings.iter().enumerate() {
            if string.is_empty() {
                return Err(InvalidRequest::value(format!("stop[{at}]"), "a stop string must not be empty"));
            }
            if string.len() > STOP_BYTES_MAX {
                let message =
                    format!("a stop string of {} bytes is too long, {STOP_BYTES_MAX} at most", string.len());
                return Err(InvalidRequest::value(format!("stop[{at}]"), message));
            }
        }
        Ok(strings)
    }
}

impl<'de> Deserialize<'de> for Stop {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Form;
        impl<'de> Visitor<'de> for Form {
            type Value = Stop;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string or a list of strings")
            }

            fn visit_str<E>(self, text: &str) -> Result<Stop, E> {
                Ok(Stop::One(text.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Stop, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(seq)).map(Stop::Many)
            }
        }
        deserializer.deserialize_any(Form)
    }
}
