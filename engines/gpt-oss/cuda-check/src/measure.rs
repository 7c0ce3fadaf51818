//! `model` and `roofline`: times, memory, and shares of what the device can do.

use std::convert::Infallible;
use std::path::Path;
use std::time::Instant;

use anyhow::{Result, anyhow};
use gpt_oss_cuda::ops::embed::chosen;
use gpt_oss_cuda::plan::BLOCK_TOKENS;
use gpt_oss_cuda::{Bounds, CudaModel, Span};
use serde_json::json;

use crate::report::Report;
use crate::{Place, checkpoint, open};

const DECODE_BATCHES: [usize; 5] = [1, 8, 32, 64, 128];
const PREFILLS: [usize; 3] = [512, 4096, 16_384];
const LONG_CONTEXT: usize = 32_768;
/// Tokens of a prompt that are read in one step.
const CHUNK: usize = 2048;
/// Context of the decode rows.
const CONTEXT: usize = 256;
/// Steps of a decode row. The first ones, which also record, are not counted.
const STEPS: usize = 64;
const STEPS_BEFORE: usize = 4;
/// Sizes of the kernels' rows.
const TOKENS: [usize; 5] = [1, 8, 64, 512, 4096];

pub fn model(place: &Place, folder: &Path, report: &mut Report) -> Result<()> {
    let store = checkpoint(folder)?;
    let config = store.config().clone();
    let device = open(place)?;
    let before = device.info()?;
    let context = LONG_CONTEXT.min(config.context_length_max as usize);
    let bounds = Bounds {
        context_length: context,
        sequences_max: DECODE_BATCHES[DECODE_BATCHES.len() - 1],
        batch_tokens_max: CHUNK,
        // Each row has blocks of its own in both kinds of groups.
        blocks: 2 * (context / BLOCK_TOKENS).max(128 * (CONTEXT / BLOCK_TOKENS + 1)),
    };
    let start = Instant::now();
    let known = vec![true; config.vocabulary];
    let loaded = CudaModel::load(device, &config, &store, bounds, &known, |_| Ok::<(), Infallible>(()));
    let mut model = loaded.map_err(|error| anyhow!("the load failed: {error:?}"))?;
    let seconds = start.elapsed().as_secs_f64();
    let used = before.memory_free - model.device().info()?.memory_free;
    let bytes = store.checkpoint().tensor_bytes();
    report.seen(
        "load",
        json!({ "device": before.name, "seconds": seconds, "gb_a_second": bytes as f64 / seconds / 1e9,
            "estimate_bytes": model.needs().total(), "used_bytes": used, "driver_bytes": before.driver_bytes,
            "estimate_over_used": model.needs().total() as f64 / used as f64 }),
    );
    for batch in DECODE_BATCHES {
        let seconds = decode(&mut model, batch, CONTEXT)?;
        report.seen(
            "decode",
            json!({ "batch": batch, "context": CONTEXT, "milliseconds": seconds * 1e3,
                "tokens_a_second": batch as f64 / seconds }),
        );
    }
    let seconds = decode(&mut model, 1, context - STEPS - STEPS_BEFORE)?;
    report.seen(
        "decode",
        json!({ "batch": 1, "context": context, "milliseconds": seconds * 1e3, "tokens_a_second": 1.0 / seconds }),
    );
    for tokens in PREFILLS.into_iter().filter(|t| *t <= context) {
        let seconds = prefill(&mut model, tokens)?;
        report.seen(
            "prefill",
            json!({ "tokens": tokens, "seconds": seconds, "tokens_a_second": tokens as f64 / seconds }),
        );
    }
    Ok(())
}

/// Blocks of a row in each group.
fn tables(model: &CudaModel, row: usize, positions: usize) -> Vec<Vec<u32>> {
    let groups = model.groups().windows.len();
    let each = positions.div_ceil(BLOCK_TOKENS);
    let all = model.bounds().blocks;
    // Rows beyond what there is share blocks: nobody reads what they say.
    let block = |group: usize, i: usize| (((row * groups + group) * each + i) % all) as u32;
    (0..groups).map(|group| (0..each).map(|i| block(group, i)).collect()).collect()
}

/// Seconds of a step in which every row has one token, the one that the step before chose: each step is launched before the
/// tokens of the last one are waited for. What the context says is whatever memory holds.
fn decode(model: &mut CudaModel, batch: usize, context: usize) -> Result<f64> {
    let end = context + STEPS + STEPS_BEFORE;
    let rows: Vec<Vec<Vec<u32>>> = (0..batch).map(|row| tables(model, row, end)).collect();
    let (sampling, history) = (engine_sdk::Sampling::default(), engine_sdk::History::default());
    let draw = engine_sdk::Draw { sampling: &sampling, history: &history, position: 0, only: None };
    let draws = vec![draw; batch];
    let mut start = Instant::now();
    let tokens: Vec<[u32; 1]> = (0..batch as u32).map(|draw| [chosen(draw)]).collect();
    for step in 0..STEPS + STEPS_BEFORE {
        if step == STEPS_BEFORE {
            start = Instant::now();
        }
        let spans: Vec<Span<'_>> = rows
            .iter()
            .zip(&tokens)
            .map(|(tables, token)| Span {
                position: context + step,
                tokens: if step == 0 { &[1] } else { token },
                tables: tables.iter().map(|blocks| (0, &blocks[..])).collect(),
                wants_logits: true,
            })
            .collect();
        model.launch(&spans, &draws, &[])?;
        if step > 0 {
            // A row's own error, such as logits that are no numbers, does not change the time.
            let _ = model.collect()?;
        }
    }
    let _ = model.collect()?;
    Ok(start.elapsed().as_secs_f64() / STEPS as f64)
}

/// Seconds of a prompt, in chunks, up to its first token's logits.
fn prefill(model: &mut CudaModel, tokens: usize) -> Result<f64> {
    let tables = tables(model, 0, tokens);
    let vocabulary = model.config().vocabulary as u32;
    let prompt: Vec<u32> = (0..tokens as u32).map(|i| i.wrapping_mul(2_654_435_761) % vocabulary).collect();
    let mut logits = [0.0; 1];
    let start = Instant::now();
    for (n, chunk) in prompt.chunks(CHUNK).enumerate() {
        let position = n * CHUNK;
        let span = Span {
            position,
            tokens: chunk,
            tables: tables.iter().map(|blocks| (0, &blocks[..])).collect(),
            wants_logits: position + chunk.len() == tokens,
        };
        model.launch(&[span], &[], &[])?;
        let _ = model.collect()?;
    }
    model.logits(0, &mut logits)?;
    Ok(start.elapsed().as_secs_f64())
}

pub fn roofline(place: &Place, report: &mut Report) -> Result<()> {
    gpt_oss_cuda::roofline::roofline::<anyhow::Error>(
        &TOKENS,
        || open(place),
        |row| {
            report.seen(
                "kernel",
                json!({ "operator": row.operator, "tokens": row.tokens, "microseconds": row.seconds * 1e6,
                "gb_a_second": row.bytes_a_second / 1e9, "share_of_bandwidth": row.share_of_bandwidth,
                "tflop_a_second": row.operations_a_second / 1e12, "share_of_peak": row.share_of_peak }),
            );
        },
    )
}
