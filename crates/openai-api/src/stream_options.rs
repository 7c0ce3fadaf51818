//! `stream_options`.

use serde::Deserialize;
use utoipa::ToSchema;

use crate::InvalidRequest;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StreamOptions {
    /// Send one more chunk, without choices, that has the usage.
    #[serde(default)]
    pub include_usage: Option<bool>,
    /// Refused when true: chunks are not padded.
    #[serde(default)]
    pub include_obfuscation: Option<bool>,
}

/// How the answer is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    Whole,
    Stream { include_usage: bool },
}

impl Delivery {
    pub fn checked(stream: Option<bool>, options: Option<StreamOptions>) -> Result<Delivery, InvalidRequest> {
        let stream = stream.unwrap_or(false);
        let Some(options) = options else {
            return Ok(if stream { Delivery::Stream { include_usage: false } } else { Delivery::Whole });
        };
        if !stream {
            let message = "`stream_options` is only allowed with `stream: true`";
            return Err(InvalidRequest::value("stream_options", message));
        }
        if options.include_obfuscation == Some(true) {
            let message = "`stream_options.include_obfuscation` is not supported: chunks are not padded";
            return Err(InvalidRequest::unsupported("stream_options.include_obfuscation", message));
        }
        Ok(Delivery::Stream { include_usage: options.include_usage.unwrap_or(false) })
    }
}
