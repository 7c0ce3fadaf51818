//! Registering a model: from what the caller wrote to a stored manifest, or to the reason why not.

pub mod gguf;
pub mod reread;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use admin_api::RegisterModel;
use chat::{ControlTokens, TemplateSet};
use http::StatusCode;
use model_manifest::registration::TOKENIZER;
use model_manifest::{KnownEngine, ListedFile, Manifest, Request, Rules, Source};
use model_store::{Location, LocationError, RegisterError, register_folder, register_hub};
use node_api::ModelSettings;
use sha2::{Digest as _, Sha256};
use time::OffsetDateTime;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::app::App;
use crate::cluster::{CHAT_TEMPLATE, Registered, TOKENIZER_CONFIG};
use crate::error::{Failure, Retry};
use crate::store::{StoreError, StoredModel};
use gguf::HEADER_VERSION;

/// The largest published tokenizers have 35 MB.
const TOKENIZER_BYTES_MAX: u64 = 256 << 20;
/// A folder is hashed whole: 1 TB from a slow disk takes this long.
const REGISTRATION_TIMEOUT: Duration = Duration::from_secs(3 * 3600);
const ID_CHARS_MAX: usize = 256;
const DEFAULT_REVISION: &str = "main";
/// A template wrapped in JSON, as some repositories have it.
const CHAT_TEMPLATE_JSON: &str = "chat_template.json";
pub const CONTEXT_LENGTH_MAX: u32 = 1 << 24;
pub const SEQUENCES_MAX: u32 = 4096;
/// Workers of one model on one node; more than a machine has devices only costs memory.
const REPLICAS_MAX: u32 = 64;
const DEVICES_MAX: usize = 64;
/// Of an engine's id, a version, a device.
const NAME_BYTES_MAX: usize = 128;

/// Registers a model and tells the nodes. One with the same id stays as it is.
pub async fn register(app: &Arc<App>, wanted: RegisterModel) -> Result<Arc<Registered>, Failure> {
    let location = location(app, &wanted)?;
    if let Some(id) = &wanted.id {
        check_id(id)?;
    }
    if let (Some(given), Some(named)) = (&wanted.file, location.file())
        && given != named
    {
        let message = format!("`file` is {given}, and the address or path names {named}");
        return Err(Failure::bad_request("invalid_value", message).param("file"));
    }
    if let (Some(_), Some(quantization)) = (&wanted.file, location.quantization()) {
        let message = format!("`file` and the quantization {quantization} both choose a file; give one");
        return Err(Failure::bad_request("invalid_value", message).param("file"));
    }
    let settings = wanted.settings.clone().unwrap_or_default();
    let rules = Rules {
        allowlist: app.allowlist.clone(),
        supported: app.supported.clone(),
        engines: KnownEngine::shipped().into_iter().chain(app.cluster.known_engines()).collect(),
    };
    let request = Request {
        id: wanted.id.clone().or_else(|| location.id()).unwrap_or_default(),
        format: wanted.format,
        file: wanted.file.clone().or_else(|| location.file().map(str::to_owned)),
        quantization: location.quantization().map(str::to_owned),
        require_engine: wanted.require_engine.unwrap_or(app.config.require_engine),
    };
    // Known before anything is fetched, where the id is.
    let id = match (&location, request.id.as_str()) {
        (Location::Hub { repo, .. }, "") => repo,
        (_, id) => id,
    };
    if app.cluster.model(id).is_some() {
        return Err(duplicate(id));
    }
    let making = make(Arc::clone(app), location, request, rules);
    let made = tokio::time::timeout(REGISTRATION_TIMEOUT, making).await.map_err(|_| {
        let message = format!("the registration took more than {} s", REGISTRATION_TIMEOUT.as_secs());
        Failure::new(StatusCode::GATEWAY_TIMEOUT, "registration_timeout", message)
    })?;
    let Made { manifest, files, control_tokens } = made?;
    check_settings(&settings, Some(&manifest))?;
    let created = OffsetDateTime::now_utc().unix_timestamp();
    keep(
        app,
        StoredModel { manifest, settings, control_tokens, files, created, header_version: HEADER_VERSION },
    )
    .await
}

/// What was found out about a model.
struct Made {
    manifest: Manifest,
    files: BTreeMap<String, String>,
    control_tokens: ControlTokens,
}

async fn make(app: Arc<App>, location: Location, request: Request, rules: Rules) -> Result<Made, Failure> {
    let _place = app.registrations.acquire().await.expect("the semaphore is never closed");
    let registered = match &location {
        Location::Hub { repo, revision, .. } => {
            let revision = revision.as_deref().unwrap_or(DEFAULT_REVISION);
            register_hub(&app.hub, repo, revision, &request, &rules).await.map_err(refused)?
        }
        Location::Folder(dir) | Location::File { folder: dir, .. } => {
            let (progress, _) = watch::channel(model_store::Progress::default());
            let cancel = CancellationToken::new();
            // Hashing stops when the caller goes away.
            let _stop = cancel.clone().drop_guard();
            register_folder(dir, &request, &rules, &app.verified, &progress, &cancel)
                .await
                .map_err(refused)?
        }
    };
    let manifest = registered.manifest;
    let (files, control_tokens) = match &registered.gguf {
        Some(header) => (gguf::texts(header), gguf::control_tokens(header)),
        None => {
            let tokens = match tokenizer(&app, &manifest).await? {
                Some(bytes) => {
                    ControlTokens::from_tokenizer_json(&bytes).map_err(|e| bad_file(TOKENIZER, &e))?
                }
                None => ControlTokens::default(),
            };
            (small_texts(registered.contents)?, tokens)
        }
    };
    // Files of a wrong form are told now. A template that does not compile is told at the first chat: completions work
    // without it, so it is no reason to refuse the model.
    let file = |name: &str| files.get(name).map(|text| text.as_bytes());
    TemplateSet::select(
        &manifest.architecture,
        file(CHAT_TEMPLATE),
        file(TOKENIZER_CONFIG),
        control_tokens.clone(),
    )
    .map_err(|e| bad_file("the chat template", &e))?;
    Ok(Made { manifest, files, control_tokens })
}

/// The texts the router will need: the template and the tokenizer's config.
fn small_texts(mut contents: BTreeMap<String, Vec<u8>>) -> Result<BTreeMap<String, String>, Failure> {
    let mut files = BTreeMap::new();
    for name in [CHAT_TEMPLATE, TOKENIZER_CONFIG] {
        if let Some(bytes) = contents.remove(name) {
            let text = String::from_utf8(bytes).map_err(|e| bad_file(name, &e.utf8_error()))?;
            files.insert(name.to_owned(), text);
        }
    }
    if let (false, Some(bytes)) = (files.contains_key(CHAT_TEMPLATE), contents.remove(CHAT_TEMPLATE_JSON)) {
        #[derive(serde::Deserialize)]
        struct Wrapped {
            chat_template: String,
        }
        let wrapped: Wrapped =
            serde_json::from_slice(&bytes).map_err(|e| bad_file(CHAT_TEMPLATE_JSON, &e))?;
        files.insert(CHAT_TEMPLATE.to_owned(), wrapped.chat_template);
    }
    Ok(files)
}

/// The bytes of `tokenizer.json`, the very ones the manifest names.
async fn tokenizer(app: &App, manifest: &Manifest) -> Result<Option<Vec<u8>>, Failure> {
    let Some(file) = manifest.file(TOKENIZER) else { return Ok(None) };
    match &manifest.source {
        Source::Hub { repo, commit, .. } => {
            let listed = ListedFile {
                path: TOKENIZER.to_owned(),
                size: file.size,
                sha256: Some(file.sha256.clone()),
                git_oid: None,
            };
            let content = app.hub.fetch_small(repo, commit, &listed, TOKENIZER_BYTES_MAX).await;
            content.map(Some).map_err(|e| refused(RegisterError::Hub(e)))
        }
        Source::Local { path } => {
            let path = Path::new(path).join(TOKENIZER);
            if file.size > TOKENIZER_BYTES_MAX {
                let message = format!(
                    "{} has {} bytes, {TOKENIZER_BYTES_MAX} at most are read",
                    path.display(),
                    file.size
                );
                return Err(Failure::bad_request("file_too_large", message));
            }
            let content =
                tokio::fs::read(&path).await.map_err(|e| bad_file(&path.display().to_string(), &e))?;
            let sha256: String = Sha256::digest(&content).iter().map(|b| format!("{b:02x}")).collect();
            if sha256 != file.sha256 {
                let message = format!("{} changed while it was registered", path.display());
                return Err(Failure::new(StatusCode::CONFLICT, "file_changed", message));
            }
            Ok(Some(content))
        }
    }
}

/// Stores the model and shows it to the nodes. In a task of its own: a caller that goes away leaves no half of it.
async fn keep(app: &Arc<App>, model: StoredModel) -> Result<Arc<Registered>, Failure> {
    let task_app = Arc::clone(app);
    let task = app.tasks.spawn(async move {
        let _one = task_app.catalog.lock().await;
        let id = model.manifest.id.clone();
        task_app.store.insert(&model).await.map_err(|error| match error {
            StoreError::Duplicate { id } => duplicate(&id),
            other => Failure::internal("store the model", &other),
        })?;
        task_app.metrics.add_model(&id);
        task_app.cluster.set_model(Registered::from(model));
        tracing::info!(model = id, "model registered");
        task_app
            .cluster
            .model(&id)
            .ok_or_else(|| Failure::bad_request("model_removed", "the model was removed at once"))
    });
    task.await.map_err(|e| Failure::internal("store the model", &e))?
}

fn location(app: &App, wanted: &RegisterModel) -> Result<Location, Failure> {
    let given = [("repo", &wanted.repo), ("url", &wanted.url), ("path", &wanted.path)];
    let given: Vec<(&str, &String)> =
        given.into_iter().filter_map(|(name, v)| Some((name, v.as_ref()?))).collect();
    let &[(name, text)] = given.as_slice() else {
        let message = "exactly one of `repo`, `url` and `path` says where the model is";
        return Err(Failure::bad_request("source_ambiguous", message).param("repo"));
    };
    let wrong = |message: String| Failure::bad_request("invalid_value", message).param(name);
    let location = Location::parse(text, app.hub.endpoint()).map_err(|e| {
        let failure = wrong(e.to_string());
        match e {
            LocationError::Relative { .. } => failure.hint("give the folder's absolute path"),
            _ => failure,
        }
    })?;
    let is_url = Location::is_address(text);
    match (name, location) {
        ("path", local @ (Location::Folder(_) | Location::File { .. })) => match &wanted.revision {
            None => Ok(local),
            Some(_) => {
                Err(Failure::bad_request("invalid_value", "a folder has no `revision`").param("revision"))
            }
        },
        ("repo", Location::Hub { repo, revision: None, file, quantization }) if !is_url => {
            Ok(Location::Hub { repo, revision: wanted.revision.clone(), file, quantization })
        }
        ("url", Location::Hub { repo, revision, file, quantization }) if is_url => {
            match (revision, &wanted.revision) {
                (Some(in_url), Some(given)) if in_url != *given => {
                    let message = format!("`url` names the revision {in_url} and `revision` is {given}");
                    Err(Failure::bad_request("invalid_value", message).param("revision"))
                }
                (in_url, given) => {
                    Ok(Location::Hub { repo, revision: given.clone().or(in_url), file, quantization })
                }
            }
        }
        ("path", _) => Err(wrong(format!("`{text}` is not the absolute path of a folder or a gguf file"))),
        ("url", _) => Err(wrong(format!("`{text}` is not an address on the hub"))),
        (_, _) => Err(wrong(format!("`{text}` is not a repository of the form org/name"))),
    }
}

/// An id stands in URLs and in logs.
fn check_id(id: &str) -> Result<(), Failure> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_./:@+".contains(c);
    let segments = id.split('/').all(|s| !s.is_empty() && s != "." && s != "..");
    if id.chars().count() > ID_CHARS_MAX || !id.chars().all(fits) || !segments {
        let message = format!(
            "`id` must have 1 to {ID_CHARS_MAX} characters out of letters, digits and -_./:@+, without empty parts or `..`"
        );
        return Err(Failure::bad_request("invalid_value", message).param("id"));
    }
    Ok(())
}

/// Whether a node could follow these settings.
pub fn check_settings(settings: &ModelSettings, manifest: Option<&Manifest>) -> Result<(), Failure> {
    let wrong = |field: &str, message: String| {
        Err(Failure::bad_request("invalid_value", message).param(format!("settings.{field}")))
    };
    if let Some(length) = settings.context_length {
        let max =
            manifest.and_then(|m| m.context_length_max).unwrap_or(CONTEXT_LENGTH_MAX).min(CONTEXT_LENGTH_MAX);
        if length == 0 || length > max {
            return wrong(
                "context_length",
                format!("`settings.context_length` is {length}, it must be between 1 and {max}"),
            );
        }
    }
    if let Some(sequences) = settings.sequences_max
        && (sequences == 0 || sequences > SEQUENCES_MAX)
    {
        let message =
            format!("`settings.sequences_max` is {sequences}, it must be between 1 and {SEQUENCES_MAX}");
        return wrong("sequences_max", message);
    }
    if let Some(replicas) = settings.replicas
        && (replicas == 0 || replicas > REPLICAS_MAX)
    {
        let message = format!("`settings.replicas` is {replicas}, it must be between 1 and {REPLICAS_MAX}");
        return wrong("replicas", message);
    }
    let is_name = |name: &str| {
        !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.bytes().all(|b| b.is_ascii_graphic())
    };
    if let Some(engine) = &settings.engine {
        let (id, version) = engine.split_once('@').map_or((engine.as_str(), None), |(id, v)| (id, Some(v)));
        if !is_name(id) || version.is_some_and(|v| !is_name(v) || v.contains('@')) {
            let message =
                "`settings.engine` must be the id of an engine, or id and version like `echo@1.2.0`";
            return wrong("engine", message.to_owned());
        }
    }
    if settings.devices.len() > DEVICES_MAX || !settings.devices.iter().all(|device| is_name(device)) {
        let message =
            format!("`settings.devices` must have at most {DEVICES_MAX} ids of devices, like `cuda:0`");
        return wrong("devices", message);
    }
    Ok(())
}

fn duplicate(id: &str) -> Failure {
    let message = format!("model `{id}` is registered already; nothing was changed");
    Failure::new(StatusCode::CONFLICT, "model_exists", message)
        .param("id")
        .hint("give another id, or remove the registered one first")
}

fn bad_file(file: &str, error: &dyn std::error::Error) -> Failure {
    Failure::bad_request("file_invalid", format!("{file} is not usable: {}", crate::error::chain(error)))
}

fn refused(error: RegisterError) -> Failure {
    let status = StatusCode::from_u16(error.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut failure = Failure::new(status, error.code(), error.message());
    failure.hint = error.hint().map(Into::into);
    if let RegisterError::Hub(hub) = &error
        && let Some(wait) = hub.retry_after()
    {
        failure.retry = Retry::After(u32::try_from(wait.as_secs()).unwrap_or(u32::MAX));
    }
    failure
}
