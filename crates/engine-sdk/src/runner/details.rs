//! Puts what the scheduler knows into the figures that a model gives of itself.

use serde_json::{Map, Value, json};

use crate::{MemoryUse, scheduler::Scheduler};

/// `kv_bytes_*` from the blocks, where there are any, and the objects `kv` and `prefill` in `details_json`.
pub(super) fn memory(mut memory: MemoryUse, scheduler: &Scheduler) -> MemoryUse {
    let mut details = match serde_json::from_str(&memory.details_json) {
        Ok(Value::Object(details)) => details,
        // An engine's own mistake stays visible, and costs nobody the rest.
        Ok(other) => Map::from_iter([("details".to_owned(), other)]),
        Err(_) => Map::new(),
    };
    if let Some(kv) = scheduler.kv() {
        let (layout, pool, counts) = (kv.layout(), kv.pool(), scheduler.counts());
        memory.kv_bytes_used = pool.used() * layout.block_bytes;
        memory.kv_bytes_total = u64::from(layout.blocks) * layout.block_bytes;
        details.insert(
            "kv".to_owned(),
            json!({
                "block_tokens": layout.block_tokens,
                "block_bytes": layout.block_bytes,
                "blocks": layout.blocks,
                "blocks_used": pool.used(),
                // Free for whoever needs them, and until then found again.
                "blocks_kept": pool.kept(),
                "blocks_free": pool.free(),
                "blocks_reused": counts.reused_blocks,
                "blocks_evicted": kv.evicted(),
                "cached_tokens": counts.cached_tokens,
                "preemptions": counts.preemptions,
            }),
        );
    }
    let pace = scheduler.pace();
    details.insert(
        "prefill".to_owned(),
        json!({
            "gap_ms": pace.gap().as_millis() as u64,
            "chunk_tokens": pace.chunk(),
            "tokens_per_second": pace.prefill_rate().map(f64::round),
            "decode_step_ms": pace.decode_seconds().map(|seconds| (seconds * 1e6).round() / 1e3),
        }),
    );
    memory.details_json = Value::Object(details).to_string();
    memory
}
