//! What the Rust mirror says, under the header's names.

use std::mem::{offset_of, size_of};

use engine_abi as abi;

use crate::Facts;

fn field_size<S, F>(_: fn(&S) -> &F) -> usize {
    size_of::<F>()
}

macro_rules! structs {
    ($facts:ident, $($c:literal = $rust:ident { $($field:ident),* $(,)? })*) => {$(
        $facts.insert($c.to_owned(), format!("size {}", size_of::<abi::$rust>()));
        $($facts.insert(
            format!("{}.{}", $c, stringify!($field)),
            format!("at {} size {}", offset_of!(abi::$rust, $field), field_size(|s: &abi::$rust| &s.$field)),
        );)*
    )*};
}

macro_rules! constants {
    ($facts:ident, $($name:ident)*) => {$(
        $facts.insert(concat!("LLMR_", stringify!($name)).to_owned(), abi::$name.to_string());
    )*};
}

pub fn facts() -> Facts {
    let mut facts = Facts::new();
    structs! { facts,
        "llmr_status" = Status { struct_size, code, needed, available, reason, message, param }
        "llmr_str" = Str { data, size }
        "llmr_bytes" = Bytes { data, size }
        "llmr_range" = Range { start, end }
        "llmr_device_bytes" = DeviceBytes { device, bytes }
        "llmr_file" = File { name, path }
        "llmr_token_bias" = TokenBias { id, bias }
        "llmr_token_logprob" = TokenLogprob { id, logprob, bytes }
        "llmr_host" = Host { struct_size, abi_major, abi_minor, log_level, context, log }
        "llmr_progress" = Progress { context, report }
        "llmr_info" = Info { struct_size, reserved, id, version }
        "llmr_device" = Device { struct_size, reserved, id, kind, name, memory_total, memory_free }
        "llmr_devices" = Devices { struct_size, count, element_size, items }
        "llmr_model" = Model { struct_size, file_count, id, format, architecture, runtime, model_dir, primary, files }
        "llmr_settings" = Settings { struct_size, context_length, sequences_max, batch_tokens_max, threads, device_count, devices, options_json }
        "llmr_device_need" = DeviceNeed { struct_size, reserved, device, weights, weights_mapped, workspace, per_sequence, kv_per_token, kv_fixed }
        "llmr_estimate" = Estimate { struct_size, count, element_size, items, context_length_max, reserved }
        "llmr_loaded" = Loaded { struct_size, context_length, sequences_max, vocabulary_size, end_token_count, reserved, end_tokens, embedding_size, flags }
        "llmr_tokens" = Tokens { struct_size, count, ids }
        "llmr_sampling" = Sampling { struct_size, flags, seed, temperature, top_p, min_p, presence_penalty, frequency_penalty, repetition_penalty, top_k, tokens_max, tokens_min, logprobs, logit_bias_count, stop_count, stop_token_count, reserved, logit_bias, stop, stop_tokens, begin_with, begin_with_count, reserved2, constraint_kind, reserved3, constraint }
        "llmr_submit" = Submit { struct_size, prompt_kind, sequence, request_id, text, literal, tokens, literal_count, token_count, sampling, cache_salt, task, reserved }
        "llmr_event" = Event { struct_size, kind, sequence, prompt_tokens, cached_tokens, token_id, control, bytes, logprobs, logprob_count, finish_reason, completion_tokens, reserved, status, embedding, embedding_size, reserved2 }
        "llmr_event_sink" = EventSink { context, event }
        "llmr_stats" = Stats { struct_size, sequences_running, sequences_waiting, batch_sequences_max, steps, prompt_tokens, completion_tokens, kv_bytes_used, kv_bytes_total, memory, memory_count, reserved, details_json }
        "llmr_engine_api" = EngineApi { struct_size, abi_major, abi_minor, reserved, info, open, close, devices, estimate, load, unload, tokenize, submit, cancel, step, stats, get_extension }
    }
    constants! { facts,
        ABI_MAJOR ABI_MINOR ENTRY_SYMBOL REASON_BYTES MESSAGE_BYTES PARAM_BYTES LOGPROBS_MAX
        EMBEDDING_SIZE_MAX REASON_NO_EMBEDDINGS REASON_NO_GENERATION LOADED_EMBEDS_ONLY TASK_GENERATE TASK_EMBED
        CONSTRAINT_NONE CONSTRAINT_JSON_SCHEMA CONSTRAINT_LARK
        REASON_CONTEXT_LENGTH_EXCEEDED REASON_EMPTY_PROMPT REASON_INVALID_PROMPT REASON_INVALID_SAMPLING
        REASON_INVALID_SETTINGS REASON_UNKNOWN_OPTION REASON_UNKNOWN_DEVICE REASON_UNSUPPORTED_MODEL
        REASON_MODEL_NOT_LOADED REASON_MODEL_ALREADY_LOADED REASON_SEQUENCE_EXISTS REASON_QUEUE_FULL
        REASON_KV_FULL REASON_BUDGET_EXCEEDED REASON_FILE_UNREADABLE REASON_FILE_CORRUPT REASON_CANCELLED
        REASON_INTERNAL REASON_DEVICE_FAILED REASON_ABI_MISMATCH OK OOM_VRAM OOM_RAM MODEL_CORRUPT TIMEOUT CANCELLED
        UNSUPPORTED INTERNAL ABI_MISMATCH LOAD_FAILED LOG_ERROR LOG_WARN LOG_INFO LOG_DEBUG LOG_TRACE
        SAMPLING_IGNORE_END_TOKENS PROMPT_TEXT PROMPT_TOKENS FINISH_STOP FINISH_LENGTH FINISH_CANCELLED
        EVENT_STARTED EVENT_TOKEN EVENT_FINISHED EVENT_FAILED EVENT_EMBEDDING
    }
    facts
}
