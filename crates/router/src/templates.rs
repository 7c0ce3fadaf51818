//! Renders chat templates, which come from strangers, within their bounds.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use chat::{RenderError, RenderRequest, Rendered, Template, TemplateSource};
use rand::RngExt as _;
use time::{OffsetDateTime, PrimitiveDateTime};

use crate::Config;
use crate::error::Failure;

/// Compiled templates that are kept; a router serves far fewer models.
const COMPILED_MAX: usize = 256;

pub struct Templates {
    clock: Option<OffsetDateTime>,
    /// Chooses the placeholders of control tokens; no requester can guess it.
    nonce: u64,
    compiled: Mutex<HashMap<String, Arc<Template>>>,
}

impl Templates {
    pub fn new(config: &Config) -> Templates {
        let nonce = rand::rng().random();
        Templates { clock: config.template_clock, nonce, compiled: Mutex::new(HashMap::new()) }
    }

    /// What templates see as now.
    pub fn now(&self) -> PrimitiveDateTime {
        let now = self.clock.unwrap_or_else(OffsetDateTime::now_utc);
        PrimitiveDateTime::new(now.date(), now.time())
    }

    pub async fn render(
        &self,
        source: Arc<TemplateSource>,
        request: RenderRequest,
    ) -> Result<Rendered, Failure> {
        let template = self.compiled(&source).map_err(failure)?;
        let rendered = tokio::task::spawn_blocking(move || template.render(&request)).await;
        rendered.map_err(|e| Failure::internal("render the chat template", &e))?.map_err(failure)
    }

    fn compiled(&self, source: &TemplateSource) -> Result<Arc<Template>, RenderError> {
        let id = source.id();
        let lock = || self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(template) = lock().get(&id) {
            return Ok(Arc::clone(template));
        }
        let template = Arc::new(Template::compile(source.clone(), self.nonce)?);
        let mut compiled = lock();
        if compiled.len() >= COMPILED_MAX {
            compiled.clear();
        }
        compiled.insert(id, Arc::clone(&template));
        Ok(template)
    }
}

/// All of it is about the request or the model's own files, so the caller is told.
fn failure(error: RenderError) -> Failure {
    let message = error.to_string();
    match error {
        RenderError::Request { param, message } => {
            Failure::bad_request("invalid_value", format!("`{param}`: {message}")).param(param)
        }
        RenderError::Refused { .. } => {
            Failure::bad_request("chat_template_refused", message).param("messages")
        }
        RenderError::Limit { .. } => Failure::bad_request("chat_template_limit", message).param("messages"),
        RenderError::Syntax { .. } | RenderError::Failed { .. } => {
            Failure::bad_request("chat_template_failed", message)
                .param("messages")
                .hint("/v1/completions takes a prompt that needs no template")
        }
    }
}
