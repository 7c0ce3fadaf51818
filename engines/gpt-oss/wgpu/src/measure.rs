//! What an adapter does at most, and how near to that each kernel comes, in the shape of gpt-oss-20b: for the self-test, and
//! for whoever makes a kernel faster.
//!
//! Weights are zeros, of one layer of each kind; times are those of the clock, of many launches at once, so that they hold
//! what launches cost.

use std::time::{Duration, Instant};

use engine_sdk::{Draw, History, Sampling};
use gpt_oss_model::{Attention, GptOssConfig};

use crate::adapters::{Adapter, Verdict};
use crate::device::{DeviceError, Launch};
use crate::model::{LoadError, Span, Table, WgpuModel};
use crate::ops::{peak, word};
use crate::plan::{BLOCK_TOKENS, Bounds, EndWeights, Extent, KvGroups, LayerWeights};

/// `config.json` of gpt-oss-20b, as far as shapes go.
const PUBLISHED: &str = r#"{
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_act": "silu", "attention_bias": true,
    "num_hidden_layers": 24, "hidden_size": 2880, "intermediate_size": 2880, "vocab_size": 201088, "head_dim": 64,
    "num_attention_heads": 64, "num_key_value_heads": 8, "num_local_experts": 32, "num_experts_per_tok": 4,
    "experts_per_token": 4, "sliding_window": 128, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
    "initial_context_length": 4096, "rope_theta": 150000, "swiglu_limit": 7.0, "eos_token_id": 200002,
    "tie_word_embeddings": false, "quantization_config": {"quant_method": "mxfp4"},
    "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
        "original_max_position_embeddings": 4096, "truncate": false}
}"#;
/// Positions before the token that is decoded; a software adapter has fewer.
const CONTEXT: [usize; 2] = [1024, 192];
/// Tokens of the prompt; a software adapter has fewer.
const PROMPT_TOKENS: [usize; 2] = [256, 32];
/// A measurement lasts at least so long, and so many are made, of which the median counts.
const MEASURED: Duration = Duration::from_millis(30);
const REPEATS: usize = 3;
/// Launches of a measurement at most.
const LAUNCHES_MAX: usize = 4096;
/// Workgroups that keep any GPU busy, and rounds of each of their threads.
const PEAK_GROUPS: [usize; 2] = [2048, 64];
const PEAK_ROUNDS: [usize; 2] = [1024, 64];

/// A kernel at work on one step.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// The kernel's name, and of matrices which one: `linear_gemv_1 qkv`.
    pub name: String,
    pub tokens: usize,
    pub seconds: f64,
    /// That have to be read and written at least.
    pub bytes: u64,
    /// Multiplications and additions.
    pub operations: u64,
}

impl Row {
    pub fn gigabytes_a_second(&self) -> f64 {
        self.bytes as f64 / self.seconds / 1e9
    }

    pub fn gigaflops(&self) -> f64 {
        self.operations as f64 / self.seconds / 1e9
    }
}

/// What was measured on an adapter.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// What the device reads at most, and what it multiplies and adds without matrix units.
    pub gigabytes_a_second: f64,
    pub gigaflops: f64,
    pub rows: Vec<Row>,
    pub token: Token,
}

/// A token alone in the published model, the choosing of it included.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Token {
    pub dispatches: usize,
    /// What the processor takes to make and record these launches, and to hand them to the driver.
    pub recording_seconds: f64,
    pub submitting_seconds: f64,
    /// What kernels read and write, each number once a launch, behind so many positions; and the weights, keys and values
    /// among it, which nothing can do without.
    pub bytes: u64,
    pub bytes_min: u64,
}

/// Positions before the token whose bytes are counted.
pub const COUNTED_CONTEXT: usize = 1024;

impl Token {
    pub fn encode_seconds(&self) -> f64 {
        self.recording_seconds + self.submitting_seconds
    }
}

impl Measured {
    /// Of the limit that binds this kernel: bandwidth or multiplications, whichever it comes nearer to.
    pub fn share(&self, row: &Row) -> f64 {
        f64::max(row.gigabytes_a_second() / self.gigabytes_a_second, row.gigaflops() / self.gigaflops)
    }
}

/// Measures what the device can do, and every kernel on a token alone and on a prompt. Takes seconds on a GPU.
///
/// The shape is that of gpt-oss-20b with as much of its vocabulary as fits a binding; on a software adapter a sixth of its
/// width.
///
/// # Errors
/// Of the device.
pub fn measure(adapter: &Adapter) -> Result<Measured, DeviceError> {
    let is_small = usize::from(adapter.verdict == Verdict::Software);
    let mut config = published();
    if is_small == 1 {
        (config.hidden, config.intermediate, config.heads, config.kv_heads) = (480, 480, 16, 2);
    }
    let fits = adapter.buffer_max.min(adapter.binding_max) / (2 * config.hidden as u64);
    config.vocabulary = config.vocabulary.min(usize::try_from(fits).unwrap_or(usize::MAX) / 64 * 64);
    config.layers = vec![Attention::Sliding, Attention::Full];
    let mut bench = Bench::new(adapter.clone(), config, CONTEXT[is_small], PROMPT_TOKENS[is_small])?;
    let (gigabytes_a_second, gigaflops) = bench.peaks(PEAK_GROUPS[is_small], PEAK_ROUNDS[is_small])?;
    let mut rows = bench.rows(1)?;
    rows.extend(bench.rows(PROMPT_TOKENS[is_small])?);
    drop(bench);
    Ok(Measured { gigabytes_a_second, gigaflops, rows, token: token(adapter)? })
}

/// A token alone: all layers of gpt-oss-20b, for the processor's time of small width, which makes no difference to it.
///
/// # Errors
/// Of the device.
pub fn token(adapter: &Adapter) -> Result<Token, DeviceError> {
    let mut config = published();
    (config.hidden, config.intermediate, config.heads, config.kv_heads) = (32, 32, 8, 1);
    (config.experts, config.vocabulary) = (4, 2048);
    let mut bench = Bench::new(adapter.clone(), config, BLOCK_TOKENS, 1)?;
    let (mut recording, mut submitting) = (Vec::new(), Vec::new());
    for _ in 0..ENCODED {
        bench.step(1)?;
        let encoding = bench.model.encoding();
        recording.push(encoding.recording.as_secs_f64());
        submitting.push(encoding.submitting.as_secs_f64());
    }
    let (bytes, bytes_min) = traffic(&published(), bench.model.last_step());
    Ok(Token {
        dispatches: bench.model.dispatches(),
        recording_seconds: median(&mut recording),
        submitting_seconds: median(&mut submitting),
        bytes,
        bytes_min,
    })
}

/// Bytes of all launches of a token alone, and of the weights, keys and values among them.
fn traffic(config: &GptOssConfig, launches: &[Launch]) -> (u64, u64) {
    // Of each layer, from behind, as launches are named.
    let seen = |kind: &Attention| match kind {
        Attention::Sliding => COUNTED_CONTEXT.min(config.sliding_window),
        Attention::Full => COUNTED_CONTEXT,
    };
    let contexts: Vec<usize> = config.layers.iter().rev().map(seen).collect();
    let (mut bytes, mut layer) = (0, 0);
    for (name, launch) in named(launches) {
        let context = contexts.get(layer).copied().unwrap_or(0);
        bytes += cost(config, context, launch.kernel, &name, 1).0;
        layer += usize::from(launch.kernel == "rope_kv");
    }
    let of = LayerWeights::of(config);
    let mut layer_bytes = 0;
    of.each(|_, extent| layer_bytes += extent.bytes());
    let all = [of.up_blocks, of.up_scales, of.up_bias, of.down_blocks, of.down_scales, of.down_bias];
    let all: u64 = all.into_iter().map(Extent::bytes).sum();
    let met = all / config.experts as u64 * config.experts_per_token as u64;
    let ends = EndWeights::of(config);
    let weights = ends.embedding.row_bytes
        + ends.norm.bytes()
        + ends.head.bytes()
        + config.layers.len() as u64 * (layer_bytes - all + met);
    let of_position = 2 * 4 * (config.kv_heads * config.head_dim) as u64;
    (bytes, weights + contexts.iter().map(|c| *c as u64 * of_position).sum::<u64>())
}

/// Each launch with its name, from behind: of matrices which one it is, too.
fn named(launches: &[Launch]) -> impl Iterator<Item = (String, &Launch)> {
    // The head once, and the others in each layer.
    let mut matrices = MATRICES[..1].iter().chain(MATRICES[1..].iter().cycle());
    launches.iter().rev().map(move |launch| {
        let kernel = launch.kernel;
        let matrix = if kernel.starts_with("linear") { matrices.next() } else { None };
        (matrix.map_or_else(|| kernel.to_owned(), |matrix| format!("{kernel} {matrix}")), launch)
    })
}

/// Steps whose encoding is measured.
const ENCODED: usize = 101;

fn published() -> GptOssConfig {
    GptOssConfig::parse(PUBLISHED.as_bytes()).expect("it is what was published")
}

/// A model of zeros with one sequence.
struct Bench {
    model: WgpuModel,
    context: usize,
    blocks: Vec<u32>,
}

impl Bench {
    fn new(
        adapter: Adapter,
        config: GptOssConfig,
        context: usize,
        batch_tokens_max: usize,
    ) -> Result<Bench, DeviceError> {
        let context_length = context + batch_tokens_max;
        let blocks = context_length.div_ceil(BLOCK_TOKENS);
        let groups = KvGroups::of(&config).windows.len();
        let bounds = Bounds { context_length, sequences_max: 1, batch_tokens_max, blocks: blocks * groups };
        let mut model = WgpuModel::with_room(adapter, &config, bounds, None)?;
        model.put_constants(&vec![true; config.vocabulary])?;
        let blocks = (0..word(blocks)).collect();
        Ok(Bench { model, context, blocks })
    }

    /// A token behind the context, or a prompt; chooses one token by its temperature.
    fn step(&mut self, tokens: usize) -> Result<(), DeviceError> {
        let ids = vec![0; tokens];
        let tables = vec![Table { first: 0, blocks: &self.blocks }; self.model.groups().windows.len()];
        let span = Span {
            position: self.context - 1,
            tokens: &ids,
            tables: &tables,
            wants_logits: true,
            chosen_by: None,
        };
        let (sampling, history) = (Sampling::default(), History::default());
        let draw = Draw { sampling: &sampling, history: &history, position: 0, only: None };
        match self.model.launch(&[span], &[draw], &[], |_, _| Ok::<(), DeviceError>(())) {
            Ok(()) => self.model.collect().map(drop),
            Err(LoadError::Device(error) | LoadError::Stopped(error)) => Err(error),
        }
    }

    /// Seconds of a launch, among others of its kind.
    fn seconds(&mut self, launch: &Launch) -> Result<f64, DeviceError> {
        let mut count = 1;
        let mut run = |count: usize| {
            let launches = vec![launch.clone(); count];
            let start = Instant::now();
            let gpu = self.model.gpu_mut();
            gpu.run(&launches)?;
            gpu.wait()?;
            Ok::<Duration, DeviceError>(start.elapsed())
        };
        run(1)?;
        while run(count)? < MEASURED && count < LAUNCHES_MAX {
            count *= 2;
        }
        let mut all = Vec::new();
        for _ in 0..REPEATS {
            all.push(run(count)?.as_secs_f64() / count as f64);
        }
        Ok(median(&mut all))
    }

    /// Gigabytes read in a second, from the largest tensor there is; and billions of multiplications and additions.
    fn peaks(&mut self, groups: usize, rounds: usize) -> Result<(f64, f64), DeviceError> {
        let memory = self.model.largest();
        let out = self.model.gpu_mut().allocate("a measurement", (4 * groups * peak::THREADS) as u64)?;
        let quads = (memory.bytes / 16) as usize;
        let read = self.seconds(&peak::read(memory.whole(), out.whole(), quads, groups))?;
        let multiply = self.seconds(&peak::multiply(out.whole(), rounds, groups))?;
        let operations = groups * peak::THREADS * rounds * peak::OPERATIONS;
        Ok((quads as f64 * 16.0 / read / 1e9, operations as f64 / multiply / 1e9))
    }

    /// Each kernel of a step once, of layers that of full attention.
    fn rows(&mut self, tokens: usize) -> Result<Vec<Row>, DeviceError> {
        // What kernels read of one another has to be there.
        self.step(tokens)?;
        let launches = self.model.last_step().to_vec();
        let layers = self.model.config().layers.len();
        let per_layer = launches.iter().filter(|l| l.kernel == "rope_kv").count().max(1);
        assert_eq!(layers, per_layer, "a pass holds every layer");
        let mut rows: Vec<Row> = Vec::new();
        // From behind: the full layer is the last one.
        for (name, launch) in named(&launches) {
            if rows.iter().any(|row| row.name == name) {
                continue;
            }
            let (bytes, operations) = cost(self.model.config(), self.context, launch.kernel, &name, tokens);
            let seconds = self.seconds(launch)?;
            rows.push(Row { name, tokens, seconds, bytes, operations });
        }
        rows.reverse();
        Ok(rows)
    }
}

/// Bytes that have to be moved at least by a kernel behind so many positions, and operations.
fn cost(config: &GptOssConfig, before: usize, kernel: &str, name: &str, tokens: usize) -> (u64, u64) {
    let GptOssConfig { hidden, intermediate, experts, experts_per_token: chosen, .. } = *config;
    let GptOssConfig { heads, kv_heads, head_dim, vocabulary, .. } = *config;
    let (query, kv, pairs) = (config.query_width(), config.kv_width(), tokens * chosen);
    let weights = LayerWeights::of(config);
    // Of all experts those that are met; zeros choose the same for each token.
    let met =
        |all: [Extent; 3]| all.into_iter().map(Extent::bytes).sum::<u64>() / experts as u64 * chosen as u64;
    let words = |count: usize| 4 * count as u64;
    // Positions that the tokens look at, all together, and those that are read.
    let looked_at: usize = (0..tokens).map(|t| before + t).sum();
    let context = before + tokens - 1;
    let linear = |rows: usize, columns: usize, tokens: usize| {
        let bytes = (2 * rows * columns) as u64 + words(tokens * (rows + columns));
        (bytes, 2 * (rows * columns * tokens) as u64)
    };
    match kernel {
        "embed" => (words(tokens * hidden) * 3 / 2, 0),
        "rmsnorm" => (words(hidden) * 2 + 2 * hidden as u64, 0),
        "rope_kv" => (2 * words(tokens * (query + 2 * kv)), 0),
        "attention_decode" | "attention_prefill" => {
            let bytes = words(context * 2 * kv_heads * head_dim) + 2 * words(tokens * query);
            (bytes, 4 * (looked_at * heads * head_dim) as u64)
        }
        "attention_combine" => (words(tokens * query) * 2, 0),
        "route" => (words(tokens * (experts + 2 * chosen)), 0),
        "experts_sort" => (words(2 * pairs), 0),
        "experts_up_gemv" | "experts_up_tile" => {
            let bytes = met([weights.up_blocks, weights.up_scales, weights.up_bias]);
            let bytes = bytes + words(tokens * hidden + pairs * intermediate);
            (bytes, 4 * (pairs * hidden * intermediate) as u64)
        }
        "experts_down_gemv" | "experts_down_tile" => {
            let bytes = met([weights.down_blocks, weights.down_scales, weights.down_bias]);
            let bytes = bytes + words(pairs * (hidden + intermediate));
            (bytes, 2 * (pairs * hidden * intermediate) as u64)
        }
        "experts_combine" => (words(pairs * hidden + 2 * tokens * hidden), 0),
        _ if kernel.starts_with("sample") => (words(vocabulary), 0),
        _ if name.ends_with("head") => linear(vocabulary, hidden, 1),
        _ if name.ends_with("router") => linear(experts, hidden, tokens),
        _ if name.ends_with("out") => linear(hidden, query, tokens),
        _ => linear(query + 2 * kv, hidden, tokens),
    }
}

/// The matrices of a pass, from behind.
const MATRICES: [&str; 4] = ["head", "router", "out", "qkv"];

fn median(numbers: &mut [f64]) -> f64 {
    numbers.sort_unstable_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}
