//! What the host passes in, as values of this crate. Everything is copied.

use std::{ops::Range, path::PathBuf};

use engine_abi as c;

use crate::{
    Constraint, DeviceBytes, ModelFile, ModelFiles, Progress, Prompt, Sampling, SequenceId, Settings, Status,
    StatusCode, Task, reason,
};

/// Structs that begin with `struct_size` and are nothing but integers, floats and pointers that may be null.
///
/// # Safety
/// All bytes zero is a value of the type, and its first field is a `u32` called `struct_size`.
pub(super) unsafe trait Sized32: Copy {}

// SAFETY: repr(C), integers, raw pointers and `Option<fn>` only, `struct_size` first.
unsafe impl Sized32 for c::Host {}
// SAFETY: as above.
unsafe impl Sized32 for c::Model {}
// SAFETY: as above.
unsafe impl Sized32 for c::Settings {}
// SAFETY: as above.
unsafe impl Sized32 for c::Submit {}
// SAFETY: as above, and floats.
unsafe impl Sized32 for c::Sampling {}
// SAFETY: as above.
unsafe impl Sized32 for c::Devices {}
// SAFETY: as above.
unsafe impl Sized32 for c::Estimate {}
// SAFETY: as above.
unsafe impl Sized32 for c::Loaded {}
// SAFETY: as above.
unsafe impl Sized32 for c::Tokens {}
// SAFETY: as above.
unsafe impl Sized32 for c::Stats {}
// SAFETY: as above, and arrays of characters.
unsafe impl Sized32 for c::Status {}

pub(super) fn not_null<T>(pointer: *const T, name: &str) -> Result<(), Status> {
    if pointer.is_null() {
        return Err(Status::internal(reason::NULL_ARGUMENT, format!("the host passed null as {name}")));
    }
    if !pointer.is_aligned() {
        return Err(Status::internal(
            reason::NULL_ARGUMENT,
            format!("the host passed {name} at an odd address"),
        ));
    }
    Ok(())
}

/// A struct of the host: the fields that its `struct_size` covers, and 0 in the others.
///
/// # Safety
/// `pointer` is null or points to as many bytes as its `struct_size` says.
pub(super) unsafe fn sized<T: Sized32>(pointer: *const T, name: &str) -> Result<T, Status> {
    not_null(pointer, name)?;
    // SAFETY: Sized32: the first field is the u32 struct_size.
    let size = unsafe { pointer.cast::<u32>().read() } as usize;
    if size < size_of::<u32>() {
        let message = format!("{name}.struct_size is {size}, which does not cover itself");
        return Err(Status::new(StatusCode::AbiMismatch, reason::ABI_MISMATCH, message));
    }
    let mut value = std::mem::MaybeUninit::<T>::zeroed();
    // SAFETY: no more than what struct_size covers is read, no more than a T written; zeros are a value (Sized32).
    unsafe {
        std::ptr::copy_nonoverlapping(
            pointer.cast::<u8>(),
            value.as_mut_ptr().cast(),
            size.min(size_of::<T>()),
        );
        Ok(value.assume_init())
    }
}

/// # Safety
/// `data` is null or points to `count` values that live for `'a`.
unsafe fn slice<'a, T>(data: *const T, count: usize, name: &str) -> Result<&'a [T], Status> {
    if count == 0 {
        return Ok(&[]);
    }
    not_null(data, name)?;
    if count.checked_mul(size_of::<T>()).is_none_or(|bytes| bytes > isize::MAX as usize) {
        return Err(Status::internal(reason::NULL_ARGUMENT, format!("the host passed {count} of {name}")));
    }
    // SAFETY: not null, aligned, of a possible size, and the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(data, count) })
}

/// # Safety
/// `text` points to `size` bytes, or is empty.
unsafe fn text(text: c::Str, name: &str) -> Result<String, Status> {
    // SAFETY: the caller's promise.
    let bytes = unsafe { slice(text.data.cast::<u8>(), text.size, name) }?;
    let text = std::str::from_utf8(bytes)
        .map_err(|e| Status::internal(reason::INTERNAL, format!("{name} is not UTF-8: {e}")))?;
    Ok(text.to_owned())
}

/// # Safety
/// As [`text`].
pub(super) unsafe fn prompt_text(prompt: c::Str) -> Result<String, Status> {
    // SAFETY: the caller's promise.
    let bytes = unsafe { slice(prompt.data.cast::<u8>(), prompt.size, "text") }?;
    let text = std::str::from_utf8(bytes).map_err(|e| {
        Status::unsupported(reason::INVALID_PROMPT, format!("the prompt is not UTF-8: {e}"))
            .with_param("text")
    })?;
    Ok(text.to_owned())
}

/// # Safety
/// As [`text`].
unsafe fn sampling_text(text: c::Str, field: &'static str) -> Result<String, Status> {
    // SAFETY: the caller's promise.
    let bytes = unsafe { slice(text.data.cast::<u8>(), text.size, field) }?;
    let text = std::str::from_utf8(bytes).map_err(|e| {
        Status::unsupported(reason::INVALID_SAMPLING, format!("a text of {field} is not UTF-8: {e}"))
            .with_param(field)
    })?;
    Ok(text.to_owned())
}

/// # Safety
/// `literal` points to `count` ranges, or `count` is 0.
pub(super) unsafe fn literal(literal: *const c::Range, count: u32) -> Result<Vec<Range<usize>>, Status> {
    // SAFETY: the caller's promise.
    let ranges = unsafe { slice(literal, count as usize, "literal") }?;
    Ok(ranges.iter().map(|r| r.start as usize..r.end as usize).collect())
}

/// # Safety
/// `model` is null or a live `llmr_model`.
pub(super) unsafe fn model(model: *const c::Model) -> Result<ModelFiles, Status> {
    // SAFETY: the caller's promise, here and for everything the struct points to.
    unsafe {
        let model = sized(model, "model")?;
        let files = slice(model.files, model.file_count as usize, "model.files")?;
        Ok(ModelFiles {
            id: text(model.id, "model.id")?,
            format: text(model.format, "model.format")?,
            architecture: text(model.architecture, "model.architecture")?,
            runtime: text(model.runtime, "model.runtime")?,
            dir: PathBuf::from(text(model.model_dir, "model.model_dir")?),
            primary: text(model.primary, "model.primary")?,
            files: files
                .iter()
                .map(|file| {
                    Ok(ModelFile {
                        name: text(file.name, "name of a file")?,
                        path: PathBuf::from(text(file.path, "path of a file")?),
                    })
                })
                .collect::<Result<_, Status>>()?,
        })
    }
}

/// # Safety
/// `settings` is null or a live `llmr_settings`.
pub(super) unsafe fn settings(settings: *const c::Settings) -> Result<Settings, Status> {
    let some = |value: u32| (value != 0).then_some(value);
    // SAFETY: the caller's promise, here and for everything the struct points to.
    unsafe {
        let settings = sized(settings, "settings")?;
        let devices = slice(settings.devices, settings.device_count as usize, "settings.devices")?;
        Ok(Settings {
            devices: devices.iter().map(|d| text(*d, "a device id")).collect::<Result<_, Status>>()?,
            context_length: some(settings.context_length),
            sequences_max: some(settings.sequences_max),
            batch_tokens_max: some(settings.batch_tokens_max),
            threads: some(settings.threads),
            options_json: text(settings.options_json, "settings.options_json")?,
        })
    }
}

/// # Safety
/// `budget` points to `count` entries, or `count` is 0.
pub(super) unsafe fn budget(budget: *const c::DeviceBytes, count: u32) -> Result<Vec<DeviceBytes>, Status> {
    // SAFETY: the caller's promise.
    let budget = unsafe { slice(budget, count as usize, "budget") }?;
    budget
        .iter()
        // SAFETY: the caller's promise.
        .map(|b| Ok(DeviceBytes { device: unsafe { text(b.device, "a device id") }?, bytes: b.bytes }))
        .collect()
}

/// A sequence as the host submits it.
#[derive(Debug)]
pub(super) struct Submission {
    pub sequence: SequenceId,
    pub request_id: String,
    pub prompt: Prompt,
    pub task: Task,
    /// Whose cached KV it may use.
    pub cache_salt: u64,
}

/// # Safety
/// `submit` is null or a live `llmr_submit`.
pub(super) unsafe fn submit(submit: *const c::Submit) -> Result<Submission, Status> {
    // SAFETY: the caller's promise, here and for everything the struct points to.
    unsafe {
        let submit = sized(submit, "submit")?;
        let prompt = match submit.prompt_kind {
            c::PROMPT_TEXT => Prompt::Text {
                text: prompt_text(submit.text)?,
                literal: literal(submit.literal, submit.literal_count)?,
            },
            c::PROMPT_TOKENS => {
                Prompt::Tokens(slice(submit.tokens, submit.token_count as usize, "tokens")?.to_vec())
            }
            other => {
                let message = format!("prompt_kind is {other}; it must be text (0) or tokens (1)");
                return Err(Status::unsupported(reason::INVALID_PROMPT, message).with_param("prompt_kind"));
            }
        };
        let task = match submit.task {
            c::TASK_GENERATE => Task::Generate(sampling(&sized(submit.sampling, "sampling")?)?),
            c::TASK_EMBED => Task::Embed,
            other => {
                let message = format!("task is {other}; it must be generate (0) or embed (1)");
                return Err(Status::unsupported(reason::INVALID_PROMPT, message).with_param("task"));
            }
        };
        Ok(Submission {
            sequence: submit.sequence,
            request_id: text(submit.request_id, "request_id")?,
            prompt,
            task,
            cache_salt: submit.cache_salt,
        })
    }
}

/// # Safety
/// What the struct points to is live.
unsafe fn sampling(from: &c::Sampling) -> Result<Sampling, Status> {
    if from.flags & !c::SAMPLING_IGNORE_END_TOKENS != 0 {
        let message = format!("flags is {:#x}, with bits that are not known", from.flags);
        return Err(Status::unsupported(reason::INVALID_SAMPLING, message).with_param("flags"));
    }
    if from.logprobs < -1 {
        let message = format!("logprobs is {}; it must be -1 to {}", from.logprobs, c::LOGPROBS_MAX);
        return Err(Status::unsupported(reason::INVALID_SAMPLING, message).with_param("logprobs"));
    }
    // SAFETY: the caller's promise.
    let (biases, stops, stop_tokens, begin_with) = unsafe {
        (
            slice(from.logit_bias, from.logit_bias_count as usize, "logit_bias")?,
            slice(from.stop, from.stop_count as usize, "stop")?,
            slice(from.stop_tokens, from.stop_token_count as usize, "stop_tokens")?,
            slice(from.begin_with, from.begin_with_count as usize, "begin_with")?,
        )
    };
    // SAFETY: the caller's promise.
    let constraint = unsafe { constraint(from) }?;
    Ok(Sampling {
        temperature: from.temperature,
        top_p: from.top_p,
        top_k: from.top_k,
        min_p: from.min_p,
        seed: from.seed,
        presence_penalty: from.presence_penalty,
        frequency_penalty: from.frequency_penalty,
        repetition_penalty: from.repetition_penalty,
        logit_bias: biases.iter().map(|b| (b.id, b.bias)).collect(),
        tokens_max: from.tokens_max,
        tokens_min: from.tokens_min,
        stop: stops
            .iter()
            // SAFETY: the caller's promise.
            .map(|s| unsafe { slice(s.data.cast::<u8>(), s.size, "a string of stop") }.map(<[u8]>::to_vec))
            .collect::<Result<_, Status>>()?,
        stop_tokens: stop_tokens.to_vec(),
        ignore_end_tokens: from.flags & c::SAMPLING_IGNORE_END_TOKENS != 0,
        logprobs: u32::try_from(from.logprobs).ok(),
        begin_with: begin_with
            .iter()
            // SAFETY: the caller's promise.
            .map(|s| unsafe { sampling_text(*s, "begin_with") })
            .collect::<Result<_, Status>>()?,
        constraint,
    })
}

/// # Safety
/// What the struct points to is live.
unsafe fn constraint(from: &c::Sampling) -> Result<Option<Constraint>, Status> {
    let kind = match from.constraint_kind {
        c::CONSTRAINT_NONE => return Ok(None),
        c::CONSTRAINT_JSON_SCHEMA => grammar::Kind::JsonSchema,
        c::CONSTRAINT_LARK => grammar::Kind::Lark,
        other => {
            let message = format!("constraint_kind is {other}, which is not known");
            return Err(Status::unsupported(reason::INVALID_SAMPLING, message).with_param("constraint"));
        }
    };
    // SAFETY: the caller's promise.
    let text = unsafe { sampling_text(from.constraint, "constraint") }?;
    Ok(Some(Constraint { kind, text }))
}

/// The host's progress callback; a host without one is never told and never stops.
pub(super) struct Report {
    progress: Option<c::Progress>,
}

/// # Safety
/// `progress` is null or a live `llmr_progress`, and what it points to stays so as long as the result is used.
pub(super) unsafe fn progress(progress: *const c::Progress) -> Report {
    let sound = !progress.is_null() && progress.is_aligned();
    // SAFETY: not null, aligned, and the caller's promise.
    Report { progress: sound.then(|| unsafe { progress.read() }) }
}

impl Report {
    /// Runs `work` with a [`Progress`] that reports to the host.
    pub fn with<T>(&mut self, work: impl FnOnce(&mut Progress<'_>) -> T) -> T {
        let progress = self.progress;
        let mut report = |done, total| {
            let Some(c::Progress { context, report: Some(report) }) = progress else { return true };
            // SAFETY: live, by the promise of `progress`.
            let answer = unsafe { report(context, done, total) };
            answer == 0
        };
        work(&mut Progress::new(&mut report))
    }
}
