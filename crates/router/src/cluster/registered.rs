//! A registered model, ready to be used.

use std::sync::Arc;

use chat::TemplateSet;
use model_manifest::{Format, Manifest};
use node_api::ModelSettings;

use crate::register::gguf::HEADER_VERSION;
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
    /// The spelling of the token that a prompt without template begins with.
    pub beginning: Option<String>,
    /// An older version read the header of its GGUF file and kept less of it: what an operator should know of that.
    pub older_header: Option<String>,
}

impl Registered {
    /// A text as the prompt of a completion: begun as the model expects it, once. A chat's template does that itself.
    pub fn begun(&self, text: &str) -> String {
        match &self.beginning {
            Some(beginning) if !text.starts_with(beginning.as_str()) => format!("{beginning}{text}"),
            _ => text.to_owned(),
        }
    }

    /// `why`: what went wrong when the header was read again.
    pub fn header_note(why: Option<&str>) -> String {
        let read = "the header of its file was read by an older version of llm-router, which kept less of it";
        match why {
            None => format!("{read}; it is being read again"),
            Some(why) => format!(
                "{read}, and cannot be read again now: {why}\nhint: it is tried again by itself; to do without, remove the model \
                 and register it again"
            ),
        }
    }
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
        let older = stored.manifest.format == Format::Gguf && stored.header_version < HEADER_VERSION;
        Registered {
            older_header: older.then(|| Registered::header_note(None)),
            beginning: file(TOKENIZER_CONFIG).and_then(chat::plain_beginning),
            fingerprint: stored.manifest.fingerprint(),
            templates: templates.map(Arc::new).map_err(|e| crate::error::chain(&e)),
            manifest: stored.manifest,
            settings: stored.settings,
            created: stored.created,
        }
    }
}
