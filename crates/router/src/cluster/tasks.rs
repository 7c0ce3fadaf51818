//! What a model can be asked for, told before anything is loaded for it.

use std::sync::Arc;

use admin_api::ModelTask;
use model_manifest::Format;
use node_api::{EngineSummary, ModelState};

use super::{Cluster, Inner, Node, Registered, unknown_model};
use crate::error::Failure;

/// Capabilities in an engine's manifest.
const EMBEDDINGS: &str = "embeddings";
const CONSTRAINT: &str = "constraint";

impl Cluster {
    /// The model that a request names, for what the request asks of it.
    ///
    /// # Errors
    /// 404 for a model that is not registered, 400 for one that is by quantization alone. 400 for a task that the model, or the engine that runs it, does not do. What no
    /// node is ready to say is left to the node that gets the request.
    pub fn model_for(&self, id: &str, task: ModelTask) -> Result<Arc<Registered>, Failure> {
        let model = self.model(id).ok_or_else(|| self.not_named(id))?;
        self.check_task(&model, task)?;
        Ok(model)
    }

    /// 400 for an answer that has to fit a schema, because of `param`, where an engine that runs the model cannot do that. An
    /// engine of before would not even see that it was asked to.
    pub fn check_constraint(&self, model: &Registered, param: &str) -> Result<(), Failure> {
        let inner = self.lock();
        let Some(engine) = inner.engines_of(model).find(|engine| !can(engine, CONSTRAINT)) else {
            return Ok(());
        };
        let message = format!(
            "`{param}`: {} {}, which runs model `{}`, cannot hold an answer to a schema",
            engine.id, engine.version, model.manifest.id
        );
        Err(Failure::bad_request("unsupported_parameter", message).param(param))
    }

    /// Which of several quantizations is meant is not guessed.
    fn not_named(&self, id: &str) -> Failure {
        let inner = self.lock();
        let of_it = |other: &&String| other.strip_prefix(id).is_some_and(|rest| rest.starts_with(':'));
        let names: Vec<String> = inner.models.keys().filter(of_it).map(|name| format!("`{name}`")).collect();
        if names.is_empty() {
            return unknown_model(id);
        }
        let message = format!("no model is registered as `{id}` itself; there is {}", names.join(", "));
        Failure::bad_request("quantization_not_named", message).param("model").hint(format!(
            "name one of them, case and dashes included; `llm-router models add {id}:NAME --id {id}` makes one the default"
        ))
    }

    fn check_task(&self, model: &Registered, task: ModelTask) -> Result<(), Failure> {
        let id = &model.manifest.id;
        let refused = |code: &str, message: String| Err(Failure::bad_request(code, message).param("model"));
        match task {
            ModelTask::Generate if model.manifest.embeds => refused(
                "no_generation",
                format!("model `{id}` gives embeddings and no answers: its file has a pooling_type"),
            ),
            ModelTask::Embed if model.manifest.format == Format::Gguf && !model.manifest.embeds => refused(
                "no_embeddings",
                format!("model `{id}` has no embeddings: its file has no pooling_type"),
            ),
            ModelTask::Embed => {
                let inner = self.lock();
                let engines: Vec<&EngineSummary> = inner.engines_of(model).collect();
                if engines.is_empty() || engines.iter().copied().any(embeds) {
                    return Ok(());
                }
                let names: Vec<String> = engines.iter().map(|e| format!("{} {}", e.id, e.version)).collect();
                let message = format!("model `{id}` has no embeddings: {} gives none", names.join(", "));
                refused("no_embeddings", message)
            }
            ModelTask::Generate => Ok(()),
        }
    }
}

impl Inner {
    /// What a model can be asked for, as far as that is known.
    pub(super) fn tasks(&self, model: &Registered) -> Vec<ModelTask> {
        let manifest = &model.manifest;
        let may_embed = manifest.format != Format::Gguf || manifest.embeds;
        let embeds = manifest.embeds || (may_embed && self.engines_of(model).any(embeds));
        let tasks = [(ModelTask::Generate, !manifest.embeds), (ModelTask::Embed, embeds)];
        tasks.into_iter().filter(|(_, done)| *done).map(|(task, _)| task).collect()
    }

    /// The engine that runs the model on each node that is ready to.
    fn engines_of<'a>(&'a self, model: &'a Registered) -> impl Iterator<Item = &'a EngineSummary> {
        let on_node = |node: &'a Node| {
            let status = node.status.as_ref()?;
            let told = status
                .models
                .iter()
                .find(|m| m.id == model.manifest.id && m.fingerprint == model.fingerprint)?;
            let (ModelState::Ready { engine, engine_version, .. }
            | ModelState::Loading { engine, engine_version, .. }
            | ModelState::Loaded { engine, engine_version, .. }) = &told.state
            else {
                return None;
            };
            status.engines.iter().find(|e| e.id == *engine && e.version == *engine_version)
        };
        self.nodes.values().filter_map(on_node)
    }
}

fn embeds(engine: &EngineSummary) -> bool {
    can(engine, EMBEDDINGS)
}

fn can(engine: &EngineSummary, capability: &str) -> bool {
    engine.capabilities.iter().any(|has| has == capability)
}
