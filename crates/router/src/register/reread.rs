//! Reads the headers of GGUF files again that an older version of the router read: it kept less of them.
//!
//! What is read again changes what the header says and nothing else: files, hashes, settings and the id stay.

use std::sync::Arc;
use std::time::Duration;

use model_formats::gguf::GgufModel;
use model_manifest::Manifest;
use model_store::read_gguf_header;

use super::gguf::{self, HEADER_VERSION};
use crate::app::App;
use crate::cluster::Registered;
use crate::store::StoredModel;

/// For one header; the largest vocabularies have some 16 MiB.
const READ_TIMEOUT: Duration = Duration::from_secs(600);
/// Between two tries at what could not be read: the hub may be back, or the disk.
const PAUSE_FIRST: Duration = Duration::from_secs(60);
const PAUSE_MAX: Duration = Duration::from_secs(3600);

/// Returns when every header is of this version, or the router ends.
pub async fn run(app: Arc<App>) {
    let mut pause = PAUSE_FIRST;
    loop {
        let ids = app.cluster.models_of_older_headers();
        if ids.is_empty() {
            return;
        }
        for id in ids {
            tokio::select! {
                () = app.drain.cancelled() => return,
                () = one(&app, &id) => {}
            }
        }
        tokio::select! {
            () = app.drain.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

async fn one(app: &Arc<App>, id: &str) {
    let Some(model) = app.cluster.model(id) else { return };
    let read = async {
        let read = tokio::time::timeout(READ_TIMEOUT, read_gguf_header(&app.hub, &model.manifest)).await;
        let seconds = READ_TIMEOUT.as_secs();
        let header = read.map_err(|_| format!("it took more than {seconds} s"))?.map_err(|e| e.message())?;
        check(&model.manifest, &header)?;
        Ok(header)
    };
    let read: Result<GgufModel, String> = read.await;
    // A change that has begun ends, even if the router is told to.
    let (task_app, id) = (Arc::clone(app), id.to_owned());
    let task = app.tasks.spawn(async move {
        let _one = task_app.catalog.lock().await;
        // It may have been removed meanwhile, or registered anew.
        let current = task_app.cluster.model(&id);
        let Some(current) = current.filter(|now| now.fingerprint == model.fingerprint) else { return };
        if let Err(why) = keep(&task_app, &current, read).await {
            tracing::warn!(model = id, error = why, "its file's header cannot be read again");
            let older_header = Some(Registered::header_note(Some(&why)));
            task_app.cluster.set_model(Registered { older_header, ..(*current).clone() });
        }
    });
    // A panic has been logged by the panic hook; the next try is as good as this one.
    let _ = task.await;
}

/// A file that is used in place may have become another one.
fn check(manifest: &Manifest, header: &GgufModel) -> Result<(), String> {
    if header.architecture == manifest.architecture {
        return Ok(());
    }
    let (now, before) = (&header.architecture, &manifest.architecture);
    Err(format!("{} is of architecture {now}, and was of {before} when it was registered", manifest.primary))
}

async fn keep(app: &App, current: &Registered, read: Result<GgufModel, String>) -> Result<(), String> {
    let header = read?;
    let mut manifest = current.manifest.clone();
    manifest.take_header(&header);
    let stored = StoredModel {
        manifest,
        settings: current.settings.clone(),
        control_tokens: gguf::control_tokens(&header),
        files: gguf::texts(&header),
        created: current.created,
        header_version: HEADER_VERSION,
    };
    let id = stored.manifest.id.clone();
    if app.store.replace(&stored).await.map_err(|e| crate::error::chain(&e))? {
        app.cluster.set_model(Registered::from(stored));
        tracing::info!(
            model = id,
            "its file's header was read again, as this version of the router reads it"
        );
    }
    Ok(())
}
