//! Makes a reply begin with a tool call, for `tool_choice` `required` and a named function.
//!
//! `none` needs nothing here: the request is rendered without its tools. Of several functions the model has the choice, and
//! no more than that: the reply is held to the beginnings that are answered here, name and header, so that even a model
//! that would not call at all calls one of them.

use crate::template::{HARMONY_ARCHITECTURES, Rendered};

/// Which call a reply has to begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForcedCall<'a> {
    /// Of one of these, whose names spell no control token; the model chooses.
    AnyOf(&'a [&'a str]),
    /// Of this one.
    Named(&'a str),
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "tool_choice: the replies of architecture {architecture} cannot be made to begin with a call; use \"auto\""
)]
pub struct ToolChoiceUnsupported {
    pub architecture: String,
}

/// What stands between the name of a function and its arguments.
const ARGUMENTS_FOLLOW: &str = "<|channel|>commentary json<|message|>";

/// Appends the beginning of the call to a prompt that ends where a reply starts. A [`crate::ReplyParser`] for that prompt
/// goes on from there. Answers the texts of which the reply has to begin with one, control tokens spelled out; none: the
/// prompt says everything.
pub fn force_tool_call(
    architecture: &str,
    prompt: &mut Rendered,
    call: ForcedCall<'_>,
) -> Result<Vec<String>, ToolChoiceUnsupported> {
    let is_harmony = HARMONY_ARCHITECTURES.contains(&architecture);
    if !is_harmony || !prompt.text.ends_with("<|start|>assistant") {
        return Err(ToolChoiceUnsupported { architecture: architecture.to_owned() });
    }
    prompt.push_control(" to=functions.");
    match call {
        ForcedCall::AnyOf(names) => {
            Ok(names.iter().map(|name| format!("{name}{ARGUMENTS_FOLLOW}")).collect())
        }
        ForcedCall::Named(name) => {
            prompt.push_literal(name);
            prompt.push_control(ARGUMENTS_FOLLOW);
            Ok(Vec::new())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompt(text: &str) -> Rendered {
        Rendered { text: text.to_owned(), literal: Vec::new() }
    }

    #[test]
    fn a_named_call_is_opened_with_the_name_as_literal_text() {
        let mut prompt = prompt("<|start|>assistant");
        let begin_with = force_tool_call("gpt_oss", &mut prompt, ForcedCall::Named("f<|end|>")).unwrap();
        assert!(begin_with.is_empty(), "{begin_with:?}");
        assert_eq!(
            prompt.text,
            "<|start|>assistant to=functions.f<|end|><|channel|>commentary json<|message|>"
        );
        let range = prompt.literal[0];
        assert_eq!(&prompt.text[range.start as usize..range.end as usize], "f<|end|>");
    }

    #[test]
    fn of_several_calls_the_model_has_the_choice() {
        let mut prompt = prompt("<|start|>assistant");
        let begin_with =
            force_tool_call("gpt_oss", &mut prompt, ForcedCall::AnyOf(&["get", "get_all"])).unwrap();
        assert_eq!(
            begin_with,
            ["get<|channel|>commentary json<|message|>", "get_all<|channel|>commentary json<|message|>"]
        );
        assert_eq!(prompt.text, "<|start|>assistant to=functions.");
        assert!(prompt.literal.is_empty());
    }

    #[test]
    fn other_architectures_refuse() {
        let mut plain = prompt("assistant:");
        let error = force_tool_call("echo", &mut plain, ForcedCall::AnyOf(&["f"])).unwrap_err();
        assert!(error.to_string().contains("echo"), "{error}");
        assert_eq!(plain.text, "assistant:");
    }

    #[test]
    fn a_prompt_that_is_not_at_a_reply_is_refused() {
        assert!(force_tool_call("gpt_oss", &mut prompt("<|end|>"), ForcedCall::AnyOf(&["f"])).is_err());
    }
}
