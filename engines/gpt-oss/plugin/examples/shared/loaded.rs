//! A checkpoint loaded as the worker loads it, in this process.

use std::error::Error;
use std::path::Path;

use engine_sdk::{Engine, ModelFile, ModelFiles, Progress, Runner, Settings};
use gpt_oss_plugin::GptOss;

pub type Loaded = Runner<<GptOss as Engine>::Model>;

/// The checkpoint in `dir`.
pub fn load(dir: &Path, settings: &Settings) -> Result<Loaded, Box<dyn Error>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        files.push(ModelFile { name, path: entry.path() });
    }
    let files = ModelFiles {
        id: "measured".to_owned(),
        format: "safetensors".to_owned(),
        architecture: "gpt_oss".to_owned(),
        runtime: "gpt-oss".to_owned(),
        primary: "model.safetensors.index.json".to_owned(),
        dir: dir.to_owned(),
        files,
    };
    let mut report = |_, _| true;
    let model = GptOss::load(&files, settings, &[], &mut Progress::new(&mut report))?;
    Ok(Runner::new(model)?)
}

/// The value below which so large a share of the values is; they are sorted.
pub fn percentile(values: &mut [f64], share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let at = (values.len().saturating_sub(1) as f64 * share).round() as usize;
    values.get(at).copied().unwrap_or(f64::NAN)
}
