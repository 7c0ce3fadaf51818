//! What lies in a device's memory, and how large it is. Estimate and load both come from here, so that they cannot differ.

use std::ops::Range;

use gpt_oss_model::{Attention, GptOssConfig};

use crate::device::buffer_bytes;
use crate::ops::{attention, sample};

/// Positions of a block of the KV; the kernels have the same number.
pub const BLOCK_TOKENS: usize = 64;
/// A head is as wide as a workgroup of `attention` at most.
const HEAD_DIM_MAX: usize = 64;
/// Query heads that share keys, at most: four tokens of them fill the memory of a workgroup of `attention_prefill`.
const GROUP_MAX: usize = 13;
/// Experts of a token at most.
pub const CHOSEN_MAX: usize = 8;
/// Each of 64 threads of `route` has a bit for each of its experts.
const EXPERTS_MAX: usize = 64 * 32;
/// Rows of an expert's matrix that `experts_gemv` takes together.
const ROWS_MULTIPLE: usize = 4;
/// Rows of a tensor are cut before a multiple of this, so that what has two bytes a row is cut between words.
const ROWS_CUT: usize = 2;
/// Columns that `linear_tile` takes together.
const COLUMNS_MULTIPLE: usize = 32;

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
    /// Bytes of the largest buffer that a device has to have, and what it is for.
    pub largest: (u64, &'static str),
}

/// A tensor as rows of bytes. Between rows it can be cut where a device has no buffer for all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    pub rows: usize,
    pub row_bytes: u64,
    /// Of the widest tensor that is cut at the same rows.
    cut_bytes: u64,
}

impl Extent {
    /// One that is never cut.
    fn whole(bytes: usize) -> Extent {
        Extent { rows: 1, row_bytes: bytes as u64, cut_bytes: bytes as u64 }
    }

    fn of_rows(rows: usize, row_bytes: usize) -> Extent {
        Extent { rows, row_bytes: row_bytes as u64, cut_bytes: row_bytes as u64 }
    }

    fn cut_as(self, other: Extent) -> Extent {
        Extent { cut_bytes: other.cut_bytes, ..self }
    }

    pub fn bytes(self) -> u64 {
        self.rows as u64 * self.row_bytes
    }

    /// Bytes of the smallest piece.
    fn piece_bytes_min(self) -> u64 {
        self.rows.min(ROWS_CUT) as u64 * self.cut_bytes
    }

    /// The rows of each piece, where a buffer has so many bytes at most: as few pieces as can be, of much the same size. The
    /// smallest piece is one all the same where it is larger.
    pub fn pieces(self, buffer_max: u64) -> impl Iterator<Item = Range<usize>> {
        let most =
            usize::try_from(buffer_max / self.cut_bytes.max(1)).unwrap_or(usize::MAX) / ROWS_CUT * ROWS_CUT;
        let count = self.rows.div_ceil(most.clamp(ROWS_CUT, self.rows.max(ROWS_CUT)));
        let each = self.rows.div_ceil(count).next_multiple_of(ROWS_CUT);
        (0..self.rows).step_by(each).map(move |first| first..self.rows.min(first + each))
    }
}

impl Needs {
    pub fn of(config: &GptOssConfig, bounds: Bounds) -> Needs {
        let (mut needs, groups) =
            (Needs { weights: 0, kv: 0, workspace: 0, largest: (0, "") }, KvGroups::of(config));
        let mut count = |times: usize, what: &'static str, bytes: u64| {
            let bytes = buffer_bytes(bytes);
            needs.largest = needs.largest.max((bytes, what));
            times as u64 * bytes
        };
        let mut workspace = 0;
        Workspace::of(config, bounds).each(|what, bytes| workspace += count(1, what, *bytes));
        let kv = count(groups.layers_a_group, KV, groups.layer_bytes(config, bounds.blocks));
        let mut weights = 0;
        let mut of_weights = |times: usize, what: &'static str, extent: &Extent| {
            // What can be cut is never one buffer too large.
            count(1, what, extent.piece_bytes_min());
            weights += times as u64 * buffer_bytes(extent.bytes());
        };
        EndWeights::of(config).each(|what, extent| of_weights(1, what, extent));
        LayerWeights::of(config).each(|what, extent| of_weights(config.layers.len(), what, extent));
        Needs { weights, kv, workspace, ..needs }
    }

    pub fn total(&self) -> u64 {
        self.weights + self.kv + self.workspace
    }
}

/// What the buffers of keys and values are called.
pub(crate) const KV: &str = "keys and values";

/// Why this model has no kernels; none when it has.
pub fn unsupported(config: &GptOssConfig) -> Option<String> {
    let GptOssConfig {
        head_dim,
        heads,
        kv_heads,
        hidden,
        intermediate,
        experts,
        experts_per_token,
        vocabulary,
        ..
    } = *config;
    let at_most = [
        ("numbers of a head", head_dim, HEAD_DIM_MAX),
        ("query heads for each key", heads / kv_heads, GROUP_MAX),
        ("experts", experts, EXPERTS_MAX),
        ("experts for each token", experts_per_token, CHOSEN_MAX),
        ("tokens of the vocabulary", vocabulary, sample::VOCABULARY_MAX),
    ];
    if let Some((what, has, most)) = at_most.into_iter().find(|(_, has, most)| has > most) {
        return Some(format!("{what}: the model has {has}, and the kernels are for up to {most}"));
    }
    let multiples = [
        ("width of the residual stream", hidden, COLUMNS_MULTIPLE),
        ("width of an expert", intermediate, COLUMNS_MULTIPLE),
        ("width of all query heads", config.query_width(), COLUMNS_MULTIPLE),
        ("width of all key heads", config.kv_width(), 2),
        ("width of the residual stream", hidden, ROWS_MULTIPLE),
    ];
    let (what, has, of) = multiples.into_iter().find(|(_, has, of)| !has.is_multiple_of(*of))?;
    Some(format!("{what}: the model has {has}, and the kernels are for multiples of {of}"))
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

    /// Of all layers of a group.
    pub fn block_bytes(&self, config: &GptOssConfig) -> u64 {
        self.layers_a_group as u64 * self.layer_bytes(config, 1)
    }

    /// Blocks at most, where a buffer has so many bytes at most: each place of a group is one.
    pub fn blocks_max(&self, config: &GptOssConfig, buffer_max: u64) -> u64 {
        buffer_max / self.layer_bytes(config, 1)
    }

    /// Of one place of a group, in so many blocks: a buffer.
    pub(crate) fn layer_bytes(&self, config: &GptOssConfig, blocks: usize) -> u64 {
        (blocks * config.kv_heads * 2 * BLOCK_TOKENS * config.head_dim * 4) as u64
    }
}

fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

/// A struct of buffers, first as bytes, then as memory.
macro_rules! buffers {
    ($(#[$doc:meta])* pub struct $name:ident { $($(#[$field_doc:meta])* $field:ident,)* }) => {
        $(#[$doc])*
        #[derive(Debug, Clone)]
        pub struct $name<T> {
            $($(#[$field_doc])* pub $field: T,)*
        }

        impl<T> $name<T> {
            /// Every buffer, by its name.
            pub fn each(&self, mut with: impl FnMut(&'static str, &T)) {
                $(with(stringify!($field), &self.$field);)*
            }

            /// # Errors
            /// The first that `with` gave.
            pub fn map<U, E>(
                &self,
                mut with: impl FnMut(&'static str, &T) -> Result<U, E>,
            ) -> Result<$name<U>, E> {
                Ok($name { $($field: with(stringify!($field), &self.$field)?,)* })
            }
        }
    };
}

buffers! {
    /// Weights of a layer, as stored: bf16, and MXFP4 for experts.
    pub struct LayerWeights {
        attention_norm,
        /// Of q, k and v, one after the other.
        qkv,
        qkv_bias,
        sinks,
        out,
        out_bias,
        experts_norm,
        router,
        router_bias,
        up_blocks,
        up_scales,
        up_bias,
        down_blocks,
        down_scales,
        down_bias,
    }
}

buffers! {
    /// Weights before the first and behind the last layer.
    pub struct EndWeights {
        embedding,
        norm,
        head,
    }
}

buffers! {
    /// What is computed with, f32 unless said otherwise. Sizes for T tokens of a step and S sequences.
    pub struct Workspace {
        /// What a step tells the kernels, u32.
        step,
        /// (T, hidden)
        x,
        /// (T, hidden)
        normed,
        /// (T, heads + 2 kv_heads, head_dim)
        qkv,
        /// (T, heads, head_dim)
        q,
        /// (T, heads, head_dim)
        mixed,
        /// Of the parts of attention: see `attention.wgsl`.
        part_values,
        part_sums,
        /// (T, experts)
        router_logits,
        /// (T, chosen), u32
        numbers,
        /// (T, chosen)
        chosen_weights,
        /// (experts, T), u32
        lists,
        /// (experts), u32
        counts,
        /// (T, chosen, intermediate)
        act,
        /// (T, chosen, hidden)
        y,
        /// (S, vocabulary)
        logits,
        /// What kernels that choose tokens work with: see `sample.wgsl`. u32.
        sample_constants,
        sample_requests,
        sample_state,
        answers,
    }
}

impl LayerWeights<Extent> {
    pub fn of(config: &GptOssConfig) -> LayerWeights<Extent> {
        let GptOssConfig { hidden, intermediate, experts, heads, .. } = *config;
        let (query, kv) = (config.query_width(), config.kv_width());
        let whole = Extent::whole;
        let qkv = Extent::of_rows(query + 2 * kv, 2 * hidden);
        let (out, router) = (Extent::of_rows(hidden, 2 * query), Extent::of_rows(experts, 2 * hidden));
        let up = Extent::of_rows(experts, intermediate * hidden);
        let down = Extent::of_rows(experts, hidden * intermediate / 2);
        LayerWeights {
            attention_norm: whole(2 * hidden),
            qkv,
            qkv_bias: Extent::of_rows(qkv.rows, 2).cut_as(qkv),
            sinks: whole(2 * heads),
            out,
            out_bias: Extent::of_rows(hidden, 2).cut_as(out),
            experts_norm: whole(2 * hidden),
            router,
            router_bias: Extent::of_rows(experts, 2).cut_as(router),
            up_blocks: up,
            up_scales: Extent::of_rows(experts, 2 * intermediate * hidden / 32).cut_as(up),
            up_bias: Extent::of_rows(experts, 2 * 2 * intermediate).cut_as(up),
            down_blocks: down,
            down_scales: Extent::of_rows(experts, hidden * intermediate / 32).cut_as(down),
            down_bias: Extent::of_rows(experts, 2 * hidden).cut_as(down),
        }
    }
}

impl EndWeights<Extent> {
    pub fn of(config: &GptOssConfig) -> EndWeights<Extent> {
        let matrix = Extent::of_rows(config.vocabulary, 2 * config.hidden);
        EndWeights { embedding: matrix, norm: Extent::whole(2 * config.hidden), head: matrix }
    }
}

impl Workspace<u64> {
    pub fn of(config: &GptOssConfig, bounds: Bounds) -> Workspace<u64> {
        let GptOssConfig {
            hidden, intermediate, experts, experts_per_token: chosen, heads, head_dim, ..
        } = *config;
        let (tokens, rows) = (bounds.batch_tokens_max, bounds.sequences_max);
        // In a step of prompts every token has one part.
        let parts = (1..=rows).map(|r| r * attention::parts(r, config.kv_heads, bounds.context_length)).max();
        let parts = parts.unwrap_or(1).max(tokens);
        let words = |count: usize| 4 * count as u64;
        Workspace {
            step: words(step_words(config, bounds)),
            x: words(tokens * hidden),
            normed: words(tokens * hidden),
            qkv: words(tokens * (config.query_width() + 2 * config.kv_width())),
            q: words(tokens * config.query_width()),
            mixed: words(tokens * config.query_width()),
            part_values: words(parts * heads * head_dim),
            part_sums: words(parts * heads * 2),
            router_logits: words(tokens * experts),
            numbers: words(tokens * chosen),
            chosen_weights: words(tokens * chosen),
            lists: words(experts * tokens),
            counts: words(experts),
            act: words(tokens * chosen * intermediate),
            y: words(tokens * chosen * hidden),
            logits: words(rows * config.vocabulary),
            sample_constants: words(sample::constants_words(config.vocabulary)),
            sample_requests: words(rows * sample::ROW_WORDS + sample::CHANGES_MAX * sample::CHANGE_WORDS),
            sample_state: words(rows * sample::STATE_WORDS),
            answers: words(rows * sample::ANSWER_WORDS),
        }
    }
}

/// Words of a step at most: see [`crate::step::Step`].
fn step_words(config: &GptOssConfig, bounds: Bounds) -> usize {
    let groups = KvGroups::of(config).windows.len();
    let (tokens, rows) = (bounds.batch_tokens_max, bounds.sequences_max);
    let table = bounds.context_length.div_ceil(BLOCK_TOKENS) + 1;
    // Token, position, row, a pair of an entry, turns; and a slot in each group.
    let of_token = 3 + 2 + config.head_dim + groups;
    // Whether it is wanted; and in each group a start, a first and a table.
    let of_row = 1 + groups * (2 + table);
    tokens * of_token + rows * of_row
}

#[cfg(test)]
mod tests;
