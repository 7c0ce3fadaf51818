//! Reads a JSON body within its bounds.

use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use bytes::Bytes;
use http::StatusCode;
use http::header::CONTENT_LENGTH;
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::error::Failure;

/// A caller that has not sent its whole body by then has stopped sending.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);

/// The body as a value; errors name the field or the place.
pub async fn read_json<T: DeserializeOwned>(request: Request<Body>, bytes_max: usize) -> Result<T, Failure> {
    let bytes = read(request, bytes_max).await?;
    Ok(openai_api::parse(&bytes)?)
}

async fn read(request: Request<Body>, bytes_max: usize) -> Result<Bytes, Failure> {
    let length = request
        .headers()
        .get(CONTENT_LENGTH)
        .and_then(|v| v.to_str().ok())
        .and_then(|v| v.parse::<u64>().ok());
    if let Some(length) = length.filter(|l| *l > bytes_max as u64) {
        return Err(too_large(&format!("{length} bytes"), bytes_max));
    }
    let body = timeout(BODY_TIMEOUT, Limited::new(request.into_body(), bytes_max).collect()).await;
    match body {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large("more bytes", bytes_max)),
        Ok(Err(error)) => {
            Err(Failure::bad_request("body_incomplete", format!("the body did not come whole: {error}")))
        }
        Err(_) => {
            let message = format!("the body did not come within {} s", BODY_TIMEOUT.as_secs());
            Err(Failure::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", message))
        }
    }
}

fn too_large(what: &str, bytes_max: usize) -> Failure {
    let message = format!("the body has {what}, and {bytes_max} bytes at most are read");
    Failure::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
}
