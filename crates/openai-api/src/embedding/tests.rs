//! Which requests are taken, and which field a refusal names.

use super::*;
use crate::completion::parameters::PromptText;

fn checked(json: &str) -> Result<EmbeddingParameters, crate::InvalidRequest> {
    crate::parse::<EmbeddingRequest>(json.as_bytes())?.checked()
}

#[test]
fn every_form_of_input_is_taken() {
    let inputs = |input: &str| checked(&format!(r#"{{"model": "m", "input": {input}}}"#)).unwrap().inputs;
    let text = |text: &str| PromptText::Text(text.to_owned());
    assert_eq!(inputs(r#""a""#), [text("a")]);
    assert_eq!(inputs(r#"["a", "b"]"#), [text("a"), text("b")]);
    assert_eq!(inputs("[1, 2]"), [PromptText::Tokens(vec![1, 2])]);
    assert_eq!(inputs("[[1, 2], [3]]"), [PromptText::Tokens(vec![1, 2]), PromptText::Tokens(vec![3])]);
}

#[test]
fn the_other_fields_are_taken() {
    let body =
        r#"{"model": "m", "input": "a", "dimensions": 8, "encoding_format": "base64", "user": "somebody"}"#;
    let parameters = checked(body).unwrap();
    assert_eq!((parameters.dimensions, parameters.encoding), (Some(8), EncodingFormat::Base64));
    let nulls = r#"{"model": "m", "input": "a", "dimensions": null, "encoding_format": null, "user": null}"#;
    assert_eq!(checked(nulls).unwrap().encoding, EncodingFormat::Float);
}

#[test]
fn what_is_refused_names_its_field() {
    let many = format!(r#"{{"model": "m", "input": [{}"a"]}}"#, r#""a","#.repeat(parameters::INPUTS_MAX));
    for (body, param) in [
        (r#"{"model": "", "input": "a"}"#, "model"),
        (r#"{"model": "m"}"#, "input"),
        (r#"{"model": "m", "input": ""}"#, "input"),
        (r#"{"model": "m", "input": []}"#, "input"),
        (r#"{"model": "m", "input": ["a", ""]}"#, "input"),
        (r#"{"model": "m", "input": [[]]}"#, "input"),
        (r#"{"model": "m", "input": 5}"#, "input"),
        (r#"{"model": "m", "input": ["a", 5]}"#, "input"),
        (r#"{"model": "m", "input": [-1]}"#, "input"),
        (&many, "input"),
        (r#"{"model": "m", "input": "a", "dimensions": 0}"#, "dimensions"),
        (r#"{"model": "m", "input": "a", "encoding_format": "f16"}"#, "encoding_format"),
        (r#"{"model": "m", "input": "a", "stream": true}"#, "stream"),
    ] {
        let error = checked(body).unwrap_err();
        let named = error.param.as_deref().unwrap_or_default();
        assert!(named.starts_with(param), "{named:?} for {}", &body[..body.len().min(80)]);
    }
}
