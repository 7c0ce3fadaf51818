//! Writes the files, after a look at the disk.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use model_formats::gpt_oss::GptOssConfig;
use model_formats::shard_index::INDEX_FILE;
use serde_json::{Map, Value, json};

use crate::fill::Filler;
use crate::plan::Plan;
use crate::{Shape, tokenizer};

/// Bytes made and written at a time.
pub(crate) const PIECE_BYTES: usize = 4 << 20;
/// Room left for everything that is not weights: tokenizer.json of the large shapes has 9 MB.
const OTHER_FILES_BYTES: u64 = 32 << 20;

#[derive(Debug, thiserror::Error)]
pub enum SynthError {
    #[error("{dir} has room for {available} bytes and the checkpoint needs {needed}")]
    DiskFull { dir: PathBuf, needed: u64, available: u64 },
    #[error("cannot write {path}")]
    Write { path: PathBuf, source: io::Error },
    #[error("cannot convert the checkpoint in {dir}")]
    Convert { dir: PathBuf, source: io::Error },
}

/// Writes a checkpoint into `dir`, which is made if it is not there. `progress(done, total)` is told of every few
/// megabytes of weights.
///
/// # Errors
/// Too little room (found out before anything is written), or a file that cannot be written. What was written stays.
pub fn write_checkpoint(
    shape: Shape,
    seed: u64,
    dir: &Path,
    mut progress: impl FnMut(u64, u64),
) -> Result<(), SynthError> {
    let plan = Plan::new(shape);
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| SynthError::Write { path, source }
    };
    fs::create_dir_all(dir).map_err(failed(dir))?;
    check_space(dir, plan.file_bytes() + OTHER_FILES_BYTES)?;

    let mut texts = vec![
        ("config.json", pretty(&shape.config())),
        ("generation_config.json", pretty(&shape.generation_config())),
        ("tokenizer.json", tokenizer::tokenizer_json(shape).to_string()),
        (INDEX_FILE, index(&plan).to_string()),
    ];
    texts.extend(tokenizer::companions(shape).map(|(name, value)| (name, pretty(&value))));
    for (name, text) in texts {
        let path = dir.join(name);
        fs::write(&path, text).map_err(failed(&path))?;
    }

    let config = GptOssConfig::parse(shape.config().to_string().as_bytes())
        .expect("the configs of the known shapes are valid");
    let mut done = 0;
    for shard in &plan.shards {
        let path = dir.join(&shard.name);
        let mut report = |bytes: u64| {
            done += bytes;
            progress(done, plan.tensor_bytes);
        };
        write_shard(shard, &config, seed, &path, &mut report).map_err(failed(&path))?;
    }
    Ok(())
}

fn write_shard(
    shard: &crate::PlannedShard,
    config: &GptOssConfig,
    seed: u64,
    path: &Path,
    report: &mut dyn FnMut(u64),
) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(&shard.head)?;
    let mut piece = vec![0; PIECE_BYTES];
    for tensor in &shard.tensors {
        let mut filler = Filler::new(config, seed, tensor);
        let mut left = tensor.byte_len();
        while left > 0 {
            let bytes = left.min(PIECE_BYTES as u64);
            let piece = &mut piece[..bytes as usize];
            filler.fill(piece);
            file.write_all(piece)?;
            left -= bytes;
            report(bytes);
        }
    }
    file.flush()
}

fn index(plan: &Plan) -> Value {
    let mut map = Map::new();
    for shard in &plan.shards {
        for tensor in &shard.tensors {
            map.insert(tensor.name.clone(), shard.name.clone().into());
        }
    }
    json!({"metadata": {"total_size": plan.tensor_bytes}, "weight_map": map})
}

fn pretty(value: &Value) -> String {
    format!("{value:#}\n")
}

/// Compares with the free space of the disk that `dir` is on, when the system tells which that is. Files of an earlier
/// run that will be overwritten count as room.
pub(crate) fn check_space(dir: &Path, needed: u64) -> Result<(), SynthError> {
    let Ok(free) = fs4::available_space(dir) else { return Ok(()) };
    let overwritten: u64 = fs::read_dir(dir)
        .map(|entries| entries.flatten().filter_map(|e| e.metadata().ok()).map(|m| m.len()).sum())
        .unwrap_or(0);
    let available = free.saturating_add(overwritten);
    if available < needed {
        return Err(SynthError::DiskFull { dir: dir.to_owned(), needed, available });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_that_is_too_small_is_found_before_anything_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let error = check_space(dir.path(), u64::MAX).unwrap_err();
        let SynthError::DiskFull { needed, available, .. } = error else { panic!("{error}") };
        assert!(needed > available && available > 0);
        check_space(dir.path(), 1).unwrap();
    }
}
