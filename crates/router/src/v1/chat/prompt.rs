//! From the messages of a request to the text a model gets.

use chat::{ForcedCall, RenderRequest, Rendered, TemplateSource, force_tool_call};
use node_api::{LiteralRange, Prompt};
use openai_api::chat::{ChatParameters, ToolUse, Turn};
use serde_json::{Value, json};

use crate::app::App;
use crate::cluster::Registered;
use crate::error::Failure;

pub struct ChatPrompt {
    pub rendered: Rendered,
    /// Texts of which the reply has to begin with one; none: with anything.
    pub begin_with: Vec<String>,
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
        messages: parameters.turns.iter().map(message).collect(),
        kwargs: variables(source, parameters, !tools.is_empty())?,
        tools,
        documents: None,
        add_generation_prompt: true,
        now: app.templates.now(),
    };
    let mut rendered = app.templates.render(source, &request).await?;
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
    let begin_with = match forced {
        None => Vec::new(),
        Some(forced) => force_tool_call(&model.manifest.architecture, &mut rendered, forced)
            .map_err(|e| Failure::bad_request("unsupported_parameter", e.to_string()).param("tool_choice"))?,
    };
    Ok(ChatPrompt { rendered, begin_with })
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
