//! Opens the files of a model, and says in the ABI's words what is wrong with them.

use std::error::Error;
use std::io;

use engine_sdk::{ModelFiles, Progress, Settings, Status, Tokenizer, log, reason};
use gpt_oss_cpu::mapped::TOUCH_BYTES;
use gpt_oss_cpu::{CpuModel, DenseBytes, Mapped, PrepareError};
use gpt_oss_model::{GptOssConfig, OpenError, Store};
use model_formats::METAL_FILE;
use serde_json::Value;

/// The option of all devices that turns files such as `model.metal.bin` off.
pub(crate) const ARTIFACTS: &str = "artifacts";
const TOKENIZER: &str = "tokenizer.json";
/// Longest config or index that is read whole; the parsers have limits of their own.
const SMALL_FILE_BYTES_MAX: u64 = 100 << 20;
/// A loaded tokenizer takes about this many times its file.
const TOKENIZER_GROWTH: u64 = 8;

/// An opened model.
pub(crate) struct Opened {
    pub(crate) store: Store<Mapped>,
    /// Which of its forms runs, and why: for people.
    pub(crate) runs: String,
}

/// Maps the weights and checks everything but the numbers in them: `model.metal.bin` where it is among the files and is this
/// model's, otherwise the safetensors. Which one it is, and why, is told, never left to be guessed.
///
/// # Errors
/// `MODEL_CORRUPT`, naming file and tensor, or `LOAD_FAILED` when a file cannot be read.
pub(crate) fn open(files: &ModelFiles, settings: &Settings) -> Result<Opened, Status> {
    const ARTIFACT: &str = METAL_FILE;
    let published = |why: &str| {
        let store = open_published(files)?;
        Ok(Opened { store, runs: format!("runs from the safetensors{why}") })
    };
    let Some(path) = files.find(ARTIFACT) else { return published("") };
    if !wants_artifacts(settings)? {
        return published(&format!(": the option {ARTIFACTS} is off, {ARTIFACT} is not used"));
    }
    let opened = match Mapped::open(path) {
        Ok(bytes) => Store::open_metal(ARTIFACT, bytes, |name| read_small(files, name)),
        Err(source) => Err(OpenError::Read { file: ARTIFACT.to_owned(), source }),
    };
    match opened {
        Ok(store) => Ok(Opened { store, runs: format!("runs from {ARTIFACT}") }),
        Err(error) => {
            let why = chain(&error);
            log::warn(format_args!("{}: {ARTIFACT} cannot be used: {why}", files.id));
            published(&format!(": {ARTIFACT} cannot be used: {why}"))
        }
    }
}

/// The option `artifacts` of every device: "on", which is the default, or "off".
fn wants_artifacts(settings: &Settings) -> Result<bool, Status> {
    if settings.options_json.is_empty() {
        return Ok(true);
    }
    // Whether it is an object with known keys is looked at where the others are.
    let options: Value = serde_json::from_str(&settings.options_json).unwrap_or_default();
    match &options[ARTIFACTS] {
        Value::Null => Ok(true),
        Value::String(word) if word == "on" => Ok(true),
        Value::String(word) if word == "off" => Ok(false),
        other => {
            let message = format!("option {ARTIFACTS} is {other}, not one of: on, off");
            Err(Status::unsupported(reason::INVALID_SETTINGS, message).with_param(ARTIFACTS))
        }
    }
}

fn read_small(files: &ModelFiles, name: &str) -> io::Result<Vec<u8>> {
    let path = files.find(name).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
    if path.metadata()?.len() > SMALL_FILE_BYTES_MAX {
        return Err(io::Error::from(io::ErrorKind::FileTooLarge));
    }
    std::fs::read(path)
}

fn open_published(files: &ModelFiles) -> Result<Store<Mapped>, Status> {
    if files.format != "safetensors" || files.architecture != "gpt_oss" {
        let message =
            format!("{}: {} in {} is not what this engine runs", files.id, files.architecture, files.format);
        return Err(Status::unsupported(reason::UNSUPPORTED_MODEL, message));
    }
    let path = |name: &str| files.find(name).ok_or_else(|| io::Error::from(io::ErrorKind::NotFound));
    Store::open(&files.primary, |name| read_small(files, name), |name| Mapped::open(path(name)?))
        .map_err(|error| status(&files.id, &error))
}

/// The whole chain of causes in one line.
fn chain(error: &OpenError) -> String {
    let mut message = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        message += &format!(": {source}");
        cause = source.source();
    }
    message
}

fn status(model: &str, error: &OpenError) -> Status {
    let message = format!("{model}: {}", chain(error));
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

/// The model's tokenizer. It may know fewer ids than the config says, never more. A `model.bin` ends with the sixteenth
/// special token: a prompt that has one of the few reserved ones behind it is refused by the SDK.
pub(crate) fn tokenizer(files: &ModelFiles) -> Result<Tokenizer, Status> {
    let config = read_small(files, "config.json").map_err(|error| {
        Status::load_failed(
            reason::FILE_UNREADABLE,
            format!("{}: cannot read config.json: {error}", files.id),
        )
    })?;
    let config = GptOssConfig::parse(&config)
        .map_err(|error| Status::model_corrupt(reason::FILE_CORRUPT, format!("{}: {error}", files.id)))?;
    let vocabulary = config.vocabulary;
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
