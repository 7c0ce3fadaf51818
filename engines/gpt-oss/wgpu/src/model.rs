//! The forward pass over rows of several sequences.

mod load;
#[cfg_attr(target_os = "macos", expect(unsafe_code, reason = "buffers that are not wgpu's own"))]
mod mapped;

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine_sdk::{Choice, Draw, Status};
use gpt_oss_model::rope::Rotation;
use gpt_oss_model::{GptOssConfig, Weights};

use crate::device::{DeviceError, Gpu, Launch, Memory, Reading, Running};
use crate::ops::attention::AttentionOf;
use crate::ops::embed::Embed;
use crate::ops::experts::{ExpertMatrix, Experts};
use crate::ops::linear::Linear;
use crate::ops::rmsnorm::RmsNorm;
use crate::ops::rope_kv::RopeKv;
use crate::ops::route::Route;
use crate::ops::sample::{Requests, Sample};
use crate::ops::{Piece, Tensor, Weight};
use crate::plan::{Bounds, EndWeights, KvGroups, LayerWeights, Workspace};
use crate::step::Step;

pub use load::LoadError;

/// Weights that are kept as long as the model.
pub type KeptWeights = Arc<dyn Weights + Send + Sync>;

/// A model whose weights, keys and values are on a device.
#[derive(Debug)]
pub struct WgpuModel {
    gpu: Gpu,
    config: GptOssConfig,
    bounds: Bounds,
    rotation: Rotation,
    groups: KvGroups,
    layers: Vec<LayerWeights<Weight>>,
    ends: EndWeights<Weight>,
    workspace: Workspace<Memory>,
    /// Of each place of a group.
    kv: Vec<Memory>,
    /// Launches that were not collected, the oldest first.
    under_way: VecDeque<(Requests, Reading)>,
    /// Launches of the last pass.
    last: Vec<Launch>,
    /// What those before the choosing are made of, and how many they are; none where prompts were read. A step that is like the
    /// one before launches the same again.
    body: Option<(Step, usize)>,
    encoding: Encoding,
}

/// What the processor took for the launches of a step.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Encoding {
    /// To make them, and to record them with their arguments.
    pub recording: Duration,
    /// To hand uploads and what is recorded to the driver, which may begin to work meanwhile.
    pub submitting: Duration,
}

impl Encoding {
    pub fn total(self) -> Duration {
        self.recording + self.submitting
    }
}

/// The blocks of one group of one sequence: block `i` holds the positions from `(first + i) * BLOCK_TOKENS` on.
#[derive(Debug, Clone, Copy)]
pub struct Table<'a> {
    pub first: usize,
    /// Numbers of blocks, below [`Bounds::blocks`].
    pub blocks: &'a [u32],
}

/// Consecutive new tokens of one sequence.
#[derive(Debug, Clone, Copy)]
pub struct Span<'a> {
    /// Of the first of the tokens.
    pub position: usize,
    /// Not empty, and below the vocabulary.
    pub tokens: &'a [u32],
    /// Of each group of [`KvGroups`]: where keys and values of all positions are that a token looks at, its own included.
    /// No other span writes to the blocks in which the tokens' own are.
    pub tables: &'a [Table<'a>],
    /// Whether the logits after the last token are wanted.
    pub wants_logits: bool,
    /// The one token is not known yet: it is what the pass launched before chooses with the draw of this number.
    pub chosen_by: Option<u32>,
}

impl WgpuModel {
    pub fn config(&self) -> &GptOssConfig {
        &self.config
    }

    pub fn bounds(&self) -> Bounds {
        self.bounds
    }

    pub fn groups(&self) -> &KvGroups {
        &self.groups
    }

    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    pub(crate) fn gpu_mut(&mut self) -> &mut Gpu {
        &mut self.gpu
    }

    /// Of the largest tensor, as much as lies together.
    pub(crate) fn largest(&self) -> Memory {
        self.ends.head.pieces[0].memory
    }

    /// Launches of the last step.
    pub fn dispatches(&self) -> usize {
        self.last.len()
    }

    pub(crate) fn last_step(&self) -> &[Launch] {
        &self.last
    }

    /// What the processor took to bring the launches of the last step on their way.
    pub fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// Runs the tokens of all spans through the model, stores their keys and values, and writes the logits of the spans
    /// that want them, in order, to `logits`: (wanting spans, vocabulary).
    ///
    /// A step in which every span has one token is one compute pass. Where prompts are read each layer is one: a driver ends what
    /// takes seconds. Before `each_layer(begun, total)` all layers but the last that was begun are waited for. With an error from
    /// it the pass ends there.
    ///
    /// # Errors
    /// [`LoadError::Stopped`]: the tokens' own places then hold garbage. [`LoadError::Device`]: nothing can be computed any
    /// more.
    ///
    /// # Panics
    /// When spans are more than the bounds say, a table lacks a position that is looked at, a token is beyond the
    /// vocabulary, or `logits` is of another size.
    pub fn forward<E>(
        &mut self,
        spans: &[Span<'_>],
        logits: &mut [f32],
        each_layer: impl FnMut(u64, u64) -> Result<(), E>,
    ) -> Result<(), LoadError<E>> {
        let wanted = spans.iter().filter(|span| span.wants_logits).count();
        assert_eq!(logits.len(), wanted * self.config.vocabulary, "logits of another size");
        self.pass(spans, None, each_layer)?;
        Ok(self.gpu.download_f32(self.workspace.logits, 0, logits)?)
    }

    /// As [`WgpuModel::forward`], and chooses a token for each span that wants logits, in the same pass: `draws` has one
    /// entry for each of them. Does not wait for it, where no prompt is read: [`WgpuModel::collect`] does, and only what was
    /// chosen is read back.
    ///
    /// # Errors
    /// As `forward`; then nothing can be collected any more.
    ///
    /// # Panics
    /// As `forward`, and when there are more or fewer draws.
    pub fn launch<E>(
        &mut self,
        spans: &[Span<'_>],
        draws: &[Draw<'_>],
        end_tokens: &[u32],
        each_layer: impl FnMut(u64, u64) -> Result<(), E>,
    ) -> Result<(), LoadError<E>> {
        let wanted = spans.iter().filter(|span| span.wants_logits).count();
        assert_eq!(draws.len(), wanted, "a draw for each row that wants logits");
        let requests = Requests::of(draws, end_tokens, self.config.vocabulary);
        match self.pass(spans, Some(&requests), each_layer) {
            Ok(Some(reading)) => {
                self.under_way.push_back((requests, reading));
                Ok(())
            }
            Ok(None) => unreachable!("a pass with requests reads answers"),
            Err(error) => {
                self.under_way.clear();
                Err(error)
            }
        }
    }

    /// Waits for the oldest launch that was not collected: what each of its draws chose. None where the SDK has to choose,
    /// from [`WgpuModel::logits`]. Where a later launch goes by these choices already, a draw that is nearer to the border
    /// between two tokens than sums are exact (some 2^-26) is decided all the same.
    ///
    /// # Errors
    /// The device has failed; then nothing can be collected any more. Inside, of a single row, as
    /// [`engine_sdk::Sampler::choose`].
    ///
    /// # Panics
    /// When there is none.
    pub fn collect(&mut self) -> Result<Vec<Option<Result<Choice, Status>>>, DeviceError> {
        let (requests, reading) = self.under_way.pop_front().expect("a launch that was not collected");
        let words = self.gpu.read(reading).inspect_err(|_| self.under_way.clear())?;
        Ok(requests.answers(&words, !self.under_way.is_empty()))
    }

    /// The logits of one of the rows of the last pass that wanted them, in their order.
    ///
    /// # Errors
    /// The device has failed.
    ///
    /// # Panics
    /// When `logits` is not as long as the vocabulary.
    pub fn logits(&mut self, row: usize, logits: &mut [f32]) -> Result<(), DeviceError> {
        assert_eq!(logits.len(), self.config.vocabulary, "logits of another size");
        self.gpu.download_f32(self.workspace.logits, row * self.config.vocabulary, logits)
    }

    /// Launches a pass, and with requests begins to read its answers.
    fn pass<E>(
        &mut self,
        spans: &[Span<'_>],
        requests: Option<&Requests>,
        mut each_layer: impl FnMut(u64, u64) -> Result<(), E>,
    ) -> Result<Option<Reading>, LoadError<E>> {
        let mut begun = Instant::now();
        let submitted = self.gpu.submitting();
        let mut step = Step::of(&self.rotation, &self.groups.windows, self.config.kv_heads, spans);
        assert!(step.tokens <= self.bounds.batch_tokens_max, "more tokens than the bounds say");
        assert!(spans.len() <= self.bounds.sequences_max, "more sequences than the bounds say");
        assert!(
            spans.iter().flat_map(|s| s.tokens).all(|&t| (t as usize) < self.config.vocabulary),
            "a token is beyond the vocabulary"
        );
        self.gpu.upload(self.workspace.step, 0, &step.bytes())?;
        step.words.clear();
        let reads_prompts = step.tiles.1 > 0;
        let total = self.layers.len() as u64 + 1;
        let mut encoding = Duration::ZERO;
        let (mut launches, body) = (std::mem::take(&mut self.last), self.body.take());
        match body {
            Some((of, count)) if of == step => launches.truncate(count),
            _ => {
                launches.clear();
                launches.extend(self.embed(&step));
                let mut running: Option<Running> = None;
                for layer in 0..self.layers.len() {
                    let before = if reads_prompts && layer > 0 { launches.len() } else { 0 };
                    self.layer(&step, layer, &mut launches);
                    if reads_prompts {
                        // Encoded while the layer before runs, which is then waited for: at most two are on their way.
                        let next = self.gpu.begin(&launches[before..])?;
                        encoding += begun.elapsed();
                        if let Some(earlier) = running.replace(next) {
                            self.gpu.wait_until(earlier)?;
                        }
                        each_layer(layer as u64 + 1, total).map_err(LoadError::Stopped)?;
                        begun = Instant::now();
                    }
                }
            }
        }
        let layers_end = launches.len();
        let left = if reads_prompts { layers_end } else { 0 };
        if step.wanted.1 > 0 {
            self.head(&step, &mut launches);
            if let Some(requests) = requests {
                self.gpu.upload(self.workspace.sample_requests, 0, &requests.bytes())?;
                launches.extend(self.sample().launches(requests));
            }
        }
        let reading = match requests {
            Some(requests) => {
                let (answers, words) = (self.workspace.answers, requests.answer_words());
                Some(self.gpu.run_and_read(&launches[left..], answers, words)?)
            }
            None => {
                self.gpu.run(&launches[left..])?;
                None
            }
        };
        encoding += begun.elapsed();
        self.last = launches;
        self.body = (!reads_prompts).then_some((step, layers_end));
        let submitting = self.gpu.submitting().saturating_sub(submitted);
        self.encoding = Encoding { recording: encoding.saturating_sub(submitting), submitting };
        each_layer(total, total).map_err(LoadError::Stopped)?;
        Ok(reading)
    }

    fn sample(&self) -> Sample {
        let work = &self.workspace;
        Sample {
            logits: work.logits.whole(),
            constants: work.sample_constants.whole(),
            requests: work.sample_requests.whole(),
            state: work.sample_state.whole(),
            answers: work.answers.whole(),
            vocabulary: self.config.vocabulary,
        }
    }

    fn embed(&self, step: &Step) -> impl Iterator<Item = Launch> {
        let launch = |Piece { rows, tensor, .. }: &Piece| Embed {
            step: self.workspace.step.whole(),
            embedding: *tensor,
            first: rows.start,
            rows: rows.len(),
            x: self.workspace.x.whole(),
            answers: self.workspace.answers.whole(),
            hidden: self.config.hidden,
            vocabulary: self.config.vocabulary,
            tokens: step.tokens,
            tokens_at: step.tokens_at,
        };
        self.ends.embedding.pieces.iter().map(move |piece| launch(piece).launch())
    }

    fn layer(&self, step: &Step, layer: usize, launches: &mut Vec<Launch>) {
        let GptOssConfig { hidden, intermediate, heads, kv_heads, head_dim, experts, .. } = self.config;
        let (config, work, weights) = (&self.config, &self.workspace, &self.layers[layer]);
        let (group, place) = self.groups.layers[layer];
        let (tokens, kv) = (step.tokens, self.kv[place].whole());
        let linear = |weight, bias, t: Memory, out: Memory, [out_rows, columns]: [usize; 2], adds: bool| {
            linears(weight, Some(bias), move |weight, bias, rows| {
                let (t, out, first, rows) = (t.whole(), out.whole(), rows.start, rows.len());
                Linear { weight, bias, t, out, rows, first, out_rows, columns, tokens, adds }
            })
        };
        let query = config.query_width();
        let of_qkv = [query + 2 * config.kv_width(), hidden];
        launches.push(self.norm(&weights.attention_norm, tokens, None));
        launches.extend(linear(&weights.qkv, &weights.qkv_bias, work.normed, work.qkv, of_qkv, false));
        let rope = RopeKv {
            step: work.step.whole(),
            qkv: work.qkv.whole(),
            q: work.q.whole(),
            kv,
            heads,
            kv_heads,
            tokens,
            turns_at: step.turns_at,
            slots_at: step.groups[group].slots_at,
        };
        launches.push(rope.launch());
        let window = self.groups.windows[group];
        let attention = AttentionOf {
            step: work.step.whole(),
            q: work.q.whole(),
            kv,
            part_values: work.part_values.whole(),
            part_sums: work.part_sums.whole(),
            sinks: weights.sinks.only(),
            out: work.mixed.whole(),
            single: step.single,
            tiles: step.tiles,
            positions_at: step.positions_at,
            rows_at: step.rows_at,
            group: step.groups[group],
            heads,
            kv_heads,
            head_dim,
            window,
            tokens,
        };
        launches.extend(attention.launches());
        launches.extend(linear(&weights.out, &weights.out_bias, work.mixed, work.x, [hidden, query], true));
        launches.push(self.norm(&weights.experts_norm, tokens, None));
        let router = [experts, hidden];
        launches.extend(linear(
            &weights.router,
            &weights.router_bias,
            work.normed,
            work.router_logits,
            router,
            false,
        ));
        let chosen = config.experts_per_token;
        let (numbers, chosen_weights) = (work.numbers.whole(), work.chosen_weights.whole());
        let logits = work.router_logits.whole();
        launches.push(Route { logits, numbers, weights: chosen_weights, experts, chosen, tokens }.launch());
        let matrix = |[blocks, scales, bias]: [&Weight; 3], rows: usize, columns: usize| {
            let one = |experts: Range<usize>| {
                let first = experts.start;
                let (tensor, blocks_stride) = blocks.from(first);
                let (scales, bias) = (scales.from(first).0, bias.from(first).0);
                let experts = experts.len();
                ExpertMatrix { first, experts, blocks: tensor, blocks_stride, scales, bias, rows, columns }
            };
            Weight::cuts(&[blocks, scales, bias]).into_iter().map(one).collect()
        };
        let LayerWeights { up_blocks, up_scales, up_bias, down_blocks, down_scales, down_bias, .. } = weights;
        let experts = Experts {
            up: matrix([up_blocks, up_scales, up_bias], 2 * intermediate, hidden),
            down: matrix([down_blocks, down_scales, down_bias], hidden, intermediate),
            t: work.normed.whole(),
            numbers,
            weights: chosen_weights,
            lists: work.lists.whole(),
            counts: work.counts.whole(),
            act: work.act.whole(),
            y: work.y.whole(),
            x: work.x.whole(),
            experts,
            chosen,
            tokens,
            tokens_max: self.bounds.batch_tokens_max,
            limit: config.swiglu_limit,
            alpha: config.swiglu_alpha,
        };
        launches.extend(experts.launches());
    }

    fn head(&self, step: &Step, launches: &mut Vec<Launch>) {
        let (list_at, rows) = step.wanted;
        launches.push(self.norm(&self.ends.norm, rows, Some(list_at)));
        launches.extend(linears(&self.ends.head, None, |weight, bias, piece| Linear {
            weight,
            bias,
            t: self.workspace.normed.whole(),
            out: self.workspace.logits.whole(),
            rows: piece.len(),
            first: piece.start,
            out_rows: self.config.vocabulary,
            columns: self.config.hidden,
            tokens: rows,
            adds: false,
        }));
    }

    fn norm(&self, weight: &Weight, rows: usize, list_at: Option<u32>) -> Launch {
        let norm = RmsNorm {
            step: self.workspace.step.whole(),
            x: self.workspace.x.whole(),
            weight: weight.only(),
            out: self.workspace.normed.whole(),
            hidden: self.config.hidden,
            epsilon: self.config.rms_epsilon,
            rows,
            list_at,
        };
        norm.launch()
    }
}

/// A launch for each piece of a matrix, with its piece of the bias.
fn linears(
    weight: &Weight,
    bias: Option<&Weight>,
    linear: impl Fn(Tensor, Option<Tensor>, &Range<usize>) -> Linear,
) -> impl Iterator<Item = Launch> {
    let all: Vec<&Weight> = [weight].into_iter().chain(bias).collect();
    let of = move |rows: Range<usize>| {
        linear(weight.from(rows.start).0, bias.map(|bias| bias.from(rows.start).0), &rows).launch()
    };
    Weight::cuts(&all).into_iter().map(of)
}
