//! The messages of a conversation as a client sends them.

use serde::de::{SeqAccess, Visitor, value::SeqAccessDeserializer};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use super::tool::ToolCall;
use crate::InvalidRequest;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    System,
    /// Instructions of the application; what newer clients send instead of `system`.
    Developer,
    User,
    Assistant,
    Tool,
}

impl Role {
    pub fn as_str(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::Developer => "developer",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        }
    }
}

/// A message of any role; which fields a role may have is checked by [`super::ChatRequest::checked`]. The fields an
/// answer has are taken back in a message of the assistant.
#[derive(Debug, Clone, PartialEq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Message {
    pub role: Role,
    #[serde(default)]
    pub content: Option<Content>,
    /// Handed to the model's template.
    #[serde(default)]
    pub name: Option<String>,
    /// Of an assistant: the calls it made.
    #[serde(default)]
    pub tool_calls: Option<Vec<ToolCall>>,
    /// Of a tool: the call this answers.
    #[serde(default)]
    pub tool_call_id: Option<String>,
    /// Of an assistant: what it thought. `reasoning` is the same field under its newer name.
    #[serde(default)]
    pub reasoning_content: Option<String>,
    #[serde(default)]
    pub reasoning: Option<String>,
    /// Of an assistant: taken as its content.
    #[serde(default)]
    pub refusal: Option<String>,
    /// Refused unless null or empty.
    #[serde(default)]
    #[schema(value_type = Option<Vec<Object>>)]
    pub annotations: Option<Vec<serde_json::Value>>,
    /// Refused unless null.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub audio: Option<serde_json::Value>,
    /// Refused unless null: replaced by `tool_calls`.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub function_call: Option<serde_json::Value>,
}

/// Text, as one string or in parts.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum Content {
    Text(String),
    Parts(Vec<Part>),
}

/// A part of a content. Only `text` and, of an assistant, `refusal` are taken.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// `text` or `refusal`.
    pub r#type: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
    /// Named here so that their refusal names the part's type and not an unknown field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub image_url: Option<serde_json::Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub input_audio: Option<serde_json::Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub file: Option<serde_json::Value>,
}

impl Content {
    /// The text of all parts, one after the other. `path` is the content's own, for errors.
    pub fn text(self, path: &str, role: Role) -> Result<String, InvalidRequest> {
        let parts = match self {
            Content::Text(text) => return Ok(text),
            Content::Parts(parts) => parts,
        };
        if parts.is_empty() {
            return Err(InvalidRequest::value(path, format!("`{path}` has no parts")));
        }
        let mut whole = String::new();
        for (at, part) in parts.into_iter().enumerate() {
            let text = match part.r#type.as_str() {
                "text" => part.text.ok_or_else(|| InvalidRequest::missing(&format!("{path}[{at}].text")))?,
                "refusal" if role == Role::Assistant => {
                    part.refusal.ok_or_else(|| InvalidRequest::missing(&format!("{path}[{at}].refusal")))?
                }
                other => {
                    let message =
                        format!("`{path}[{at}].type` is `{other}`; only parts of type `text` are supported");
                    return Err(InvalidRequest::unsupported(format!("{path}[{at}].type"), message));
                }
            };
            whole.push_str(&text);
        }
        Ok(whole)
    }
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Form;
        impl<'de> Visitor<'de> for Form {
            type Value = Content;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string or a list of parts")
            }

            fn visit_str<E>(self, text: &str) -> Result<Content, E> {
                Ok(Content::Text(text.to_owned()))
            }

            fn visit_string<E>(self, text: String) -> Result<Content, E> {
                Ok(Content::Text(text))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<Content, A::Error> {
                Vec::deserialize(SeqAccessDeserializer::new(seq)).map(Content::Parts)
            }
        }
        deserializer.deserialize_any(Form)
    }
}
