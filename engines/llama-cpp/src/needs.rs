//! What a model needs in memory, from its header alone.
//!
//! Weights and KV follow from the file. What llama.cpp allocates for the passing results of a graph does not: it is bounded
//! by the widest operations, and README.md has what the bound is off by.

use engine_sdk::{Device, DeviceNeed};

use crate::CPU;
use crate::header::Header;
use crate::native::{PASS_TOKENS_MAX, Tensor};
use crate::options::{KvFormat, Options};

/// Cells come in pieces of so many.
const CELLS_STEP: u64 = 256;
/// What a context has of its own besides: backends, threads, graphs of small models.
const CONTEXT_BYTES: u64 = 8 << 20;
/// What the graphs have for each tensor of the model: eight nodes, in two graphs and their scheduler.
const GRAPH_BYTES_PER_TENSOR: u64 = 10 << 10;

/// Needs on each device, and the numbers they are added up from.
#[derive(Debug, Clone)]
pub(crate) struct Needs {
    pub(crate) devices: Vec<DeviceNeed>,
}

impl Needs {
    pub(crate) fn of(
        header: &Header,
        options: &Options,
        (sequences, context, batch_tokens): (u32, u32, u32),
        devices: &[Device],
    ) -> Needs {
        let weights = Weights::of(header, options);
        let kv = |bounded: bool| -> u64 {
            let layers = header.kv_numbers.iter().zip(&header.windows);
            layers
                .filter(|(_, window)| window.is_some() == bounded)
                .map(|(numbers, _)| options.kv_format.bytes(*numbers))
                .sum()
        };
        let window = header.windows.iter().flatten().copied().max().map_or(0, u64::from);
        let cells = if header.shares_cells(options) { sequences.saturating_mul(context) } else { context };
        let all_cells = u64::from(sequences) * u64::from(context);
        let copied = cast_bytes(header, options, all_cells);
        let passing = passing_bytes(header, (sequences, batch_tokens), cells, copied);
        // Layers with a window have cells for one pass beside those of the window: once where sequences share them, else in
        // every sequence.
        let pass = u64::from(batch_tokens.min(PASS_TOKENS_MAX));
        let (window, shared_pass) = if header.shares_cells(options) {
            (window, pass + CELLS_STEP)
        } else {
            ((window + pass).next_multiple_of(CELLS_STEP), 0)
        };
        let windowed_pass = kv(true) * shared_pass;
        let graphs = header.tensors.len() as u64 * GRAPH_BYTES_PER_TENSOR;
        let host = header.vocabulary_bytes + CONTEXT_BYTES + graphs;
        let on_cpu_alone = devices.iter().all(|device| device.id == CPU);
        let count = devices.iter().filter(|device| on_cpu_alone || device.id != CPU).count().max(1) as u64;
        let of = |device: &Device| {
            let on_host = device.id == CPU;
            if on_host && !on_cpu_alone {
                return DeviceNeed { device: device.id.clone(), workspace: host, ..DeviceNeed::default() };
            }
            let (weights, mapped) =
                if on_host { (weights.copied, weights.mapped) } else { (weights.copied + weights.mapped, 0) };
            DeviceNeed {
                device: device.id.clone(),
                weights: weights.div_ceil(count),
                weights_mapped: mapped,
                workspace: passing + (windowed_pass.div_ceil(count)) + if on_host { host } else { 0 },
                per_sequence: header.state_bytes.div_ceil(count),
                kv_per_token: kv(false).div_ceil(count),
                kv_fixed: (kv(true) * window).div_ceil(count),
            }
        };
        Needs { devices: devices.iter().map(of).collect() }
    }

    /// For whoever chooses the context afterwards: what a pass may look at grows with it, so it stands with the KV as well,
    /// a share with each sequence. Fewer sequences than were asked for, in a context as in `of` or shorter, need no more.
    pub(crate) fn let_context_grow(
        &mut self,
        header: &Header,
        options: &Options,
        (sequences, _, batch_tokens): (u32, u32, u32),
    ) {
        let a_cell = mask_bytes(header, batch_tokens, 1) + score_bytes(header, batch_tokens, 1);
        let share = if header.shares_cells(options) { a_cell } else { a_cell.div_ceil(u64::from(sequences)) };
        let share = share + cast_bytes(header, options, 1);
        let on_cpu_alone = self.devices.iter().all(|need| need.device == CPU);
        let passes = self.devices.iter_mut().filter(|need| on_cpu_alone || need.device != CPU);
        passes.for_each(|need| need.kv_per_token += share);
    }
}

/// Bytes of weights that are copied into private memory, and that stay pages of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Weights {
    copied: u64,
    mapped: u64,
}

impl Weights {
    fn of(header: &Header, options: &Options) -> Weights {
        let mut weights = Weights { copied: 0, mapped: 0 };
        for tensor in &header.tensors {
            let copied = !options.mmap || (options.repack && is_repacked(tensor));
            *if copied { &mut weights.copied } else { &mut weights.mapped } += tensor.bytes;
        }
        weights
    }
}

/// Whether llama.cpp has a faster layout for it on processors of this kind: matrices whose rows come in eights.
fn is_repacked(tensor: &Tensor) -> bool {
    let kinds: &[&str] = if cfg!(target_arch = "x86_64") {
        &["q4_0", "q4_K", "q2_K", "iq4_nl", "mxfp4"]
    } else {
        &["q4_0", "q4_K", "q5_K", "q6_K", "iq4_nl", "mxfp4", "q8_0"]
    };
    let matrix = tensor.dimensions[1] > 1 && tensor.dimensions[1].is_multiple_of(8);
    // Rows of it are looked up, not multiplied.
    matrix && kinds.contains(&tensor.kind.as_str()) && tensor.name != "token_embd.weight"
}

/// What passes between the operations of a graph: of every token in it the widest results that are needed at one time, in f32; what
/// it may look at, in f16, of as many cells as a sequence has; what it is multiplied with in another type. And the logits: in
/// the graph, behind it, and the SDK's copy. `copied` are the keys and values that attention copies.
fn passing_bytes(header: &Header, (sequences, batch_tokens): (u32, u32), cells: u32, copied: u64) -> u64 {
    let tokens = u64::from(batch_tokens);
    if header.embedding.is_some() {
        // llama.cpp makes room for the logits of every token all the same, and where rows look ahead a mask of f32 and f16.
        let scores = if header.keeps_scores { 4 * header.heads } else { 0 };
        let mask = if header.reads_whole() { (6 + scores) * tokens * tokens } else { 0 };
        let widest = (3 * header.intermediate).max(4 * header.queries) + 5 * header.hidden;
        return 4 * tokens * (widest + 2 * header.vocabulary) + mask;
    }
    let tokens = tokens.min(u64::from(PASS_TOKENS_MAX));
    let keys_and_values = header.kv_numbers.iter().copied().max().unwrap_or(0);
    let cells = u64::from(cells).next_multiple_of(CELLS_STEP);
    let mask = mask_bytes(header, batch_tokens, cells);
    // Scores and copies are needed beside what attention makes, and no longer where a layer is at its widest.
    let scores = score_bytes(header, batch_tokens, cells);
    let attention = 4 * tokens * 2 * (header.queries + keys_and_values) + scores + copied;
    let widest = (4 * tokens * 3 * header.intermediate).max(attention) + 4 * tokens * 5 * header.hidden;
    let multiplied = 2 * tokens * header.intermediate.max(header.queries).max(header.hidden);
    let logits = 4 * u64::from(sequences) * header.vocabulary;
    widest.max(logits) + 2 * logits + mask + multiplied
}

/// What the tokens of a pass may look at among so many cells, in f16, and in f32 where scores are kept; of what is embedded
/// `passing_bytes` counts it.
fn mask_bytes(header: &Header, batch_tokens: u32, cells: u64) -> u64 {
    if header.embedding.is_some() {
        return 0;
    }
    let bytes = if header.keeps_scores { 4 } else { 2 };
    bytes * u64::from(batch_tokens.min(PASS_TOKENS_MAX)) * cells
}

/// The scores of every head, of so many cells, in f32, where attention keeps them; of what is embedded `passing_bytes` counts them.
fn score_bytes(header: &Header, batch_tokens: u32, cells: u64) -> u64 {
    if !header.keeps_scores || header.embedding.is_some() {
        return 0;
    }
    4 * header.heads * u64::from(batch_tokens.min(PASS_TOKENS_MAX)) * cells
}

/// Keys and values of one layer in f16, of so many cells over all sequences: attention that keeps no scores takes no others, and
/// copies f32.
fn cast_bytes(header: &Header, options: &Options, cells: u64) -> u64 {
    if options.kv_format != KvFormat::F32 || header.keeps_scores || header.embedding.is_some() {
        return 0;
    }
    2 * header.kv_numbers.iter().copied().max().unwrap_or(0) * cells
}

#[cfg(test)]
pub(crate) mod tests;
