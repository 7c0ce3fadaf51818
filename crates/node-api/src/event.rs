//! Reads an event of a generation without a second copy of it.
//!
//! What serde derives for a tagged enum collects all fields of a line before it looks at the tag, and again for a flattened
//! struct: a dozen allocations for every token of every answer. Our own writer puts the tag first, so what follows it goes
//! straight to its place; a line whose tag comes later is read all the same, the slower way.

use std::fmt;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use crate::{ApiError, Embedding, FinishReason, GenerateEvent, Token};

const TAG: &str = "event";

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Tag {
    Loading,
    Alive,
    Started,
    Token,
    Embedding,
    Finished,
    Failed,
}

#[derive(Deserialize)]
struct Loading {
    progress: f32,
}

#[derive(Deserialize)]
struct Started {
    prompt_tokens: u32,
    cached_tokens: u32,
    engine: String,
    engine_version: String,
    end_tokens: Vec<u32>,
}

#[derive(Deserialize)]
struct Finished {
    reason: FinishReason,
    completion_tokens: u32,
}

impl Tag {
    /// The event, out of the fields that belong to this tag.
    fn read<'de, D: Deserializer<'de>>(self, fields: D) -> Result<GenerateEvent, D::Error> {
        Ok(match self {
            Tag::Loading => {
                let Loading { progress } = Loading::deserialize(fields)?;
                GenerateEvent::Loading { progress }
            }
            Tag::Alive => {
                IgnoredAny::deserialize(fields)?;
                GenerateEvent::Alive
            }
            Tag::Started => {
                let s = Started::deserialize(fields)?;
                GenerateEvent::Started {
                    prompt_tokens: s.prompt_tokens,
                    cached_tokens: s.cached_tokens,
                    engine: s.engine,
                    engine_version: s.engine_version,
                    end_tokens: s.end_tokens,
                }
            }
            Tag::Token => GenerateEvent::Token(Token::deserialize(fields)?),
            Tag::Embedding => GenerateEvent::Embedding(Embedding::deserialize(fields)?),
            Tag::Finished => {
                let Finished { reason, completion_tokens } = Finished::deserialize(fields)?;
                GenerateEvent::Finished { reason, completion_tokens }
            }
            Tag::Failed => GenerateEvent::Failed(ApiError::deserialize(fields)?),
        })
    }
}

impl<'de> Deserialize<'de> for GenerateEvent {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<GenerateEvent, D::Error> {
        struct Line;
        impl<'de> Visitor<'de> for Line {
            type Value = GenerateEvent;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an event with its tag")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<GenerateEvent, A::Error> {
                let Some(first) = fields.next_key::<String>()? else { return Err(Error::missing_field(TAG)) };
                if first == TAG {
                    let tag: Tag = fields.next_value()?;
                    return tag.read(MapAccessDeserializer::new(fields));
                }
                let mut all: Map<String, Value> = Map::new();
                all.insert(first, fields.next_value()?);
                while let Some((key, value)) = fields.next_entry()? {
                    all.insert(key, value);
                }
                let tag = all.remove(TAG).ok_or_else(|| Error::missing_field(TAG))?;
                Tag::deserialize(tag).and_then(|tag| tag.read(Value::Object(all))).map_err(Error::custom)
            }
        }
        deserializer.deserialize_map(Line)
    }
}

#[cfg(test)]
mod tests;
