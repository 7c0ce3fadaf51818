//! Says which field of the request an engine's refusal is about, in the words of the API.

use crate::error::Failure;

/// How the engine ABI names a field, and how callers do. An engine's message begins with its name of the field.
const FIELDS: [(&str, &str); 13] = [
    ("frequency_penalty", "frequency_penalty"),
    ("logit_bias", "logit_bias"),
    ("logprobs", "logprobs"),
    ("min_p", "min_p"),
    ("presence_penalty", "presence_penalty"),
    ("repetition_penalty", "repetition_penalty"),
    ("stop", "stop"),
    ("stop_tokens", "stop_token_ids"),
    ("task", "model"),
    ("temperature", "temperature"),
    ("tokens_min", "min_tokens"),
    ("top_k", "top_k"),
    ("top_p", "top_p"),
];

/// `prompt` is the field that the prompt was made of.
pub fn by_field(mut failure: Failure, prompt: &str) -> Failure {
    let named = failure.param.clone();
    let first = failure.message.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).next();
    let field = match (failure.code.as_str(), named.as_deref()) {
        // The engine said so itself.
        (_, Some("prompt")) => return failure.param(prompt),
        (_, Some(field)) => field,
        ("context_length_exceeded" | "empty_prompt" | "invalid_prompt", None) => {
            return failure.param(prompt);
        }
        ("invalid_sampling", None) => first.unwrap_or_default(),
        _ => return failure,
    };
    let Some(&(engines, ours)) = FIELDS.iter().find(|(engines, _)| field == *engines) else { return failure };
    if first == Some(engines) {
        failure.message = format!("`{ours}`{}", &failure.message[engines.len()..]);
    }
    failure.param(ours)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(code: &str, message: &str, param: Option<&str>, said: &str) {
        let failure = by_field(Failure::bad_request(code, message), "messages");
        assert_eq!((failure.param.as_deref(), failure.message.as_str()), (param, said));
    }

    #[test]
    fn an_engines_field_has_the_name_it_has_in_the_request() {
        check(
            "invalid_sampling",
            "stop_tokens names token 9; the model has the tokens below 5",
            Some("stop_token_ids"),
            "`stop_token_ids` names token 9; the model has the tokens below 5",
        );
        check("invalid_sampling", "top_p is 2", Some("top_p"), "`top_p` is 2");
    }

    #[test]
    fn what_is_about_the_prompt_names_the_field_it_was_made_of() {
        check(
            "context_length_exceeded",
            "the prompt has 9 tokens",
            Some("messages"),
            "the prompt has 9 tokens",
        );
    }

    #[test]
    fn words_that_name_no_field_stay_as_they_are() {
        check("invalid_sampling", "no such luck", None, "no such luck");
        check("invalid_sampling", "top_pick is 2", None, "top_pick is 2");
        check("kv_full", "top_p", None, "top_p");
    }

    #[test]
    fn a_field_that_the_engine_names_by_itself_has_our_name() {
        let failure = Failure::bad_request("unsupported", "9 is too many").param("stop_tokens");
        let ours = by_field(failure, "messages");
        assert_eq!((ours.param.as_deref(), ours.message.as_str()), (Some("stop_token_ids"), "9 is too many"));
        let failure = Failure::bad_request("too_long", "the prompt is too long").param("prompt");
        assert_eq!(by_field(failure, "messages").param.as_deref(), Some("messages"));
    }

    #[test]
    fn a_field_that_is_named_already_stays() {
        let failure = Failure::bad_request("invalid_sampling", "top_p is 2").param("tool_choice");
        assert_eq!(by_field(failure, "messages").param.as_deref(), Some("tool_choice"));
    }
}
