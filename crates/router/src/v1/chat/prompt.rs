//! From the messages of a request to the text a model gets.

use chat::{
    ForcedCall, RenderRequest, Rendered, TemplateSource, force_tool_call, response_format_instructions,
};
use node_api::{LiteralRange, Prompt};
use openai_api::chat::{AnswerFormat, ChatParameters, ToolUse, Turn};
use serde_json::{Value, json};

use super::schemas::{Schemas, any_object};
use crate::app::App;
use crate::cluster::Registered;
use crate::error::Failure;
use crate::v1::sequence::Held;

pub struct ChatPrompt {
    pub rendered: Rendered,
    pub held: Held,
}

impl ChatPrompt {
    pub fn for_node(&self) -> Prompt {
        let literal = self.rendered.literal.iter().map(|r| LiteralRange { start: r.start, end: r.end });
        Prompt::Text { text: self.rendered.text.clone(), literal: literal.collect() }
    }
}

pub async fn render(
    app: &App,
    model: &Registered,
    parameters: &ChatParameters,
    schemas: &Schemas,
) -> Result<ChatPrompt, Failure> {
    let templates = model.templates.as_ref().map_err(|reason| {
        Failure::bad_request(
            "chat_template_unusable",
            format!("the chat template of `{}`: {reason}", model.manifest.id),
        )
        .hint("/v1/completions takes a prompt that needs no template")
    })?;
    let tools: Vec<Value> = match parameters.tool_use {
        ToolUse::None => Vec::new(),
        _ => parameters.tools.iter().map(|f| json!({"type": "function", "function": f})).collect(),
    };
    let source = templates.for_request(!tools.is_empty());
    let request = RenderRequest {
        messages: parameters
            .turns
            .iter()
            .map(message)
            .chain(format_instructions(model, parameters))
            .collect(),
        kwargs: variables(source, parameters, !tools.is_empty())?,
        tools,
        documents: None,
        add_generation_prompt: true,
        now: app.templates.now(),
    };
    let mut rendered = app.templates.render(source, &request, schemas.checks()).await?;
    if rendered.text.is_empty() {
        return Err(Failure::bad_request(
            "prompt_empty",
            "the model's chat template makes an empty prompt of these messages",
        )
        .param("messages"));
    }
    let names: Vec<&str> = parameters.tools.iter().map(|tool| tool.name.as_str()).collect();
    let forced = match &parameters.tool_use {
        ToolUse::None | ToolUse::Auto => None,
        // Of one tool the name is known, so the model has nothing to get wrong and the engine nothing to watch over.
        ToolUse::Required => match names.as_slice() {
            [only] => Some(ForcedCall::Named(only)),
            several => Some(ForcedCall::AnyOf(several)),
        },
        ToolUse::Named(name) => Some(ForcedCall::Named(name)),
    };
    let architecture = &model.manifest.architecture;
    let begin_with = match forced {
        None => Vec::new(),
        Some(forced) => force_tool_call(architecture, &mut rendered, forced)
            .map_err(|e| Failure::bad_request("unsupported_parameter", e.to_string()).param("tool_choice"))?,
    };
    let constraint = schemas.constraint(architecture, &rendered, forced)?;
    // A constraint has in it what the reply begins with.
    let begin_with = if constraint.is_some() { Vec::new() } else { begin_with };
    Ok(ChatPrompt { rendered, held: Held { begin_with, constraint } })
}

/// What a model that knows of response formats is told of this one, behind the caller's own instructions.
fn format_instructions(model: &Registered, parameters: &ChatParameters) -> Option<Value> {
    let architecture = &model.manifest.architecture;
    let content = match &parameters.format {
        AnswerFormat::Text => None,
        AnswerFormat::JsonObject => {
            response_format_instructions(architecture, "json_object", None, &any_object())
        }
        AnswerFormat::JsonSchema(named) => {
            let (description, schema) = (named.description.as_deref(), Value::Object(named.schema.clone()));
            response_format_instructions(architecture, &named.name, description, &schema)
        }
    };
    content.map(|content| json!({"role": "developer", "content": content}))
}

/// The template's variables. One that the template never names could only be ignored, so it is refused.
fn variables(
    source: &TemplateSource,
    parameters: &ChatParameters,
    has_tools: bool,
) -> Result<serde_json::Map<String, Value>, Failure> {
    let refuse = |field: &str, what: &str| {
        let message = format!("`{field}` is not supported by this model: its chat template knows no {what}");
        Failure::bad_request("unsupported_parameter", message).param(field)
    };
    if has_tools && !source.text.contains("tools") {
        return Err(refuse("tools", "tools"));
    }
    let mut variables = parameters.template_variables.clone();
    if let Some(name) = variables.keys().find(|name| !source.text.contains(name.as_str())) {
        return Err(refuse(&format!("chat_template_kwargs.{name}"), &format!("variable `{name}`")));
    }
    let Some(effort) = parameters.effort else { return Ok(variables) };
    if !source.text.contains("reasoning_effort") {
        return Err(refuse("reasoning_effort", "reasoning effort"));
    }
    if variables.insert("reasoning_effort".to_owned(), Value::from(effort.as_str())).is_some() {
        let message = "`reasoning_effort` is given twice: as a field and in `chat_template_kwargs`";
        return Err(Failure::bad_request("invalid_value", message).param("reasoning_effort"));
    }
    Ok(variables)
}

fn message(turn: &Turn) -> Value {
    let mut message = json!({"role": turn.role.as_str(), "content": turn.content});
    if let Some(name) = &turn.name {
        message["name"] = Value::from(name.as_str());
    }
    if let Some(reasoning) = &turn.reasoning {
        message["reasoning_content"] = Value::from(reasoning.as_str());
    }
    if !turn.calls.is_empty() {
        let calls = turn.calls.iter().map(|call| {
            json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}})
        });
        message["tool_calls"] = calls.collect();
    }
    if let Some(id) = &turn.tool_call_id {
        message["tool_call_id"] = Value::from(id.as_str());
    }
    message
}
