//! A registered model, ready to be used.

use std::sync::Arc;

use chat::TemplateSet;
use model_manifest::Manifest;
use node_api::ModelSettings;

use crate::store::StoredModel;

/// Names under which a model's own template is stored, strongest first.
pub const CHAT_TEMPLATE: &str = "chat_template.jinja";
pub const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

#[derive(Debug, Clone)]
pub struct Registered {
    pub manifest: Manifest,
    pub fingerprint: String,
    pub settings: ModelSettings,
    /// Seconds since 1970.
    pub created: i64,
    /// The chat template, or why the model has none that can be used. Completions need none.
    pub templates: Result<Arc<TemplateSet>, String>,
}

impl From<StoredModel> for Registered {
    fn from(stored: StoredModel) -> Registered {
        let file = |name: &str| stored.files.get(name).map(|text| text.as_bytes());
        let templates = TemplateSet::select(
            &stored.manifest.architecture,
            file(CHAT_TEMPLATE),
            file(TOKENIZER_CONFIG),
            stored.control_tokens,
        );
        Registered {
            fingerprint: stored.manifest.fingerprint(),
            templates: templates.map(Arc::new).map_err(|e| crate::error::chain(&e)),
            manifest: stored.manifest,
            settings: stored.settings,
            created: stored.created,
        }
    }
}
