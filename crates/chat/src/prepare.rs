//! Brings the messages of the API into the form chat templates expect.
//!
//! For every model: parts of a content are joined, absent content is empty, reasoning has all the names templates look
//! for, the arguments of a call are an object, a tool's result knows the tool's name. None of it changes
//! what a template sees of a request that has that form already.
//!
//! For harmony, whose templates know one instruction message and one call per message: all system and developer
//! messages become the first message, and calls made in parallel become calls one after the other.

use serde_json::{Map, Value as Json, json};

use crate::template::mark::ROLES;
use crate::template::{HARMONY_ARCHITECTURES, RenderError, RenderRequest};

/// Between the text parts of one content.
const PART_SEPARATOR: &str = "\n";
/// Between several system and developer messages that become one.
const INSTRUCTIONS_SEPARATOR: &str = "\n\n";
/// The names under which reasoning of a message is given and looked for; the first that is there counts.
const REASONING_KEYS: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];
/// What a request cannot set as an extra variable.
const RESERVED: [&str; 6] =
    ["messages", "tools", "documents", "add_generation_prompt", "strftime_now", "raise_exception"];

/// What the template sees.
pub(crate) struct Prepared {
    pub messages: Vec<Json>,
    pub tools: Option<Vec<Json>>,
    pub documents: Option<Vec<Json>>,
    pub add_generation_prompt: bool,
    pub kwargs: Map<String, Json>,
}

pub(crate) fn prepare(request: &RenderRequest, architecture: &str) -> Result<Prepared, RenderError> {
    let mut messages = Vec::with_capacity(request.messages.len());
    for (index, message) in request.messages.iter().enumerate() {
        messages.push(prepare_message(message, index)?);
    }
    name_tool_results(&mut messages);
    if HARMONY_ARCHITECTURES.contains(&architecture) {
        messages = one_instruction_message(messages);
        messages = calls_in_sequence(messages);
    }
    if let Some(name) = request.kwargs.keys().find(|name| RESERVED.contains(&name.as_str())) {
        return Err(refuse(
            &format!("chat_template_kwargs.{name}"),
            "is set by the server; leave it out".to_owned(),
        ));
    }
    Ok(Prepared {
        messages: messages.into_iter().map(Json::Object).collect(),
        tools: (!request.tools.is_empty()).then(|| request.tools.clone()),
        documents: request.documents.clone(),
        add_generation_prompt: request.add_generation_prompt,
        kwargs: request.kwargs.clone(),
    })
}

/// The same with an empty description for every tool that has none; `None` if all have one.
pub(crate) fn with_descriptions(prepared: &Prepared) -> Option<Prepared> {
    let mut tools = prepared.tools.clone()?;
    let mut any = false;
    for function in tools.iter_mut().filter_map(|tool| tool.get_mut("function")?.as_object_mut()) {
        if !function.get("description").is_some_and(Json::is_string) {
            function.insert("description".to_owned(), json!(""));
            any = true;
        }
    }
    any.then(|| Prepared {
        messages: prepared.messages.clone(),
        tools: Some(tools),
        documents: prepared.documents.clone(),
        add_generation_prompt: prepared.add_generation_prompt,
        kwargs: prepared.kwargs.clone(),
    })
}

/// How a request for a JSON reply is put to a harmony model: a section of the instructions. Other models are told of it by
/// whoever asks, or not at all.
pub fn response_format_instructions(
    architecture: &str,
    name: &str,
    description: Option<&str>,
    schema: &Json,
) -> Option<String> {
    let description = description.map_or_else(String::new, |d| format!("// {d}\n"));
    HARMONY_ARCHITECTURES
        .contains(&architecture)
        .then(|| format!("# Response Formats\n\n## {name}\n\n{description}{schema}"))
}

fn prepare_message(message: &Json, index: usize) -> Result<Map<String, Json>, RenderError> {
    let at = |field: &str| format!("messages[{index}]{field}");
    let Json::Object(message) = message else {
        return Err(refuse(&at(""), "must be an object".to_owned()));
    };
    let role = message.get("role").and_then(Json::as_str).unwrap_or_default();
    if !ROLES.contains(&role) {
        return Err(refuse(&at(".role"), format!("must be one of {}", ROLES.join(", "))));
    }
    let mut message = message.clone();
    let content = match message.get("content") {
        None | Some(Json::Null) => {
            message.get("refusal").and_then(Json::as_str).unwrap_or_default().to_owned()
        }
        Some(Json::String(text)) => text.clone(),
        Some(Json::Array(parts)) => join_parts(parts, index)?,
        Some(_) => return Err(refuse(&at(".content"), "must be a text or a list of parts".to_owned())),
    };
    message.insert("content".to_owned(), Json::String(content));

    let reasoning =
        REASONING_KEYS.into_iter().find_map(|key| message.get(key).filter(|v| !v.is_null()).cloned());
    if let Some(reasoning) = reasoning {
        if !message.contains_key("thinking") {
            // `transformers` puts it first, which shows where a template prints a whole message.
            message.shift_insert(0, "thinking".to_owned(), reasoning.clone());
        }
        message.insert("reasoning_content".to_owned(), reasoning);
    }
    if message.get("tool_calls").is_some_and(|calls| calls.is_null() || *calls == json!([])) {
        message.shift_remove("tool_calls");
    }
    for call in message.get_mut("tool_calls").and_then(Json::as_array_mut).into_iter().flatten() {
        if let Some(arguments) = call.get_mut("function").and_then(|f| f.get_mut("arguments"))
            && let Some(text) = arguments.as_str()
            && let Ok(parsed @ Json::Object(_)) = serde_json::from_str::<Json>(text)
        {
            *arguments = parsed;
        }
    }
    Ok(message)
}

fn join_parts(parts: &[Json], index: usize) -> Result<String, RenderError> {
    let mut texts = Vec::with_capacity(parts.len());
    for (number, part) in parts.iter().enumerate() {
        let kind = part.get("type").and_then(Json::as_str).unwrap_or_default();
        let text = match kind {
            "text" | "input_text" | "output_text" => part.get("text"),
            "refusal" => part.get("refusal"),
            _ => None,
        };
        let text = text.and_then(Json::as_str).ok_or_else(|| {
            refuse(
                &format!("messages[{index}].content[{number}]"),
                format!("parts of type {kind:?} cannot be given to this model; only text can"),
            )
        })?;
        texts.push(text);
    }
    Ok(texts.join(PART_SEPARATOR))
}

/// A result's `name` is that of the call it answers.
fn name_tool_results(messages: &mut [Map<String, Json>]) {
    let mut names: Map<String, Json> = Map::new();
    for message in messages {
        for call in message.get("tool_calls").and_then(Json::as_array).into_iter().flatten() {
            if let (Some(id), Some(name)) =
                (call.get("id").and_then(Json::as_str), call.get("function").and_then(|f| f.get("name")))
            {
                names.insert(id.to_owned(), name.clone());
            }
        }
        if message.get("role").and_then(Json::as_str) == Some("tool")
            && !message.contains_key("name")
            && let Some(name) =
                message.get("tool_call_id").and_then(Json::as_str).and_then(|id| names.get(id))
        {
            message.insert("name".to_owned(), name.clone());
        }
    }
}

fn is_instruction(message: &Map<String, Json>) -> bool {
    matches!(message.get("role").and_then(Json::as_str), Some("system" | "developer"))
}

/// Harmony templates read only the first message as instructions and drop later ones without a word.
fn one_instruction_message(messages: Vec<Map<String, Json>>) -> Vec<Map<String, Json>> {
    let count = messages.iter().filter(|m| is_instruction(m)).count();
    if count == 0 || (count == 1 && is_instruction(&messages[0])) {
        return messages;
    }
    let (instructions, mut rest): (Vec<_>, Vec<_>) = messages.into_iter().partition(is_instruction);
    let text: Vec<&str> = instructions
        .iter()
        .filter_map(|m| m.get("content")?.as_str())
        .filter(|text| !text.is_empty())
        .collect();
    let text = text.join(INSTRUCTIONS_SEPARATOR);
    let mut first = instructions.into_iter().next().unwrap_or_default();
    first.insert("content".to_owned(), Json::String(text));
    rest.insert(0, first);
    rest
}

/// Harmony has one call per message and its result right behind it. What was said beside a call is part of the reasoning
/// there: templates refuse a message with both.
fn calls_in_sequence(messages: Vec<Map<String, Json>>) -> Vec<Map<String, Json>> {
    let mut out = Vec::with_capacity(messages.len());
    let mut rest = messages.into_iter().peekable();
    while let Some(mut message) = rest.next() {
        let Some(Json::Array(calls)) = message.get("tool_calls").cloned() else {
            out.push(message);
            continue;
        };
        reasoning_takes_content(&mut message);
        if calls.len() < 2 {
            out.push(message);
            continue;
        }
        let mut results = Vec::new();
        while let Some(result) = rest.next_if(|m| m.get("role").and_then(Json::as_str) == Some("tool")) {
            results.push(result);
        }
        for (index, call) in calls.into_iter().enumerate() {
            let answers = |result: &Map<String, Json>| {
                result.get("tool_call_id").is_some() && result.get("tool_call_id") == call.get("id")
            };
            let result = results.iter().position(answers).map(|at| results.remove(at));
            let mut single = message.clone();
            if index > 0 {
                single.insert("content".to_owned(), json!(""));
                for key in REASONING_KEYS {
                    single.shift_remove(key);
                }
            }
            single.insert("tool_calls".to_owned(), Json::Array(vec![call]));
            out.push(single);
            out.extend(result);
        }
        out.append(&mut results);
    }
    out
}

fn reasoning_takes_content(message: &mut Map<String, Json>) {
    let text = |key: &str| message.get(key).and_then(Json::as_str).unwrap_or_default().to_owned();
    let (content, thinking) = (text("content"), text("thinking"));
    if !content.is_empty() && !thinking.is_empty() {
        let both = Json::String(format!("{thinking}\n{content}"));
        for key in ["thinking", "reasoning_content"] {
            message.insert(key.to_owned(), both.clone());
        }
        message.insert("content".to_owned(), json!(""));
    }
}

fn refuse(param: &str, message: String) -> RenderError {
    RenderError::Request { param: param.to_owned(), message }
}

#[cfg(test)]
mod tests;
