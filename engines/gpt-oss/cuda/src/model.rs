//! The model on a device: a step as a row of launches, recorded where every sequence has one token. A step is launched without
//! waiting for the one before, whose tokens it may read where they are.

use std::collections::{HashMap, VecDeque};

use engine_sdk::{Choice, Draw, Status};
use gpt_oss_model::rope::Rotation;
use gpt_oss_model::{GptOssConfig, Weights};

use crate::device::{Address, Device, DeviceError, FETCHES_MAX, Fetch, Launch, Recording};
use crate::ops::attention_combine::AttentionCombineArgs;
use crate::ops::attention_decode::{AttentionDecodeArgs, parts};
use crate::ops::attention_prefill::AttentionPrefillArgs;
use crate::ops::embed::EmbedArgs;
use crate::ops::experts_combine::ExpertsCombineArgs;
use crate::ops::experts_down_gemv::ExpertsDownGemvArgs;
use crate::ops::experts_down_mma::ExpertsDownMmaArgs;
use crate::ops::experts_sort::ExpertsSortArgs;
use crate::ops::experts_up_gemv::{self, ExpertsUpGemvArgs};
use crate::ops::experts_up_mma::ExpertsUpMmaArgs;
use crate::ops::linear_gemv::{self, LinearGemvArgs};
use crate::ops::linear_mma::LinearMmaArgs;
use crate::ops::rmsnorm::RmsnormArgs;
use crate::ops::rope_kv::RopeKvArgs;
use crate::ops::route::RouteArgs;
use crate::ops::sample::{ANSWER_WORDS, Requests, SampleArgs, answer, known_bits};
use crate::plan::{Bounds, KvGroups, Needs, Workspace};
use crate::step::{Step, StepLayout};
use crate::weights::{DeviceWeights, LoadError};

/// Consecutive new tokens of one sequence.
#[derive(Debug, Clone)]
pub struct Span<'a> {
    /// Of the first of the tokens.
    pub position: usize,
    /// Not empty. Each is below the vocabulary, or a [`chosen`](crate::ops::embed::chosen) one of the step before.
    pub tokens: &'a [u32],
    /// Of each group of [`KvGroups`]: the number of the first block in the sequence, and the blocks from there on.
    pub tables: Vec<(usize, &'a [u32])>,
    /// Whether the logits after the last token are wanted.
    pub wants_logits: bool,
}

/// gpt-oss on a device. Dropping it frees all memory of the device.
#[derive(Debug)]
pub struct CudaModel {
    device: Box<dyn Device>,
    config: GptOssConfig,
    bounds: Bounds,
    groups: KvGroups,
    weights: DeviceWeights,
    kv: Address,
    workspace: (Address, Workspace),
    layout: StepLayout,
    processors: u32,
    needs: Needs,
    /// By size of the step.
    recorded: HashMap<usize, Recording>,
    /// Steps whose tokens were not collected, the oldest first.
    launched: VecDeque<Launched>,
    launches: usize,
}

/// A step that may still be at work.
#[derive(Debug)]
struct Launched {
    /// None: nothing was drawn.
    answers: Option<Fetch>,
    /// Of each draw, the logprobs that are wanted; none where the kernel cannot choose.
    draws: Vec<Option<Option<u32>>>,
}

impl CudaModel {
    /// Loads the weights. `known` says of each token whether the tokenizer has it. `progress` hears the bytes of weights
    /// that are on their way.
    ///
    /// # Errors
    /// Of the device, or what `progress` gave. With [`DeviceError::OutOfMemory`] nothing stays allocated.
    pub fn load<E>(
        device: Box<dyn Device>,
        config: &GptOssConfig,
        weights: &dyn Weights,
        bounds: Bounds,
        known: &[bool],
        progress: impl FnMut(u64) -> Result<(), E>,
    ) -> Result<CudaModel, LoadError<E>> {
        let info = device.info()?;
        let needs = Needs::of(config, bounds, info.processors);
        if needs.total() > info.memory_free {
            let error = DeviceError::OutOfMemory { wanted: needs.total(), free: info.memory_free };
            return Err(error.into());
        }
        let workspace = Workspace::of(config, bounds, info.processors);
        let workspace_at = device.allocate(workspace.bytes)?;
        let groups = KvGroups::of(config);
        let kv = device.allocate(bounds.blocks as u64 * groups.block_bytes(config))?;
        let weights = DeviceWeights::load(&*device, config, weights, progress)?;
        upload(&*device, workspace_at.offset(workspace.known), &known_bits(known))?;
        let rotation = Rotation::new(&config.rope, config.head_dim);
        let mut turns = Vec::with_capacity(bounds.context_length * config.head_dim);
        for position in 0..bounds.context_length {
            let (cos, sin) = rotation.at(position as u32);
            turns.extend(cos.iter().chain(&sin).map(|x| x.to_bits()));
        }
        upload(&*device, workspace_at.offset(workspace.turns), &turns)?;
        device.wait()?;
        Ok(CudaModel {
            layout: StepLayout::of(config, bounds),
            config: config.clone(),
            processors: info.processors,
            recorded: HashMap::new(),
            launched: VecDeque::new(),
            launches: 0,
            workspace: (workspace_at, workspace),
            device,
            bounds,
            groups,
            weights,
            kv,
            needs,
        })
    }

    pub fn config(&self) -> &GptOssConfig {
        &self.config
    }

    pub fn bounds(&self) -> Bounds {
        self.bounds
    }

    pub fn groups(&self) -> &KvGroups {
        &self.groups
    }

    pub fn needs(&self) -> Needs {
        self.needs
    }

    pub fn device(&self) -> &dyn Device {
        &*self.device
    }

    /// Launches a step: runs the tokens of all spans through the model, stores their keys and values, and chooses a token by
    /// each of `draws`, one for every span that wants logits, or none at all. Does not wait.
    ///
    /// # Errors
    /// The device has failed: what it holds is lost.
    ///
    /// # Panics
    /// When spans are beyond the bounds, draws are another number, or two steps were not collected.
    pub fn launch(
        &mut self,
        spans: &[Span<'_>],
        draws: &[Draw<'_>],
        end_tokens: &[u32],
    ) -> Result<(), DeviceError> {
        assert!(self.launched.len() < FETCHES_MAX, "{} steps were not collected", self.launched.len());
        for span in spans {
            let end = span.position + span.tokens.len();
            let context = self.bounds.context_length;
            assert!(
                end <= context,
                "position {end} and a context of {context}: a kernel would read past the turns"
            );
        }
        let (requests, can) =
            Requests::of(draws, end_tokens, self.config.vocabulary, self.layout.changes_max);
        let wanted = can.iter().zip(draws).map(|(can, draw)| can.then_some(draw.sampling.logprobs)).collect();
        let step = Step::of(&self.layout, self.groups.windows.len(), spans, &requests);
        // One upload, in front of all kernels: a second one would wait until the device has come to it.
        upload(&*self.device, self.at(self.workspace.1.step), &step.words)?;
        self.forward(&step)?;
        let mut answers = None;
        if !draws.is_empty() {
            let rows = spans.iter().filter(|s| s.wants_logits).count();
            assert_eq!(draws.len(), rows, "a draw for every span that wants logits");
            let at = self.at(self.workspace.1.sample_answers[self.launches % 2]);
            self.device.launch(&self.sample(&step, at).launch(draws.len()))?;
            answers = Some(self.device.begin_fetch(at, 4 * draws.len() * ANSWER_WORDS)?);
        }
        self.launches += 1;
        self.launched.push_back(Launched { answers, draws: wanted });
        Ok(())
    }

    /// Waits for the oldest step that was not collected, and answers what its draws chose. None: the kernel cannot do what is
    /// asked, and the row's logits are as the model gave them, as long as nothing else is launched.
    ///
    /// # Errors
    /// The device has failed.
    ///
    /// # Panics
    /// When nothing was launched.
    pub fn collect(&mut self) -> Result<Vec<Option<Result<Choice, Status>>>, DeviceError> {
        let Launched { answers, draws } = self.launched.pop_front().expect("a step was launched");
        let mut bytes = vec![0; 4 * draws.len() * ANSWER_WORDS];
        match answers {
            Some(fetch) => self.device.end_fetch(fetch, &mut bytes)?,
            None => self.device.wait()?,
        }
        let words: Vec<u32> = bytes.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
        let rows = words.chunks_exact(ANSWER_WORDS).zip(draws);
        Ok(rows.map(|(words, logprobs)| logprobs.map(|wanted| answer(words, wanted))).collect())
    }

    /// Nothing is under way any more, as far as anybody is told of it.
    pub fn abandon(&mut self) {
        self.launched.clear();
    }

    fn forward(&mut self, step: &Step) -> Result<(), DeviceError> {
        if !step.is_decode {
            return self.pass(step).iter().try_for_each(|launch| self.device.launch(launch));
        }
        if let Some(recording) = self.recorded.get(&step.tokens) {
            return self.device.replay(*recording);
        }
        // A driver may load a kernel at its first launch, which it cannot while it records.
        let launches = self.pass(step);
        launches.iter().try_for_each(|launch| self.device.launch(launch))?;
        self.device.begin_recording()?;
        let launched = launches.iter().try_for_each(|launch| self.device.launch(launch));
        let recording = self.device.end_recording()?;
        launched?;
        self.recorded.insert(step.tokens, recording);
        Ok(())
    }

    fn sample(&self, step: &Step, answers: Address) -> SampleArgs {
        let w = &self.workspace.1;
        SampleArgs {
            logits: self.at(w.logits),
            known: self.at(w.known),
            rows: self.input(self.layout.samples),
            changes: self.input(step.changes),
            masks: self.input(step.masks),
            answers,
            next: self.at(w.next_tokens),
            vocabulary: self.config.vocabulary as u32,
        }
    }

    /// The logits of the `row`-th span that wanted them, as the last step made them. Waits for everything.
    ///
    /// # Errors
    /// The device has failed.
    pub fn logits(&self, row: usize, logits: &mut [f32]) -> Result<(), DeviceError> {
        let mut bytes = vec![0; 4 * logits.len()];
        let at = self.workspace.1.logits + (4 * row * self.config.vocabulary) as u64;
        self.device.download(self.at(at), &mut bytes)?;
        for (to, from) in logits.iter_mut().zip(bytes.as_chunks::<4>().0) {
            *to = f32::from_le_bytes(*from);
        }
        Ok(())
    }

    fn at(&self, offset: u64) -> Address {
        self.workspace.0.offset(offset)
    }

    /// A word of the step's input.
    fn input(&self, word: usize) -> Address {
        self.at(self.workspace.1.step + 4 * word as u64)
    }

    /// All launches of a step.
    fn pass(&self, step: &Step) -> Vec<Launch> {
        let w = &self.workspace.1;
        let (ends_at, ends) = self.weights.ends;
        let hidden = self.config.hidden as u32;
        let mut launches = Vec::new();
        let embed = EmbedArgs {
            table: ends_at.offset(ends.embedding),
            tokens: self.input(self.layout.tokens),
            next: self.at(w.next_tokens),
            x: self.at(w.x),
            hidden,
        };
        launches.push(embed.launch(step.tokens));
        for n in 0..self.config.layers.len() {
            self.attention(n, step, &mut launches);
            self.experts(n, step, &mut launches);
        }
        if step.wanted > 0 {
            let norm =
                RmsnormArgs { rows: self.input(self.layout.wanted), ..self.norm(ends_at.offset(ends.norm)) };
            launches.push(norm.launch(step.wanted));
            launches.push(linear(LinearGemvArgs {
                weight: ends_at.offset(ends.head),
                bias: Address::NULL,
                t: self.at(w.normed),
                out: self.at(w.logits),
                rows: self.config.vocabulary as u32,
                columns: hidden,
                tokens: step.wanted as u32,
                add: 0,
            }));
        }
        launches
    }

    fn norm(&self, weight: Address) -> RmsnormArgs {
        let w = &self.workspace.1;
        RmsnormArgs {
            x: self.at(w.x),
            weight,
            rows: Address::NULL,
            out: self.at(w.normed),
            hidden: self.config.hidden as u32,
            epsilon: self.config.rms_epsilon,
        }
    }

    fn attention(&self, n: usize, step: &Step, launches: &mut Vec<Launch>) {
        let GptOssConfig { heads, kv_heads, hidden, .. } = self.config;
        let (w, layer, layer_at) = (&self.workspace.1, &self.weights.layer, self.weights.layers[n]);
        let (group, place) = self.groups.layers[n];
        let window = self.groups.windows[group].map_or(0, |w| w as u32);
        let (query, kv) = (self.config.query_width(), self.config.kv_width());
        let (heads, kv_heads) = (heads as u32, kv_heads as u32);
        let (place, layers) = (place as u32, self.groups.layers_a_group as u32);
        launches.push(self.norm(layer_at.offset(layer.attention_norm)).launch(step.tokens));
        launches.push(linear(LinearGemvArgs {
            weight: layer_at.offset(layer.qkv),
            bias: layer_at.offset(layer.qkv_bias),
            t: self.at(w.normed),
            out: self.at(w.qkv),
            rows: (query + 2 * kv) as u32,
            columns: hidden as u32,
            tokens: step.tokens as u32,
            add: 0,
        }));
        let rope = RopeKvArgs {
            qkv: self.at(w.qkv),
            turns: self.at(w.turns),
            positions: self.input(self.layout.positions),
            slots: self.input(self.layout.slots(group)),
            q: self.at(w.q),
            kv: self.kv,
            heads,
            kv_heads,
            layer: place,
            layers,
        };
        launches.push(rope.launch(step.tokens));
        let (table_starts, table_firsts) =
            (self.input(self.layout.starts(group)), self.input(self.layout.firsts(group)));
        let (tables, positions) = (self.input(self.layout.tables), self.input(self.layout.positions));
        let sinks = layer_at.offset(layer.sinks);
        if step.entries > 0 {
            // A window is a few blocks: nothing to share out.
            let all = parts(step.entries, kv_heads as usize, self.processors) as u32;
            let parts = if window == 0 { all } else { 1 };
            assert!(step.entries * parts as usize <= w.parts, "parts of attention beyond their room");
            let entries = self.input(self.layout.entries);
            let decode = AttentionDecodeArgs {
                q: self.at(w.q),
                kv: self.kv,
                entries,
                positions,
                rows: self.input(self.layout.rows),
                table_starts,
                table_firsts,
                tables,
                values: self.at(w.part_values),
                sums: self.at(w.part_sums),
                heads,
                kv_heads,
                layer: place,
                layers,
                window,
                parts,
            };
            launches.push(decode.launch(step.entries));
            let combine = AttentionCombineArgs {
                values: self.at(w.part_values),
                sums: self.at(w.part_sums),
                sinks,
                entries,
                positions,
                out: self.at(w.mixed),
                heads,
                parts,
            };
            launches.push(combine.launch(step.entries));
        }
        if step.tiles > 0 {
            let prefill = AttentionPrefillArgs {
                q: self.at(w.q),
                kv: self.kv,
                sinks,
                tiles: self.input(self.layout.tiles),
                positions,
                table_starts,
                table_firsts,
                tables,
                out: self.at(w.mixed),
                heads,
                kv_heads,
                layer: place,
                layers,
                window,
            };
            launches.push(prefill.launch(step.tiles));
        }
        launches.push(linear(LinearGemvArgs {
            weight: layer_at.offset(layer.out),
            bias: layer_at.offset(layer.out_bias),
            t: self.at(w.mixed),
            out: self.at(w.x),
            rows: hidden as u32,
            columns: query as u32,
            tokens: step.tokens as u32,
            add: 1,
        }));
    }

    fn experts(&self, n: usize, step: &Step, launches: &mut Vec<Launch>) {
        let config = &self.config;
        let (w, layer, layer_at) = (&self.workspace.1, &self.weights.layer, self.weights.layers[n]);
        let (hidden, intermediate) = (config.hidden as u32, config.intermediate as u32);
        let chosen = config.experts_per_token as u32;
        let pairs = step.tokens * config.experts_per_token;
        let positions = self.input(self.layout.positions);
        launches.push(self.norm(layer_at.offset(layer.experts_norm)).launch(step.tokens));
        launches.push(linear(LinearGemvArgs {
            weight: layer_at.offset(layer.router),
            bias: layer_at.offset(layer.router_bias),
            t: self.at(w.normed),
            out: self.at(w.router_logits),
            rows: config.experts as u32,
            columns: hidden,
            tokens: step.tokens as u32,
            add: 0,
        }));
        let (experts, weights) = (self.at(w.chosen), self.at(w.chosen_weights));
        let route = RouteArgs {
            logits: self.at(w.router_logits),
            positions,
            experts,
            weights,
            tokens: step.tokens as u32,
            experts_count: config.experts as u32,
            chosen,
        };
        launches.push(route.launch());
        let up = [layer.up_blocks, layer.up_scales, layer.up_bias].map(|at| layer_at.offset(at));
        let down = [layer.down_blocks, layer.down_scales, layer.down_bias].map(|at| layer_at.offset(at));
        let (limit, alpha) = (config.swiglu_limit, config.swiglu_alpha);
        let (t, act, x) = (self.at(w.normed), self.at(w.act), self.at(w.x));
        if step.tokens <= experts_up_gemv::TOKENS_MAX {
            let [blocks, scales, bias] = up;
            let up = ExpertsUpGemvArgs {
                blocks,
                scales,
                bias,
                t,
                experts,
                act,
                hidden,
                intermediate,
                chosen,
                limit,
                alpha,
            };
            launches.push(up.launch(pairs));
            let [blocks, scales, bias] = down;
            let down = ExpertsDownGemvArgs {
                blocks,
                scales,
                bias,
                act,
                experts,
                weights,
                x,
                hidden,
                intermediate,
                chosen,
            };
            return launches.push(down.launch(step.tokens));
        }
        let (lists, counts, y) = (self.at(w.lists), self.at(w.counts), self.at(w.y));
        let capacity = step.tokens as u32;
        let sort = ExpertsSortArgs { experts, lists, counts, pairs: pairs as u32, capacity };
        launches.push(sort.launch(config.experts));
        let [blocks, scales, bias] = up;
        let up = ExpertsUpMmaArgs {
            blocks,
            scales,
            bias,
            t,
            lists,
            counts,
            act,
            hidden,
            intermediate,
            chosen,
            capacity,
            limit,
            alpha,
        };
        launches.push(up.launch(step.tokens, config.experts));
        let [blocks, scales, bias] = down;
        let down = ExpertsDownMmaArgs {
            blocks,
            scales,
            bias,
            act,
            lists,
            counts,
            y,
            hidden,
            intermediate,
            capacity,
        };
        launches.push(down.launch(step.tokens, config.experts));
        launches.push(ExpertsCombineArgs { y, weights, positions, x, hidden, chosen }.launch(step.tokens));
    }
}

/// The product by whichever kernel reads weights less often.
fn linear(arguments: LinearGemvArgs) -> Launch {
    if arguments.tokens as usize <= linear_gemv::TOKENS_MAX {
        arguments.launch()
    } else {
        LinearMmaArgs::from(&arguments).launch()
    }
}

fn upload(device: &dyn Device, to: Address, words: &[u32]) -> Result<(), DeviceError> {
    let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    if bytes.is_empty() { Ok(()) } else { device.upload(to, &bytes) }
}

#[cfg(test)]
mod tests;
