//! Registered models: how one is registered, shown, changed and removed.

use model_manifest::{Format, Manifest, Source};
use node_api::{Candidate, ModelSettings, ModelState, ReplicaStatus};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Body of `POST /api/models`. Exactly one of `repo`, `url` and `path` is given.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RegisterModel {
    /// `org/name` on the configured hub; `org/name:Q4_K_M` for the GGUF file whose name ends so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub repo: Option<String>,
    /// The model's page on the configured hub, as copied from a browser; `/tree/<revision>` is understood, and the address of
    /// one GGUF file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// A folder or a GGUF file on the router's machine, used in place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Needed when the source holds both formats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<Format>,
    /// Branch, tag or commit; the hub's default branch when absent. The commit it means now is pinned.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
    /// Which GGUF file, when the source has several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The id clients will use; the repository's or the folder's name when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// Refuse the model when no engine of a connected node runs its architecture. The router's setting when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub require_engine: Option<bool>,
    #[serde(default, deserialize_with = "strict::optional", skip_serializing_if = "Option::is_none")]
    pub settings: Option<ModelSettings>,
}

/// Body of `PATCH /api/models/{id}`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UpdateModel {
    /// Replaces the settings as a whole.
    #[serde(deserialize_with = "strict::required")]
    pub settings: ModelSettings,
}

/// A registered model and what the nodes make of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Model {
    pub id: String,
    /// Of the manifest, 64 hex digits.
    pub fingerprint: String,
    pub source: Source,
    pub format: Format,
    pub architecture: String,
    /// Engine runtimes that run it, best first; empty: none is known.
    pub runtimes: Vec<String>,
    /// Tokens, as the model's own config says.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_length_max: Option<u32>,
    /// What it can be asked for, as far as its files and the engines of the nodes that have it say.
    #[serde(default)]
    pub tasks: Vec<ModelTask>,
    /// Bytes of all files.
    pub total_bytes: u64,
    pub files: u32,
    /// Seconds since 1970.
    pub created: i64,
    pub settings: ModelSettings,
    /// The best any node offers.
    pub state: Availability,
    /// Why it is not ready, and what to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What an operator should know of it besides.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    pub nodes: Vec<ModelOnNode>,
}

/// What a model can be asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ModelTask {
    /// `/v1/chat/completions` and `/v1/completions`.
    Generate,
    /// `/v1/embeddings`.
    Embed,
}

/// The best state a model has on any node, worst to best.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Availability {
    /// No node is connected that may have it.
    NoNode,
    /// No connected node can run it.
    Unsupported,
    /// A node could run it and failed.
    Failed,
    Waiting,
    Downloading,
    Verifying,
    /// The first request loads it.
    Ready,
    Loading,
    Loaded,
}

impl Availability {
    pub fn of(state: &ModelState) -> Availability {
        match state {
            ModelState::Waiting => Availability::Waiting,
            ModelState::Downloading { .. } => Availability::Downloading,
            ModelState::Verifying { .. } => Availability::Verifying,
            ModelState::Ready { .. } => Availability::Ready,
            ModelState::Loading { .. } => Availability::Loading,
            ModelState::Loaded { .. } => Availability::Loaded,
            ModelState::Unsupported { .. } => Availability::Unsupported,
            ModelState::Failed { .. } => Availability::Failed,
        }
    }

    /// Requests are taken.
    pub fn is_ready(self) -> bool {
        self >= Availability::Ready
    }

    /// As it stands in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Availability::NoNode => "no_node",
            Availability::Unsupported => "unsupported",
            Availability::Failed => "failed",
            Availability::Waiting => "waiting",
            Availability::Downloading => "downloading",
            Availability::Verifying => "verifying",
            Availability::Ready => "ready",
            Availability::Loading => "loading",
            Availability::Loaded => "loaded",
        }
    }
}

/// A model on one node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ModelOnNode {
    pub node_id: String,
    pub node_name: String,
    #[serde(flatten)]
    pub state: ModelState,
    /// Optional files that are not there, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Its workers there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub replicas: Vec<ReplicaStatus>,
    /// Engines there that could run it, the chosen one first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub candidates: Vec<Candidate>,
    /// Requests there that have no worker yet.
    #[serde(default)]
    pub requests_waiting: u32,
}

/// Answer of `GET /api/models`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ModelList {
    /// In order of id.
    pub models: Vec<Model>,
}

/// Answer of `GET /api/models/{id}`, and of `POST` and `PATCH`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ModelDetails {
    #[serde(flatten)]
    pub model: Model,
    pub manifest: Manifest,
}

/// Answer of `DELETE /api/models/{id}`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Deleted {
    pub id: String,
    pub deleted: bool,
}

/// Answer of `GET /api/available`: models known to work, from `supported_models.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AvailableList {
    pub models: Vec<AvailableModel>,
}

/// One entry of `supported_models.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AvailableModel {
    pub id: String,
    /// `org/name` to register it from.
    pub repo: String,
    pub format: Format,
    /// Bytes to download.
    pub size: u64,
    /// Bytes of memory it wants.
    pub memory: u64,
    pub runtimes: Vec<String>,
    /// Names of the optimized artifacts known for it.
    pub artifacts: Vec<String>,
    /// It is registered here under this id.
    pub registered: bool,
}

/// Settings as a caller writes them: a misspelt one is refused, where between router and node newer ones are passed over.
mod strict {
    use node_api::ModelSettings;
    use serde::{Deserialize, Deserializer};

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Strict {
        #[serde(default)]
        context_length: Option<u32>,
        #[serde(default)]
        sequences_max: Option<u32>,
        #[serde(default)]
        engine: Option<String>,
        #[serde(default)]
        devices: Vec<String>,
        #[serde(default)]
        replicas: Option<u32>,
        #[serde(default)]
        keep_alive_seconds: Option<i64>,
        #[serde(default)]
        options: serde_json::Map<String, serde_json::Value>,
    }

    pub fn required<'de, D: Deserializer<'de>>(deserializer: D) -> Result<ModelSettings, D::Error> {
        Strict::deserialize(deserializer).map(ModelSettings::from)
    }

    pub fn optional<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<ModelSettings>, D::Error> {
        Option::<Strict>::deserialize(deserializer).map(|settings| settings.map(ModelSettings::from))
    }

    impl From<Strict> for ModelSettings {
        fn from(strict: Strict) -> ModelSettings {
            let Strict {
                context_length,
                sequences_max,
                engine,
                devices,
                replicas,
                keep_alive_seconds,
                options,
            } = strict;
            ModelSettings {
                context_length,
                sequences_max,
                engine,
                devices,
                replicas,
                keep_alive_seconds,
                options,
            }
        }
    }
}
