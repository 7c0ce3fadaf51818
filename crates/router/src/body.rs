//! Reads a JSON body within its bounds.

use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use bytes::Bytes;
use http::StatusCode;
use http::header::{CONTENT_LENGTH, EXPECT};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::error::Failure;

/// A caller that has not sent its whole body by then has stopped sending.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);
/// Many clients read no answer before they have sent everything, and a connection closed under them hides it. So what
/// is over the limit is thrown away up to this many bytes, and for this long, before the refusal.
const DISCARD_BYTES_MAX: usize = 256 << 20;
const DISCARD_TIMEOUT: Duration = Duration::from_secs(10);

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
        // Who asks first (`Expect: 100-continue`) has sent nothing yet and sends nothing after this.
        if !request.headers().contains_key(EXPECT) {
            discard(request.into_body()).await;
        }
        return Err(too_large(&format!("{length} bytes"), bytes_max));
    }
    let mut body = request.into_body();
    match timeout(BODY_TIMEOUT, Limited::new(&mut body, bytes_max).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            discard(body).await;
            Err(too_large("more bytes", bytes_max))
        }
        Ok(Err(error)) => {
            Err(Failure::bad_request("body_incomplete", format!("the body did not come whole: {error}")))
        }
        Err(_) => {
            let message = format!("the body did not come within {} s", BODY_TIMEOUT.as_secs());
            Err(Failure::new(StatusCode::REQUEST_TIMEOUT, "body_timeout", message))
        }
    }
}

async fn discard(mut body: Body) {
    let read = async {
        let mut left = DISCARD_BYTES_MAX;
        while let Some(Ok(frame)) = body.frame().await {
            let bytes = frame.data_ref().map_or(0, Bytes::len);
            left = left.saturating_sub(bytes);
            if left == 0 {
                return;
            }
        }
    };
    // Too slow or too much: the connection closes under the caller, as it must at some point.
    let _ = timeout(DISCARD_TIMEOUT, read).await;
}

fn too_large(what: &str, bytes_max: usize) -> Failure {
    let message = format!("the body has {what}, and {bytes_max} bytes at most are read");
    Failure::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
}
