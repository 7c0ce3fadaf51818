//! Opens the files of a model, and says in the ABI's words what is wrong with them.

use std::error::Error;
use std::io;

use engine_sdk::{ModelFiles, Progress, Status, Tokenizer, reason};
use gpt_oss_cpu::mapped::TOUCH_BYTES;
use gpt_oss_cpu::{CpuModel, DenseBytes, Mapped, PrepareError};
use gpt_oss_model::{OpenError, Store};

const TOKENIZER: &str = "tokenizer.json";
/// Longest config or index that is read whole; the parsers have limits of their own.
const SMALL_FILE_BYTES_MAX: u64 = 100 << 20;
/// A loaded tokenizer takes about this many times its file.
const TOKENIZER_GROWTH: u64 = 8;

/// Maps the shards and checks everything but the numbers in them.
///
/// # Errors
/// `MODEL_CORRUPT`, naming file and tensor, or `LOAD_FAILED` when a file cannot be read.
pub(crate) fn open(files: &ModelFiles) -> Result<Store<Mapped>, Status> {
    if files.format != "safetensors" || files.architecture != "gpt_oss" {
        let message =
            format!("{}: {} in {} is not what this engine runs", files.id, files.architecture, files.format);
        return Err(Status::unsupported(reason::UNSUPPORTED_MODEL, message));
    }
    let path = |name: &str| files.find(name).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound));
    let read = |name: &str| {
        let path = path(name)?;
        if path.metadata()?.len() > SMALL_FILE_BYTES_MAX {
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        }
        std::fs::read(path)
    };
    Store::open(&files.primary, read, |name| Mapped::open(path(name)?))
        .map_err(|error| status(&files.id, &error))
}

/// The whole chain of causes in one line.
fn status(model: &str, error: &OpenError) -> Status {
    let mut message = format!("{model}: {error}");
    let mut cause = error.source();
    while let Some(source) = cause {
        message += &format!(": {source}");
        cause = source.source();
    }
    if error.is_corrupt() {
        Status::model_corrupt(reason::FILE_CORRUPT, message)
    } else {
        Status::load_failed(reason::FILE_UNREADABLE, message)
    }
}

/// Memory that the tokenizer will take, as far as its file tells.
pub(crate) fn tokenizer_bytes(files: &ModelFiles) -> Result<u64, Status> {
    let path = files.path(TOKENIZER)?;
    let bytes = path.metadata().map_err(|error| {
        Status::load_failed(
            reason::FILE_UNREADABLE,
            format!("{}: cannot read {TOKENIZER}: {error}", files.id),
        )
    })?;
    Ok(bytes.len().saturating_mul(TOKENIZER_GROWTH))
}

/// The model's tokenizer. It may know fewer ids than the model has rows, never more.
pub(crate) fn tokenizer(files: &ModelFiles, vocabulary: usize) -> Result<Tokenizer, Status> {
    let tokenizer = Tokenizer::from_file(files.path(TOKENIZER)?)?;
    let known = tokenizer.vocabulary_size();
    if known as usize > vocabulary {
        let message = format!(
            "{}: {TOKENIZER} has ids up to {}, and config.json says the model has {vocabulary}",
            files.id,
            known - 1
        );
        return Err(Status::model_corrupt(reason::FILE_CORRUPT, message));
    }
    Ok(tokenizer)
}

/// Reads every page of the weights that a model uses once, telling how far it is: `done` of `total` bytes at first.
pub(crate) fn touch(
    model: &CpuModel,
    mut done: u64,
    total: u64,
    progress: &mut Progress<'_>,
) -> Result<(), Status> {
    for (shard, range) in model.parts_read() {
        for start in range.clone().step_by(TOUCH_BYTES) {
            let piece = start..range.end.min(start + TOUCH_BYTES);
            model.store().shards()[shard].touch(piece.clone()).map_err(|error| {
                let name = &model.store().checkpoint().shards[shard];
                Status::load_failed(
                    reason::FILE_UNREADABLE,
                    format!("{name}: cannot read at byte {start}: {error}"),
                )
            })?;
            done += piece.len() as u64;
            progress.report(done.min(total), total)?;
        }
    }
    Ok(())
}

/// Makes the eight-bit copy, telling how far it is. Returns the bytes of weights that were read.
pub(crate) fn prepare_int8(
    model: &mut CpuModel,
    total: u64,
    progress: &mut Progress<'_>,
) -> Result<u64, Status> {
    let prepared = model.prepare_int8(|done| progress.report(done, total));
    let bytes = DenseBytes::of(model.config());
    match prepared {
        Ok(()) => Ok(bytes.replaced),
        Err(PrepareError::Stopped(status)) => Err(status),
        Err(PrepareError::Io(error)) => Err(Status::load_failed(
            reason::FILE_UNREADABLE,
            format!("cannot make the eight-bit copy of {} bytes: {error}", bytes.copy),
        )),
    }
}
