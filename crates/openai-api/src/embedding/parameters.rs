//! What an embedding request asks for, once everything it says has been checked.

use super::request::EmbeddingRequest;
use crate::InvalidRequest;
use crate::completion::parameters::{PromptText, texts};

/// As in the OpenAI API.
pub const INPUTS_MAX: usize = 2048;

/// An embedding request whose every field is in range.
#[derive(Debug, Clone, PartialEq)]
pub struct EmbeddingParameters {
    pub model: String,
    /// Not empty, and none of them is.
    pub inputs: Vec<PromptText>,
    /// What the embeddings have to have; the model decides whether they do.
    pub dimensions: Option<u32>,
    pub encoding: EncodingFormat,
    /// For the log.
    pub user: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EncodingFormat {
    Float,
    Base64,
}

impl EmbeddingRequest {
    /// Checks every field; the first that is wrong is named.
    pub fn checked(self) -> Result<EmbeddingParameters, InvalidRequest> {
        if self.model.is_empty() {
            return Err(InvalidRequest::value("model", "`model` is empty"));
        }
        let inputs = texts("input", self.input, INPUTS_MAX)?;
        let dimensions = self
            .dimensions
            .map(|asked| {
                u32::try_from(asked).ok().filter(|asked| *asked > 0).ok_or_else(|| {
                    InvalidRequest::value("dimensions", format!("`dimensions` is {asked}; it must be over 0"))
                })
            })
            .transpose()?;
        let encoding = match self.encoding_format.as_deref() {
            None | Some("float") => EncodingFormat::Float,
            Some("base64") => EncodingFormat::Base64,
            Some(other) => {
                let message = format!("`encoding_format` is {other:?}; it must be `float` or `base64`");
                return Err(InvalidRequest::value("encoding_format", message));
            }
        };
        Ok(EmbeddingParameters { model: self.model, inputs, dimensions, encoding, user: self.user })
    }
}
