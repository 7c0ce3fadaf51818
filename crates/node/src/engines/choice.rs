//! Which engine runs a model on which device, or what exactly is missing.

use model_manifest::Manifest;
use node_api::DeviceInfo;

use super::watcher::names;
use super::{Engine, EngineManifest, EngineRegistry};

/// How a model runs here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    pub engine: Engine,
    pub runtime: String,
    pub device: DeviceChosen,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceChosen {
    pub id: String,
    pub kind: String,
}

impl EngineRegistry {
    /// Every way to run the model here: of each runtime, in the model's order, each version, the newest first, on each
    /// device, in the order its engine likes them. Engines an operator disabled are not among them; builds that failed
    /// their trial are, see [`failed_trial`](Self::failed_trial). Nothing: the reason, for the operator.
    pub fn candidates(&self, model: &Manifest, devices: &[DeviceInfo]) -> Result<Vec<Choice>, String> {
        let mut fitting: Vec<&Engine> = self.engines.iter().filter(|e| runs(&e.manifest, model)).collect();
        // Stable: of two engines the one whose directory comes first.
        fitting.sort_by_key(|engine| std::cmp::Reverse(version_key(&engine.manifest.version)));
        let enabled: Vec<&Engine> = fitting.iter().copied().filter(|e| self.is_enabled(e)).collect();
        // A model of which no runtime is known is left to whoever reads its format and architecture.
        let named = model.runtimes.iter().map(Some);
        let mut choices: Vec<Choice> = Vec::new();
        for wanted in named.chain(model.runtimes.is_empty().then_some(None)) {
            for engine in &enabled {
                let own = &engine.manifest.runtimes;
                let Some(runtime) = own.iter().find(|r| wanted.is_none_or(|wanted| wanted == *r)) else {
                    continue;
                };
                // An engine that has several of the model's runtimes uses the first.
                if choices.iter().any(|choice| choice.engine.same_name(engine)) {
                    continue;
                }
                let kinds = engine.manifest.devices.iter();
                let devices = kinds.flat_map(|kind| devices.iter().filter(move |d| d.kind == *kind));
                choices.extend(devices.map(|device| Choice {
                    engine: (*engine).clone(),
                    runtime: runtime.clone(),
                    device: DeviceChosen { id: device.id.clone(), kind: device.kind.clone() },
                }));
            }
        }
        if !choices.is_empty() {
            return Ok(choices);
        }
        if enabled.is_empty() && !fitting.is_empty() {
            let names = fitting.iter().map(|e| e.label()).collect::<Vec<_>>().join(", ");
            return Err(format!(
                "every engine for it is disabled: {names}; enable one with `engines enable`"
            ));
        }
        Err(self.missing(model, &enabled, devices))
    }

    /// The first candidate that has not failed its trial with the model, or the first of all.
    pub fn choose(&self, model: &Manifest, devices: &[DeviceInfo]) -> Result<Choice, String> {
        let candidates = self.candidates(model, devices)?;
        let good = candidates.iter().find(|choice| self.failed_trial(&choice.engine, &model.id).is_none());
        Ok(good.or(candidates.first()).cloned().expect("candidates are never empty"))
    }

    fn missing(&self, model: &Manifest, fitting: &[&Engine], devices: &[DeviceInfo]) -> String {
        let what = format!("architecture {} from {}", model.architecture, model.format);
        if let Some(refused) =
            self.refused.iter().find(|r| r.manifest.as_ref().is_some_and(|m| runs(m, model)))
        {
            let name =
                refused.manifest.as_ref().map(|m| format!("{} {}", m.id, m.version)).unwrap_or_default();
            if fitting.is_empty() {
                return format!("engine {name} would run {what}, but it is refused: {}", refused.reason);
            }
        }
        let (with_runtime, others): (Vec<&Engine>, Vec<&Engine>) = fitting.iter().copied().partition(|e| {
            model.runtimes.is_empty() || e.manifest.runtimes.iter().any(|r| model.runtimes.contains(r))
        });
        if !with_runtime.is_empty() {
            let engines =
                with_runtime.iter().map(|e| format!("{} ({})", e.label(), e.manifest.devices.join(", ")));
            let engines = engines.collect::<Vec<_>>().join(", ");
            let have = match devices {
                [] => "no device; start it with `--device cpu` to use its CPU".to_owned(),
                some => some.iter().map(|d| d.id.as_str()).collect::<Vec<_>>().join(", "),
            };
            return format!("no device for {what}: it runs with {engines}, and this node serves with {have}");
        }
        if !others.is_empty() {
            let wanted = model.runtimes.join(" or ");
            let engines = others.iter().map(|e| e.label()).collect::<Vec<_>>().join(", ");
            return format!(
                "no engine with runtime {wanted} is installed; {engines} reads the model but has another runtime"
            );
        }
        if self.engines.is_empty() {
            let dirs = names(&self.dirs);
            return format!("no engine is installed (looked in {dirs}); {what} needs one");
        }
        let format = model.format.as_str();
        let readers: Vec<String> = self
            .engines
            .iter()
            .filter(|e| e.manifest.formats.iter().any(|f| f == format))
            .map(|e| format!("{} ({})", e.label(), e.manifest.architectures.join(", ")))
            .collect();
        if readers.is_empty() {
            let all: Vec<String> = self
                .engines
                .iter()
                .map(|e| format!("{} ({})", e.label(), e.manifest.formats.join(", ")))
                .collect();
            return format!("no engine here reads format {format}; installed: {}", all.join(", "));
        }
        format!("no engine here runs {what}; engines that read {format}: {}", readers.join(", "))
    }
}

fn runs(engine: &EngineManifest, model: &Manifest) -> bool {
    let format = engine.formats.iter().any(|f| f == model.format.as_str());
    format && engine.architectures.iter().any(|a| a == "*" || *a == model.architecture)
}

/// Orders versions as semver does: numbers by value, a pre-release before its release. A manifest's version was checked.
fn version_key(version: &str) -> Option<semver::Version> {
    semver::Version::parse(version).ok()
}
