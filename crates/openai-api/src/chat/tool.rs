//! Tools a model may call, and its calls.

use serde::de::{MapAccess, Visitor, value::MapAccessDeserializer};
use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

/// As many as the OpenAI API takes.
pub const TOOLS_MAX: usize = 128;
pub const NAME_CHARS_MAX: usize = 64;

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Tool {
    /// `function`; others are refused.
    pub r#type: String,
    #[serde(default)]
    pub function: Option<FunctionDefinition>,
    /// Refused: tools without a schema need a grammar.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub custom: Option<serde_json::Value>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct FunctionDefinition {
    /// Letters, digits, `_` and `-`, 64 at most.
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// JSON Schema of the arguments; absent: there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub parameters: Option<serde_json::Map<String, serde_json::Value>>,
    /// The arguments of a call are held to `parameters`, where the model's format has calls that can be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub strict: Option<bool>,
}

/// A call in a message of the assistant, of a request or of an answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolCall {
    pub id: String,
    /// Always `function`.
    pub r#type: String,
    pub function: ToolCallFunction,
    /// Position among the calls; clients that collect a stream send it back.
    #[serde(default, skip_serializing)]
    pub index: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ToolCallFunction {
    pub name: String,
    /// A JSON object, as text.
    pub arguments: String,
}

/// Which tool is called.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(untagged)]
pub enum ToolChoice {
    /// `auto`, `none` or `required`.
    Mode(String),
    Named(NamedTool),
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NamedTool {
    /// `function`; others are refused.
    pub r#type: String,
    #[serde(default)]
    pub function: Option<NamedFunction>,
    /// Refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub allowed_tools: Option<serde_json::Value>,
    /// Refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    pub custom: Option<serde_json::Value>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NamedFunction {
    pub name: String,
}

impl<'de> Deserialize<'de> for ToolChoice {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Form;
        impl<'de> Visitor<'de> for Form {
            type Value = ToolChoice;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("`auto`, `none`, `required` or an object that names a function")
            }

            fn visit_str<E>(self, text: &str) -> Result<ToolChoice, E> {
                Ok(ToolChoice::Mode(text.to_owned()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<ToolChoice, A::Error> {
                NamedTool::deserialize(MapAccessDeserializer::new(map)).map(ToolChoice::Named)
            }
        }
        deserializer.deserialize_any(Form)
    }
}
