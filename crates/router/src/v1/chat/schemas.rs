//! What a chat request holds its answer to: schemas on their way to the sandbox that checks them, and to the engine.

use chat::{CallShape, ForcedCall, Rendered, ReplyGrammar, ReplyShape, reply_grammar};
use grammar::GRAMMAR_BYTES_MAX;
use node_api::Constraint;
use openai_api::chat::{AnswerFormat, ChatParameters, ToolUse};
use serde_json::{Value, json};
use template_sandbox::Schema;

use crate::error::Failure;

/// The schemas of one request.
#[derive(Debug, Default)]
pub struct Schemas {
    /// Each with its place in the request.
    checks: Vec<Schema>,
    content: Option<String>,
    /// Functions that may be called, with the schema of their arguments where it is kept to.
    calls: Vec<(String, Option<String>)>,
}

impl Schemas {
    pub fn of(parameters: &ChatParameters) -> Schemas {
        let mut schemas = Schemas::default();
        schemas.content = match &parameters.format {
            AnswerFormat::Text => None,
            AnswerFormat::JsonObject => Some(schemas.take("response_format", &any_object())),
            AnswerFormat::JsonSchema(named) => {
                let schema = Value::Object(named.schema.clone());
                Some(schemas.take("response_format.json_schema.schema", &schema))
            }
        };
        if parameters.tool_use != ToolUse::None {
            for (at, tool) in parameters.tools.iter().enumerate() {
                let held = (tool.strict == Some(true)).then(|| {
                    let schema = tool.parameters.clone().map_or_else(no_arguments, Value::Object);
                    schemas.take(&format!("tools[{at}].function.parameters"), &schema)
                });
                schemas.calls.push((tool.name.clone(), held));
            }
        }
        schemas
    }

    fn take(&mut self, param: &str, schema: &Value) -> String {
        let text = schema.to_string();
        self.checks.push(Schema { param: param.to_owned(), text: text.clone() });
        text
    }

    /// What the sandbox has to look at.
    pub fn checks(&self) -> &[Schema] {
        &self.checks
    }

    /// The field that asks for a constraint.
    pub fn param(&self) -> &'static str {
        if self.content.is_some() { "response_format" } else { "tools" }
    }

    /// What the engine is asked to hold the reply to. `rendered` is the prompt with a forced call in it.
    ///
    /// # Errors
    /// 400: the model's replies cannot be held to it, or it is too long.
    pub fn constraint(
        &self,
        architecture: &str,
        rendered: &Rendered,
        forced: Option<ForcedCall<'_>>,
    ) -> Result<Option<Constraint>, Failure> {
        if self.checks.is_empty() {
            return Ok(None);
        }
        let refused =
            |message: String| Failure::bad_request("unsupported_parameter", message).param(self.param());
        let call =
            |(name, arguments): &'_ (String, Option<String>)| (name.clone(), bounded(arguments.as_ref()));
        let calls: Vec<(String, Option<String>)> = self.calls.iter().map(call).collect();
        let calls = calls.iter().map(|(name, arguments)| CallShape { name, arguments: arguments.clone() });
        let content = bounded(self.content.as_ref());
        let shape = ReplyShape { content, calls: calls.collect(), forced };
        let constraint = reply_grammar(architecture, rendered, &shape).map_err(|e| refused(e.to_string()))?;
        let constraint = constraint.map(|held| match held {
            ReplyGrammar::JsonSchema(schema) => Constraint::JsonSchema(schema),
            ReplyGrammar::Lark(grammar) => Constraint::Lark(grammar),
        });
        match &constraint {
            Some(Constraint::Lark(text) | Constraint::JsonSchema(text)) if text.len() > GRAMMAR_BYTES_MAX => {
                let bytes = text.len();
                let message = format!("the schemas come to {bytes} bytes, more than {GRAMMAR_BYTES_MAX}");
                Err(refused(message))
            }
            _ => Ok(constraint),
        }
    }
}

/// The schema as an engine compiles it.
fn bounded(schema: Option<&String>) -> Option<String> {
    // The sandbox has refused those that cannot be.
    schema
        .map(|schema| grammar::prepared(schema).map_or_else(|_| schema.clone(), |schema| schema.to_string()))
}

pub fn any_object() -> Value {
    json!({"type": "object"})
}

fn no_arguments() -> Value {
    json!({"type": "object", "properties": {}, "additionalProperties": false})
}

/// An engine's refusal of a constraint, which the caller never wrote, as one of what made us write it.
pub fn of_response_format(failure: Failure) -> Failure {
    of_constraint(failure, "response_format")
}

/// As [`of_response_format`].
pub fn of_strict_tools(failure: Failure) -> Failure {
    of_constraint(failure, "tools")
}

fn of_constraint(mut failure: Failure, param: &str) -> Failure {
    if failure.param.as_deref() == Some("constraint") {
        failure.code = "unsupported_parameter".into();
        failure = failure.param(param);
    }
    failure
}
