//! What lies where in a device's memory. Estimate and load both come from here, so that they cannot differ.

use gpt_oss_model::{Attention, GptOssConfig};

use crate::ops::attention_decode;
use crate::step::StepLayout;

/// Positions of a block of the KV; the kernels have the same number.
pub const BLOCK_TOKENS: usize = 64;
/// The one size of a head there are kernels for; every published model has it.
pub const HEAD_DIM: usize = 64;
/// Query heads that share keys, at most: as many as `attention_decode.cu` keeps sums of.
pub const GROUP_MAX: usize = 16;
/// Experts of a token at most: `CHOSEN_MAX` of `route.cu`.
pub const CHOSEN_MAX: usize = 8;
/// Everything begins at a multiple of this.
const ALIGNMENT: u64 = 256;
/// An allocation of the driver is a multiple of this.
pub const PAGE_BYTES: u64 = 2 << 20;

/// What a loaded model is to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    pub context_length: usize,
    pub sequences_max: usize,
    pub batch_tokens_max: usize,
    /// Blocks of KV, of all sequences and groups.
    pub blocks: usize,
}

/// Bytes of device memory, by what they are for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Needs {
    pub weights: u64,
    pub kv: u64,
    pub workspace: u64,
}

impl Needs {
    pub fn of(config: &GptOssConfig, bounds: Bounds, processors: u32) -> Needs {
        let page = |bytes: u64| bytes.next_multiple_of(PAGE_BYTES);
        let layers = config.layers.len() as u64 * page(LayerLayout::of(config).bytes);
        Needs {
            weights: layers + page(EndsLayout::of(config).bytes),
            kv: page(bounds.blocks as u64 * KvGroups::of(config).block_bytes(config)),
            workspace: page(Workspace::of(config, bounds, processors).bytes),
        }
    }

    pub fn total(&self) -> u64 {
        self.weights + self.kv + self.workspace
    }
}

/// Why this model has no kernels; none when it has.
pub fn unsupported(config: &GptOssConfig) -> Option<String> {
    if config.head_dim != HEAD_DIM {
        return Some(format!("heads of {} numbers; the CUDA kernels are for {HEAD_DIM}", config.head_dim));
    }
    let group = config.heads / config.kv_heads;
    if group > GROUP_MAX {
        return Some(format!("{group} query heads for each key; the CUDA kernels are for up to {GROUP_MAX}"));
    }
    if config.experts_per_token > CHOSEN_MAX {
        let chosen = config.experts_per_token;
        return Some(format!("{chosen} experts for each token; the CUDA kernels are for up to {CHOSEN_MAX}"));
    }
    None
}

/// Places one after the other in an allocation.
#[derive(Debug, Default)]
pub struct Layouter {
    bytes: u64,
}

impl Layouter {
    /// The offset of so many bytes.
    pub fn place(&mut self, bytes: usize) -> u64 {
        let at = self.bytes.next_multiple_of(ALIGNMENT);
        self.bytes = at + bytes as u64;
        at
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// How layers share the blocks of the KV: groups of equally many layers of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvGroups {
    /// Of each group, how many positions a token looks back at, its own included; none: all.
    pub windows: Vec<Option<usize>>,
    /// Of each layer: its group, and its place in it.
    pub layers: Vec<(usize, usize)>,
    pub layers_a_group: usize,
}

impl KvGroups {
    pub fn of(config: &GptOssConfig) -> KvGroups {
        let sliding = config.layers.iter().filter(|l| **l == Attention::Sliding).count();
        let layers_a_group = greatest_common_divisor(sliding, config.layers.len() - sliding).max(1);
        let mut groups = KvGroups { windows: Vec::new(), layers: Vec::new(), layers_a_group };
        // The group of each kind that still has places, and how many are taken.
        let mut open = [(0, layers_a_group); 2];
        for &kind in &config.layers {
            let (group, taken) = &mut open[usize::from(kind == Attention::Full)];
            if *taken == layers_a_group {
                (*group, *taken) = (groups.windows.len(), 0);
                groups.windows.push((kind == Attention::Sliding).then_some(config.sliding_window));
            }
            groups.layers.push((*group, *taken));
            *taken += 1;
        }
        groups
    }

    pub fn block_bytes(&self, config: &GptOssConfig) -> u64 {
        (self.layers_a_group * config.kv_heads * 2 * BLOCK_TOKENS * HEAD_DIM * 2) as u64
    }
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

/// Weights of a layer: offsets in one allocation.
#[derive(Debug, Clone, Copy)]
pub struct LayerLayout {
    pub attention_norm: u64,
    /// Of q, k and v, one after the other.
    pub qkv: u64,
    pub qkv_bias: u64,
    pub sinks: u64,
    pub out: u64,
    pub out_bias: u64,
    pub experts_norm: u64,
    pub router: u64,
    pub router_bias: u64,
    pub up_blocks: u64,
    pub up_scales: u64,
    pub up_bias: u64,
    pub down_blocks: u64,
    pub down_scales: u64,
    pub down_bias: u64,
    pub bytes: u64,
}

impl LayerLayout {
    pub fn of(config: &GptOssConfig) -> LayerLayout {
        let GptOssConfig { hidden, intermediate, experts, heads, .. } = *config;
        let (query, kv) = (config.query_width(), config.kv_width());
        let mut l = Layouter::default();
        LayerLayout {
            attention_norm: l.place(2 * hidden),
            qkv: l.place(2 * (query + 2 * kv) * hidden),
            qkv_bias: l.place(2 * (query + 2 * kv)),
            sinks: l.place(2 * heads),
            out: l.place(2 * hidden * query),
            out_bias: l.place(2 * hidden),
            experts_norm: l.place(2 * hidden),
            router: l.place(2 * experts * hidden),
            router_bias: l.place(2 * experts),
            up_blocks: l.place(experts * 2 * intermediate * hidden / 2),
            up_scales: l.place(experts * 2 * intermediate * hidden / 32),
            up_bias: l.place(2 * experts * 2 * intermediate),
            down_blocks: l.place(experts * hidden * intermediate / 2),
            down_scales: l.place(experts * hidden * intermediate / 32),
            down_bias: l.place(2 * experts * hidden),
            bytes: l.bytes(),
        }
    }
}

/// Weights before the first and behind the last layer.
#[derive(Debug, Clone, Copy)]
pub struct EndsLayout {
    pub embedding: u64,
    pub norm: u64,
    pub head: u64,
    pub bytes: u64,
}

impl EndsLayout {
    pub fn of(config: &GptOssConfig) -> EndsLayout {
        let mut l = Layouter::default();
        EndsLayout {
            embedding: l.place(2 * config.vocabulary * config.hidden),
            norm: l.place(2 * config.hidden),
            head: l.place(2 * config.vocabulary * config.hidden),
            bytes: l.bytes(),
        }
    }
}

/// What is computed with: offsets in one allocation. Sizes for T tokens of a step and S sequences.
#[derive(Debug, Clone, Copy)]
pub struct Workspace {
    /// [`StepLayout`]
    pub step: u64,
    /// (context, 64) f32
    pub turns: u64,
    /// A bit for each token of the vocabulary.
    pub known: u64,
    /// (T, hidden) f32
    pub x: u64,
    /// (T, hidden) bf16
    pub normed: u64,
    /// (T, heads + 2 kv_heads, 64) f32
    pub qkv: u64,
    /// (T, heads, 64) bf16
    pub q: u64,
    /// (T, heads, 64) bf16
    pub mixed: u64,
    /// Of the parts of attention: see `attention_decode.cu`. There is room for so many, of all single tokens of a step.
    pub parts: usize,
    pub part_values: u64,
    pub part_sums: u64,
    /// (T, experts) f32
    pub router_logits: u64,
    /// (T, chosen) u32, and f32
    pub chosen: u64,
    pub chosen_weights: u64,
    /// (experts, T) u32, and (experts)
    pub lists: u64,
    pub counts: u64,
    /// (T, chosen, intermediate) bf16
    pub act: u64,
    /// (T, chosen, hidden) f32
    pub y: u64,
    /// (S, vocabulary) f32
    pub logits: u64,
    /// (S) u32: what `sample.cu` chose last, for `embed.cu`.
    pub next_tokens: u64,
    /// Of the last two steps: (S, [`ANSWER_WORDS`](crate::ops::sample::ANSWER_WORDS)) u32 each.
    pub sample_answers: [u64; 2],
    pub bytes: u64,
}

impl Workspace {
    pub fn of(config: &GptOssConfig, bounds: Bounds, processors: u32) -> Workspace {
        use crate::ops::sample::ANSWER_WORDS;
        let GptOssConfig { hidden, intermediate, experts, experts_per_token: chosen, heads, .. } = *config;
        let tokens = bounds.tokens();
        let rows = bounds.classes().max().unwrap_or(1);
        // Any number of them: beside a prompt single tokens are not filled up to a class.
        let parts = (1..=rows).map(|n| n * attention_decode::parts(n, config.kv_heads, processors));
        let parts = parts.max().unwrap_or(1);
        let mut l = Layouter::default();
        Workspace {
            step: l.place(4 * StepLayout::of(config, bounds).words()),
            turns: l.place(4 * bounds.context_length * HEAD_DIM),
            known: l.place(4 * config.vocabulary.div_ceil(32)),
            x: l.place(4 * tokens * hidden),
            normed: l.place(2 * tokens * hidden),
            qkv: l.place(4 * tokens * (config.query_width() + 2 * config.kv_width())),
            q: l.place(2 * tokens * config.query_width()),
            mixed: l.place(2 * tokens * config.query_width()),
            parts,
            part_values: l.place(4 * parts * heads * HEAD_DIM),
            part_sums: l.place(4 * parts * heads * 2),
            router_logits: l.place(4 * tokens * experts),
            chosen: l.place(4 * tokens * chosen),
            chosen_weights: l.place(4 * tokens * chosen),
            lists: l.place(4 * experts * tokens),
            counts: l.place(4 * experts),
            act: l.place(2 * tokens * chosen * intermediate),
            y: l.place(4 * tokens * chosen * hidden),
            logits: l.place(4 * rows * config.vocabulary),
            next_tokens: l.place(4 * rows),
            sample_answers: [0; 2].map(|_| l.place(4 * rows * ANSWER_WORDS)),
            bytes: l.bytes(),
        }
    }
}

impl Bounds {
    /// Tokens of a step at most, those that fill a class up included.
    pub fn tokens(&self) -> usize {
        self.batch_tokens_max.max(self.sequences_max.next_power_of_two())
    }

    /// Sizes of steps that are recorded: each is filled up to the next one.
    pub fn classes(&self) -> impl Iterator<Item = usize> + use<> {
        let last = self.sequences_max.next_power_of_two();
        (0..usize::BITS).map(|bit| 1 << bit).take_while(move |&class| class <= last)
    }

    /// Blocks of one sequence in one group at most.
    pub fn table(&self) -> usize {
        self.context_length.div_ceil(BLOCK_TOKENS) + 1
    }
}

#[cfg(test)]
mod tests;
