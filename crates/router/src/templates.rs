//! Renders chat templates, which come from strangers, in processes of their own with a deadline and a memory limit.

use std::path::PathBuf;
use std::sync::Arc;

use chat::{RenderError, RenderRequest, Rendered, TemplateSource};
use http::StatusCode;
use template_sandbox::{SandboxError, Schema, TemplateSandbox};
use time::{OffsetDateTime, PrimitiveDateTime};

use crate::cluster::RETRY_AFTER_SECONDS;
use crate::error::{Failure, Retry};

pub struct Templates {
    clock: Option<OffsetDateTime>,
    sandbox: TemplateSandbox,
}

impl Templates {
    /// `worker` is started as `<worker> template-worker`; `clock` is what templates see as now, `None` the system's.
    pub fn new(worker: PathBuf, clock: Option<OffsetDateTime>) -> Templates {
        Templates { clock, sandbox: TemplateSandbox::new(worker) }
    }

    /// Starts a worker ahead of the first request.
    pub async fn warm(&self) {
        if let Err(error) = self.sandbox.warm().await {
            tracing::warn!(error = crate::error::chain(&error), "chat templates cannot be rendered");
        }
    }

    pub fn now(&self) -> PrimitiveDateTime {
        let now = self.clock.unwrap_or_else(OffsetDateTime::now_utc);
        PrimitiveDateTime::new(now.date(), now.time())
    }

    pub async fn render(
        &self,
        source: &Arc<TemplateSource>,
        request: &RenderRequest,
        schemas: &[Schema],
    ) -> Result<Rendered, Failure> {
        self.sandbox.render_checked(source, request, schemas).await.map_err(|error| match error {
            SandboxError::Render(error) => failure(error, schemas),
            SandboxError::Busy => Failure::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "overloaded",
                "too many chat templates are being rendered",
            )
            .retry(Retry::After(RETRY_AFTER_SECONDS)),
            other => Failure::internal("render the chat template", &other),
        })
    }
}

/// All of it is about the request or the model's own files, so the caller is told.
fn failure(error: RenderError, schemas: &[Schema]) -> Failure {
    let words = error.to_string();
    match error {
        RenderError::Request { param, message } => {
            Failure::bad_request("invalid_value", format!("`{param}`: {message}")).param(param)
        }
        RenderError::Refused { .. } => Failure::bad_request("chat_template_refused", words).param("messages"),
        // Templates take a small part of it; a schema may be made to take any.
        RenderError::Limit { limit } if !schemas.is_empty() => {
            let param = schemas[0].param.as_str();
            let message = format!("`{param}`: with the chat template it takes more than {limit}");
            Failure::bad_request("schema_limit", message).param(param).hint("make the schemas simpler")
        }
        RenderError::Limit { .. } => Failure::bad_request("chat_template_limit", words).param("messages"),
        RenderError::Syntax { .. } | RenderError::Failed { .. } => {
            Failure::bad_request("chat_template_failed", words)
                .param("messages")
                .hint("/v1/completions takes a prompt that needs no template")
        }
    }
}
