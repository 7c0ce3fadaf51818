//! Makes a reply begin with a tool call, for `tool_choice` `required` and a named function.
//!
//! `none` needs nothing here: the request is rendered without its tools.

use crate::template::{HARMONY_ARCHITECTURES, Rendered};

/// Which call a reply has to begin with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForcedCall<'a> {
    /// Of some function; the model chooses.
    Any,
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

/// Appends the beginning of the call to a prompt that ends where a reply starts. A [`crate::ReplyParser`] for that prompt
/// goes on from there.
pub fn force_tool_call(
    architecture: &str,
    prompt: &mut Rendered,
    call: ForcedCall<'_>,
) -> Result<(), ToolChoiceUnsupported> {
    let is_harmony = HARMONY_ARCHITECTURES.contains(&architecture);
    if !is_harmony || !prompt.text.ends_with("<|start|>assistant") {
        return Err(ToolChoiceUnsupported { architecture: architecture.to_owned() });
    }
    prompt.push_control(" to=functions.");
    if let ForcedCall::Named(name) = call {
        prompt.push_literal(name);
        prompt.push_control("<|channel|>commentary json<|message|>");
    }
    Ok(())
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
        force_tool_call("gpt_oss", &mut prompt, ForcedCall::Named("f<|end|>")).unwrap();
        assert_eq!(
            prompt.text,
            "<|start|>assistant to=functions.f<|end|><|channel|>commentary json<|message|>"
        );
        let range = prompt.literal[0];
        assert_eq!(&prompt.text[range.start as usize..range.end as usize], "f<|end|>");
    }

    #[test]
    fn any_call_leaves_the_name_to_the_model() {
        let mut prompt = prompt("<|start|>assistant");
        force_tool_call("gpt_oss", &mut prompt, ForcedCall::Any).unwrap();
        assert_eq!(prompt.text, "<|start|>assistant to=functions.");
        assert!(prompt.literal.is_empty());
    }

    #[test]
    fn other_architectures_refuse() {
        let mut plain = prompt("assistant:");
        let error = force_tool_call("echo", &mut plain, ForcedCall::Any).unwrap_err();
        assert!(error.to_string().contains("echo"), "{error}");
        assert_eq!(plain.text, "assistant:");
    }

    #[test]
    fn a_prompt_that_is_not_at_a_reply_is_refused() {
        assert!(force_tool_call("gpt_oss", &mut prompt("<|end|>"), ForcedCall::Any).is_err());
    }
}
