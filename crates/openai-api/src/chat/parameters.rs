//! What a chat request asks for, once everything it says has been checked.

use std::collections::HashSet;

use super::message::{Message, Role};
use super::request::{ChatRequest, ResponseFormat};
use super::tool::{FunctionDefinition, NAME_CHARS_MAX, TOOLS_MAX, Tool, ToolCall, ToolChoice};
use crate::InvalidRequest;
use crate::sampling::{CHOICES_MAX, Fields, Sampling, TOKENS_MAX, integer};
use crate::stream_options::Delivery;

/// Messages of one request.
pub const MESSAGES_MAX: usize = 16 * 1024;
pub const TOP_LOGPROBS_MAX: i64 = 20;
const METADATA_PAIRS_MAX: usize = 16;
const METADATA_KEY_CHARS_MAX: usize = 64;
const METADATA_VALUE_CHARS_MAX: usize = 512;
/// Of `user`, `safety_identifier` and `prompt_cache_key`.
const IDENTIFIER_CHARS_MAX: usize = 512;

/// A chat request whose every field is in range.
#[derive(Debug, Clone, PartialEq)]
pub struct ChatParameters {
    pub model: String,
    pub turns: Vec<Turn>,
    pub tools: Vec<FunctionDefinition>,
    pub tool_use: ToolUse,
    pub format: AnswerFormat,
    pub parallel_tool_calls: bool,
    pub effort: Option<Effort>,
    pub template_variables: serde_json::Map<String, serde_json::Value>,
    pub choices: u32,
    pub delivery: Delivery,
    pub sampling: Sampling,
    /// The caller named a tier, so the answer names the one it got.
    pub service_tier_named: bool,
    /// For the log.
    pub user: Option<String>,
}

/// A message in one form: content is text, arguments of calls are objects, fields fit the role.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    pub role: Role,
    /// `None` only of an assistant that made calls.
    pub content: Option<String>,
    pub name: Option<String>,
    pub reasoning: Option<String>,
    pub calls: Vec<Call>,
    pub tool_call_id: Option<String>,
}

/// A call the assistant made earlier.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    pub id: String,
    pub name: String,
    pub arguments: serde_json::Map<String, serde_json::Value>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolUse {
    /// The tools are not shown to the model.
    None,
    Auto,
    /// Some tool has to be called.
    Required,
    Named(String),
}

/// What the content of an answer is held to.
#[derive(Debug, Clone, PartialEq)]
pub enum AnswerFormat {
    Text,
    /// Any JSON object.
    JsonObject,
    JsonSchema(NamedSchema),
}

#[derive(Debug, Clone, PartialEq)]
pub struct NamedSchema {
    pub name: String,
    pub description: Option<String>,
    pub schema: serde_json::Map<String, serde_json::Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effort {
    Low,
    Medium,
    High,
}

impl Effort {
    pub fn as_str(self) -> &'static str {
        match self {
            Effort::Low => "low",
            Effort::Medium => "medium",
            Effort::High => "high",
        }
    }
}

impl ChatRequest {
    /// Checks every field; the first that is wrong is named.
    pub fn checked(self) -> Result<ChatParameters, InvalidRequest> {
        self.refuse_unsupported()?;
        self.check_labels()?;
        if self.model.is_empty() {
            return Err(InvalidRequest::value("model", "`model` is empty"));
        }
        let turns = turns(self.messages)?;
        let tools = tools(self.tools.unwrap_or_default())?;
        let tool_use = tool_use(self.tool_choice, &tools)?;
        let format = self.response_format.map_or(Ok(AnswerFormat::Text), answer_format)?;
        let holds_answer = format != AnswerFormat::Text
            || (tool_use != ToolUse::None && tools.iter().any(|tool| tool.strict == Some(true)));
        if holds_answer {
            // What ends an answer is then the schema's to say.
            beside_a_schema("min_tokens", self.min_tokens.is_some_and(|least| least > 0))?;
            beside_a_schema("ignore_eos", self.ignore_eos == Some(true))?;
        }
        let effort = self.reasoning_effort.as_deref().map(effort).transpose()?;
        let template_variables = self.chat_template_kwargs.unwrap_or_default();
        let logprobs = logprobs(self.logprobs, self.top_logprobs)?;
        let sampling = Fields {
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            min_p: self.min_p,
            seed: self.seed,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            repetition_penalty: self.repetition_penalty,
            logit_bias: self.logit_bias,
            tokens_max: tokens_max(self.max_completion_tokens, self.max_tokens)?,
            min_tokens: self.min_tokens,
            stop: self.stop,
            stop_token_ids: self.stop_token_ids,
            ignore_eos: self.ignore_eos,
            logprobs,
        }
        .checked()?;
        Ok(ChatParameters {
            model: self.model,
            turns,
            tool_use,
            format,
            tools,
            parallel_tool_calls: self.parallel_tool_calls.unwrap_or(true),
            effort,
            template_variables,
            choices: integer("n", self.n.unwrap_or(1), 1..=CHOICES_MAX)?,
            delivery: Delivery::checked(self.stream, self.stream_options)?,
            sampling,
            service_tier_named: self.service_tier.is_some(),
            user: self.user.or(self.safety_identifier),
        })
    }

    fn refuse_unsupported(&self) -> Result<(), InvalidRequest> {
        let refuse = |name: &str, why: &str| {
            Err(InvalidRequest::unsupported(name, format!("`{name}` is not supported: {why}")))
        };
        if self.audio.is_some() {
            return refuse("audio", "models answer in text only");
        }
        if self.function_call.is_some() {
            return refuse("function_call", "use `tool_choice` instead");
        }
        if self.functions.is_some() {
            return refuse("functions", "use `tools` instead");
        }
        if self.prediction.is_some() {
            return refuse("prediction", "answers are not speculated from the request");
        }
        if self.web_search_options.is_some() {
            return refuse("web_search_options", "this server searches nothing");
        }
        if self.store == Some(true) {
            return refuse("store", "answers are not stored; leave it out or send false");
        }
        if let Some(at) = self.modalities.iter().flatten().position(|m| m != "text") {
            return refuse(&format!("modalities[{at}]"), "only `text` is");
        }
        only("verbosity", self.verbosity.as_deref(), &["medium"])?;
        only("service_tier", self.service_tier.as_deref(), &["auto", "default"])?;
        only("prompt_cache_retention", self.prompt_cache_retention.as_deref(), &["in-memory", "in_memory"])
    }

    fn check_labels(&self) -> Result<(), InvalidRequest> {
        for (name, value) in [
            ("user", &self.user),
            ("safety_identifier", &self.safety_identifier),
            ("prompt_cache_key", &self.prompt_cache_key),
        ] {
            if value.as_ref().is_some_and(|v| v.chars().count() > IDENTIFIER_CHARS_MAX) {
                let message = format!("`{name}` is longer than {IDENTIFIER_CHARS_MAX} characters");
                return Err(InvalidRequest::value(name, message));
            }
        }
        let metadata = self.metadata.iter().flatten();
        if metadata.clone().count() > METADATA_PAIRS_MAX {
            let message = format!("`metadata` has more than {METADATA_PAIRS_MAX} pairs");
            return Err(InvalidRequest::value("metadata", message));
        }
        for (key, value) in metadata {
            if key.chars().count() > METADATA_KEY_CHARS_MAX
                || value.chars().count() > METADATA_VALUE_CHARS_MAX
            {
                let message = format!(
                    "keys of `metadata` have {METADATA_KEY_CHARS_MAX} characters at most, values {METADATA_VALUE_CHARS_MAX}"
                );
                return Err(InvalidRequest::value("metadata", message));
            }
        }
        Ok(())
    }
}

fn only(name: &str, value: Option<&str>, allowed: &[&str]) -> Result<(), InvalidRequest> {
    match value {
        Some(value) if !allowed.contains(&value) => {
            let message = format!("`{name}` is `{value}`; only `{}` is supported", allowed.join("` or `"));
            Err(InvalidRequest::unsupported(name, message))
        }
        _ => Ok(()),
    }
}

fn answer_format(format: ResponseFormat) -> Result<AnswerFormat, InvalidRequest> {
    if format.grammar.is_some() {
        let message = "`response_format.grammar` is not supported; a JSON Schema is";
        return Err(InvalidRequest::unsupported("response_format.grammar", message));
    }
    let kind = format.r#type.as_str();
    match (kind, format.json_schema) {
        ("text", None) => Ok(AnswerFormat::Text),
        ("json_object", None) => Ok(AnswerFormat::JsonObject),
        ("json_schema", Some(named)) => {
            check_name("response_format.json_schema.name", &named.name)?;
            let schema =
                named.schema.ok_or_else(|| InvalidRequest::missing("response_format.json_schema.schema"))?;
            let (name, description) = (named.name, named.description);
            Ok(AnswerFormat::JsonSchema(NamedSchema { name, description, schema }))
        }
        ("json_schema", None) => Err(InvalidRequest::missing("response_format.json_schema")),
        ("text" | "json_object", Some(_)) => {
            let message = format!("`response_format` of type `{kind}` has no `json_schema`");
            Err(InvalidRequest::value("response_format", message))
        }
        _ => {
            let message = format!(
                "`response_format.type` is `{kind}`; `text`, `json_object` and `json_schema` are supported"
            );
            Err(InvalidRequest::unsupported("response_format", message))
        }
    }
}

fn beside_a_schema(name: &str, is_set: bool) -> Result<(), InvalidRequest> {
    if !is_set {
        return Ok(());
    }
    let message = format!("`{name}` cannot be used where an answer is held to a schema");
    Err(InvalidRequest::value(name, message))
}

fn effort(word: &str) -> Result<Effort, InvalidRequest> {
    match word {
        "low" => Ok(Effort::Low),
        "medium" => Ok(Effort::Medium),
        "high" => Ok(Effort::High),
        other => {
            let message =
                format!("`reasoning_effort` is `{other}`; `low`, `medium` and `high` are supported");
            Err(InvalidRequest::unsupported("reasoning_effort", message))
        }
    }
}

fn logprobs(wanted: Option<bool>, top: Option<i64>) -> Result<Option<u32>, InvalidRequest> {
    match (wanted.unwrap_or(false), top) {
        (false, Some(_)) => {
            Err(InvalidRequest::value("top_logprobs", "`top_logprobs` needs `logprobs: true`"))
        }
        (false, None) => Ok(None),
        (true, top) => integer("top_logprobs", top.unwrap_or(0), 0..=TOP_LOGPROBS_MAX).map(Some),
    }
}

fn tokens_max(newer: Option<i64>, older: Option<i64>) -> Result<u32, InvalidRequest> {
    let newer = newer.map(|n| integer("max_completion_tokens", n, 1..=TOKENS_MAX)).transpose()?;
    let older = older.map(|n| integer("max_tokens", n, 1..=TOKENS_MAX)).transpose()?;
    match (newer, older) {
        (Some(newer), Some(older)) if newer != older => {
            let message = format!(
                "`max_tokens` is {older} and `max_completion_tokens` is {newer}; give one of the two"
            );
            Err(InvalidRequest::value("max_tokens", message))
        }
        (newer, older) => Ok(newer.or(older).unwrap_or(0)),
    }
}

fn tools(tools: Vec<Tool>) -> Result<Vec<FunctionDefinition>, InvalidRequest> {
    if tools.len() > TOOLS_MAX {
        let message = format!("`tools` has {} entries, {TOOLS_MAX} at most", tools.len());
        return Err(InvalidRequest::value("tools", message));
    }
    let mut names = HashSet::new();
    let mut functions = Vec::with_capacity(tools.len());
    for (at, tool) in tools.into_iter().enumerate() {
        if tool.r#type != "function" {
            let message = format!("`tools[{at}].type` is `{}`; only `function` is supported", tool.r#type);
            return Err(InvalidRequest::unsupported(format!("tools[{at}].type"), message));
        }
        if tool.custom.is_some() {
            let message = format!("`tools[{at}].custom` does not belong to a tool of type `function`");
            return Err(InvalidRequest::value(format!("tools[{at}].custom"), message));
        }
        let function =
            tool.function.ok_or_else(|| InvalidRequest::missing(&format!("tools[{at}].function")))?;
        check_name(&format!("tools[{at}].function.name"), &function.name)?;
        if !names.insert(function.name.clone()) {
            let message = format!("`tools` names the function `{}` twice", function.name);
            return Err(InvalidRequest::value(format!("tools[{at}].function.name"), message));
        }
        functions.push(function);
    }
    Ok(functions)
}

fn check_name(path: &str, name: &str) -> Result<(), InvalidRequest> {
    let fits = name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    if name.is_empty() || name.chars().count() > NAME_CHARS_MAX || !fits {
        let message = format!(
            "`{path}` must have 1 to {NAME_CHARS_MAX} characters out of letters, digits, `_` and `-`"
        );
        return Err(InvalidRequest::value(path, message));
    }
    Ok(())
}

fn tool_use(choice: Option<ToolChoice>, tools: &[FunctionDefinition]) -> Result<ToolUse, InvalidRequest> {
    let needs_tools = |choice: ToolUse| match tools {
        [] => Err(InvalidRequest::value("tool_choice", "`tool_choice` needs `tools` to choose from")),
        _ => Ok(choice),
    };
    match choice {
        None if tools.is_empty() => Ok(ToolUse::None),
        None => Ok(ToolUse::Auto),
        Some(ToolChoice::Mode(mode)) => match mode.as_str() {
            "none" => Ok(ToolUse::None),
            "auto" => needs_tools(ToolUse::Auto),
            "required" => needs_tools(ToolUse::Required),
            other => {
                let message = format!(
                    "`tool_choice` is `{other}`; it must be `none`, `auto`, `required` or name a function"
                );
                Err(InvalidRequest::value("tool_choice", message))
            }
        },
        Some(ToolChoice::Named(named)) => {
            if named.r#type != "function" {
                let message =
                    format!("`tool_choice.type` is `{}`; only `function` is supported", named.r#type);
                return Err(InvalidRequest::unsupported("tool_choice", message));
            }
            let name = named.function.ok_or_else(|| InvalidRequest::missing("tool_choice.function"))?.name;
            if !tools.iter().any(|t| t.name == name) {
                let message = format!("`tool_choice` names `{name}`, which is not among `tools`");
                return Err(InvalidRequest::value("tool_choice", message));
            }
            Ok(ToolUse::Named(name))
        }
    }
}

fn turns(messages: Vec<Message>) -> Result<Vec<Turn>, InvalidRequest> {
    if messages.is_empty() {
        return Err(InvalidRequest::value("messages", "`messages` is empty"));
    }
    if messages.len() > MESSAGES_MAX {
        let message = format!("`messages` has {} entries, {MESSAGES_MAX} at most", messages.len());
        return Err(InvalidRequest::value("messages", message));
    }
    let mut open_calls: HashSet<String> = HashSet::new();
    let mut turns = Vec::with_capacity(messages.len());
    for (at, message) in messages.into_iter().enumerate() {
        let turn = turn(&format!("messages[{at}]"), message)?;
        open_calls.extend(turn.calls.iter().map(|c| c.id.clone()));
        if let Some(id) = &turn.tool_call_id
            && !open_calls.contains(id)
        {
            let path = format!("messages[{at}].tool_call_id");
            let message =
                format!("`{path}` is `{id}`, which no earlier message of the assistant has as a call");
            return Err(InvalidRequest::value(path, message));
        }
        turns.push(turn);
    }
    Ok(turns)
}

/// Checks that `message` has what its role needs and nothing else.
fn turn(path: &str, message: Message) -> Result<Turn, InvalidRequest> {
    let role = message.role;
    let misplaced = |field: &str| {
        let message = format!("`{path}.{field}` does not belong to a message of role `{}`", role.as_str());
        Err(InvalidRequest::value(format!("{path}.{field}"), message))
    };
    if message.audio.is_some() {
        let field = format!("{path}.audio");
        return Err(InvalidRequest::unsupported(&field, format!("`{field}` is not supported")));
    }
    if message.function_call.is_some() {
        let field = format!("{path}.function_call");
        return Err(InvalidRequest::unsupported(
            &field,
            format!("`{field}` is not supported: use `tool_calls`"),
        ));
    }
    if message.annotations.is_some_and(|a| !a.is_empty()) {
        let field = format!("{path}.annotations");
        return Err(InvalidRequest::unsupported(&field, format!("`{field}` is not supported")));
    }
    let reasoning = match (message.reasoning, message.reasoning_content) {
        (Some(newer), Some(older)) if newer != older => {
            let field = format!("{path}.reasoning");
            let message =
                format!("`{field}` and `reasoning_content` are one field under two names and differ");
            return Err(InvalidRequest::value(field, message));
        }
        (newer, older) => newer.or(older),
    };
    if role != Role::Assistant {
        if message.tool_calls.is_some() {
            return misplaced("tool_calls");
        }
        if message.refusal.is_some() {
            return misplaced("refusal");
        }
        if reasoning.is_some() {
            return misplaced("reasoning");
        }
    }
    if role != Role::Tool && message.tool_call_id.is_some() {
        return misplaced("tool_call_id");
    }
    if role == Role::Tool && message.tool_call_id.is_none() {
        return Err(InvalidRequest::missing(&format!("{path}.tool_call_id")));
    }
    let content_path = format!("{path}.content");
    let content = match (message.content, message.refusal) {
        (Some(_), Some(_)) => {
            let field = format!("{path}.refusal");
            return Err(InvalidRequest::value(&field, format!("`{field}` and `content` exclude each other")));
        }
        (Some(content), None) => Some(content.text(&content_path, role)?),
        (None, refusal) => refusal,
    };
    let calls = calls(path, message.tool_calls.unwrap_or_default())?;
    if content.is_none() && calls.is_empty() && (role != Role::Assistant || reasoning.is_none()) {
        return Err(InvalidRequest::missing(&content_path));
    }
    Ok(Turn { role, content, name: message.name, reasoning, calls, tool_call_id: message.tool_call_id })
}

fn calls(path: &str, calls: Vec<ToolCall>) -> Result<Vec<Call>, InvalidRequest> {
    if calls.len() > TOOLS_MAX {
        let field = format!("{path}.tool_calls");
        let message = format!("`{field}` has {} entries, {TOOLS_MAX} at most", calls.len());
        return Err(InvalidRequest::value(field, message));
    }
    let read = |(at, call): (usize, ToolCall)| {
        let path = format!("{path}.tool_calls[{at}]");
        if call.r#type != "function" {
            let message = format!("`{path}.type` is `{}`; only `function` is supported", call.r#type);
            return Err(InvalidRequest::unsupported(format!("{path}.type"), message));
        }
        check_name(&format!("{path}.function.name"), &call.function.name)?;
        let arguments = match call.function.arguments.trim() {
            "" => serde_json::Map::new(),
            text => serde_json::from_str(text).map_err(|e| {
                let field = format!("{path}.function.arguments");
                InvalidRequest::value(&field, format!("`{field}` is not a JSON object: {e}"))
            })?,
        };
        Ok(Call { id: call.id, name: call.function.name, arguments })
    };
    calls.into_iter().enumerate().map(read).collect()
}
