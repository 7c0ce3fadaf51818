//! From Rust to C: views of messages, valid while a call runs. Nothing is copied but small arrays of pointers.

use engine_abi as abi;
use engine_protocol::{
    Constraint, DeviceBytes, LiteralRange, Model, Prompt, Sampling, Settings, Status, StatusCode, Submit,
    Task,
};

pub fn text(s: &str) -> abi::Str {
    abi::Str { data: s.as_ptr().cast(), size: s.len() }
}

pub fn with_model<R>(model: &Model, call: impl FnOnce(&abi::Model) -> R) -> Result<R, Status> {
    let files: Vec<abi::File> =
        model.files.iter().map(|(name, path)| abi::File { name: text(name), path: text(path) }).collect();
    Ok(call(&abi::Model {
        struct_size: size_of::<abi::Model>() as u32,
        file_count: count(files.len(), "files")?,
        id: text(&model.id),
        format: text(&model.format),
        architecture: text(&model.architecture),
        runtime: text(&model.runtime),
        model_dir: text(&model.model_dir),
        primary: text(&model.primary),
        files: files.as_ptr(),
    }))
}

pub fn with_settings<R>(settings: &Settings, call: impl FnOnce(&abi::Settings) -> R) -> Result<R, Status> {
    let devices: Vec<abi::Str> = settings.devices.iter().map(|d| text(d)).collect();
    Ok(call(&abi::Settings {
        struct_size: size_of::<abi::Settings>() as u32,
        context_length: settings.context_length,
        sequences_max: settings.sequences_max,
        batch_tokens_max: settings.batch_tokens_max,
        threads: settings.threads,
        device_count: count(devices.len(), "devices")?,
        devices: devices.as_ptr(),
        options_json: text(&settings.options_json),
    }))
}

pub fn budget(budget: &[DeviceBytes]) -> Vec<abi::DeviceBytes> {
    budget.iter().map(|b| abi::DeviceBytes { device: text(&b.device), bytes: b.bytes }).collect()
}

/// Ranges that the ABI promises to be ascending, inside the text and between characters are checked here, so that no
/// engine has to trust the node for it.
pub fn literal_ranges(prompt: &str, literal: &[LiteralRange]) -> Result<Vec<abi::Range>, Status> {
    let mut end = 0;
    for range in literal {
        let (from, to) = (range.start as usize, range.end as usize);
        let fits = from >= end && from <= to && prompt.is_char_boundary(from) && prompt.is_char_boundary(to);
        if !fits {
            return Err(Status::new(
                StatusCode::Unsupported,
                abi::REASON_INVALID_PROMPT,
                format!(
                    "literal range {from}..{to} overlaps another, cuts a character or leaves the text of {} bytes",
                    prompt.len()
                ),
            ));
        }
        end = to;
    }
    Ok(literal.iter().map(|r| abi::Range { start: r.start, end: r.end }).collect())
}

pub fn with_submit<R>(submit: &Submit, call: impl FnOnce(&abi::Submit) -> R) -> Result<R, Status> {
    let (kind, prompt, literal, tokens): (_, &str, _, &[u32]) = match &submit.prompt {
        Prompt::Text { text, literal } => (abi::PROMPT_TEXT, text, literal_ranges(text, literal)?, &[]),
        Prompt::Tokens(ids) => (abi::PROMPT_TOKENS, "", Vec::new(), ids),
    };
    let with = |task: abi::Task, sampling: *const abi::Sampling| {
        Ok(call(&abi::Submit {
            struct_size: size_of::<abi::Submit>() as u32,
            prompt_kind: kind,
            sequence: submit.sequence,
            request_id: text(&submit.request_id),
            text: text(prompt),
            literal: literal.as_ptr(),
            tokens: tokens.as_ptr(),
            literal_count: count(literal.len(), "literal ranges")?,
            token_count: count(tokens.len(), "prompt tokens")?,
            sampling,
            cache_salt: submit.cache_salt,
            task,
            reserved: 0,
        }))
    };
    match &submit.task {
        Task::Generate(sampling) => with_sampling(sampling, |sampling| with(abi::TASK_GENERATE, sampling))?,
        Task::Embed => with(abi::TASK_EMBED, std::ptr::null()),
    }
}

fn with_sampling<R>(sampling: &Sampling, call: impl FnOnce(&abi::Sampling) -> R) -> Result<R, Status> {
    let bias: Vec<abi::TokenBias> =
        sampling.logit_bias.iter().map(|&(id, bias)| abi::TokenBias { id, bias }).collect();
    let stop: Vec<abi::Str> = sampling.stop.iter().map(|s| text(s)).collect();
    let begin_with: Vec<abi::Str> = sampling.begin_with.iter().map(|s| text(s)).collect();
    let (constraint_kind, constraint) = match &sampling.constraint {
        None => (abi::CONSTRAINT_NONE, ""),
        Some(Constraint::JsonSchema(schema)) => (abi::CONSTRAINT_JSON_SCHEMA, schema.as_str()),
        Some(Constraint::Lark(grammar)) => (abi::CONSTRAINT_LARK, grammar.as_str()),
    };
    let logprobs = match sampling.logprobs {
        None => -1,
        Some(n) => i32::try_from(n).ok().filter(|n| *n <= abi::LOGPROBS_MAX).ok_or_else(|| {
            Status::new(
                StatusCode::Unsupported,
                abi::REASON_INVALID_SAMPLING,
                format!("logprobs is {n}, and at most {} alternatives can be asked for", abi::LOGPROBS_MAX),
            )
        })?,
    };
    Ok(call(&abi::Sampling {
        struct_size: size_of::<abi::Sampling>() as u32,
        flags: if sampling.ignore_end_tokens { abi::SAMPLING_IGNORE_END_TOKENS } else { 0 },
        seed: sampling.seed,
        temperature: sampling.temperature,
        top_p: sampling.top_p,
        min_p: sampling.min_p,
        presence_penalty: sampling.presence_penalty,
        frequency_penalty: sampling.frequency_penalty,
        repetition_penalty: sampling.repetition_penalty,
        top_k: sampling.top_k,
        tokens_max: sampling.tokens_max,
        tokens_min: sampling.tokens_min,
        logprobs,
        logit_bias_count: count(bias.len(), "logit_bias")?,
        stop_count: count(stop.len(), "stop strings")?,
        stop_token_count: count(sampling.stop_tokens.len(), "stop tokens")?,
        reserved: 0,
        logit_bias: bias.as_ptr(),
        stop: stop.as_ptr(),
        stop_tokens: sampling.stop_tokens.as_ptr(),
        begin_with: begin_with.as_ptr(),
        begin_with_count: count(begin_with.len(), "texts of begin_with")?,
        reserved2: 0,
        constraint_kind,
        reserved3: 0,
        constraint: text(constraint),
    }))
}

fn count(length: usize, what: &str) -> Result<u32, Status> {
    u32::try_from(length).map_err(|_| {
        Status::new(
            StatusCode::Unsupported,
            abi::REASON_INVALID_PROMPT,
            format!("{length} {what} are too many"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, ranges: &[(u32, u32)], fits: bool) {
        let ranges: Vec<_> = ranges.iter().map(|&(start, end)| LiteralRange { start, end }).collect();
        assert_eq!(literal_ranges(text, &ranges).is_ok(), fits, "{text:?} {ranges:?}");
    }

    #[test]
    fn literal_ranges_lie_in_order_inside_the_text_and_between_characters() {
        check("abc", &[(0, 3)], true);
        check("abc", &[(0, 1), (1, 3)], true);
        check("abc", &[(3, 3)], true);
        check("abc", &[(0, 4)], false);
        check("abc", &[(2, 1)], false);
        check("abc", &[(1, 2), (0, 1)], false);
        check("abc", &[(0, 2), (1, 3)], false);
        check("é", &[(1, 2)], false);
        check("é", &[(0, 2)], true);
        check("abc", &[(u32::MAX, u32::MAX)], false);
    }
}
