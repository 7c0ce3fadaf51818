//! What a schema has to be before anything is sent: within the limits, and made of words that are kept to.

use llguidance::{ParserFactory, api::TopLevelGrammar, toktrie::ApproximateTokEnv};
use serde_json::{Value, json};

use crate::{GrammarError, SCHEMA_BYTES_MAX, SPACE_CHARS_MAX, limits};

/// The library's own word in a schema, which changes how the rest of it is read.
const LIBRARY_OPTIONS: &str = "x-guidance";

/// The schema as it is compiled, as JSON: white space gets its bound. One that was prepared stays as it is.
///
/// # Errors
/// It is too long, no object, or has a word of the library's own.
pub fn prepared(schema: &str) -> Result<Value, GrammarError> {
    if schema.len() > SCHEMA_BYTES_MAX {
        let bytes = schema.len();
        return Err(GrammarError(format!("the schema has {bytes} bytes, more than {SCHEMA_BYTES_MAX}")));
    }
    let mut schema: Value =
        serde_json::from_str(schema).map_err(|e| GrammarError(format!("the schema is no JSON: {e}")))?;
    let Some(object) = schema.as_object_mut() else {
        return Err(GrammarError("the schema is no JSON object".to_owned()));
    };
    let options = options();
    if object.get(LIBRARY_OPTIONS).is_some_and(|given| *given != options) {
        return Err(GrammarError(format!(
            "the schema has the keyword `{LIBRARY_OPTIONS}`, which is not taken"
        )));
    }
    object.insert(LIBRARY_OPTIONS.to_owned(), options);
    Ok(schema)
}

fn options() -> Value {
    json!({"whitespace_pattern": format!(r"[\x20\x0A\x0D\x09]{{1,{SPACE_CHARS_MAX}}}")})
}

/// Compiles a schema as an engine will, without its tokens.
///
/// # Errors
/// What [`prepared`] refuses, a keyword that cannot be kept to (its name is in the message), a schema that nothing fits, or
/// one that is too complex.
pub fn check(schema: &str) -> Result<(), GrammarError> {
    let grammar = TopLevelGrammar::from_json_schema(prepared(schema)?);
    let mut factory = ParserFactory::new(&ApproximateTokEnv::single_byte_env(), Default::default(), &[])
        .map_err(|e| GrammarError::of(&e))?;
    *factory.limits_mut() = limits();
    factory.quiet().create_parser(grammar).map(drop).map_err(|e| GrammarError::of(&e))
}

#[cfg(test)]
mod tests;
