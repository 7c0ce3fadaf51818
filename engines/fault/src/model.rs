//! The model: the prompt again and again, at the speed that was asked for, and faults where they were asked for.

use std::sync::Arc;
use std::time::Duration;

use engine_sdk::{
    Batch, DeviceBytes, EmbeddingSpec, Logits, MemoryUse, Model, ModelSpec, Progress, Slot, Status, Tokenize,
};

use crate::act::{pause, wait_alive};
use crate::config::Behaviour;
use crate::memory;
use crate::plan::{Concerned, Plan, Point};
use crate::tokens::{ByteTokens, END, SPACE};

/// So far above the others that no temperature draws another one, and below what a bias can do.
const LOGIT_NEXT: f32 = 90.0;
/// What comes where an end is not allowed.
const LOGIT_SPACE: f32 = 45.0;

pub struct FaultModel {
    spec: ModelSpec,
    plan: Arc<Plan>,
    behaviour: Behaviour,
    slots: Vec<History>,
    /// Weights and workspace; empty on simulated devices.
    held: Vec<Vec<u8>>,
    /// Bytes of them on each device.
    held_each: u64,
}

/// What a slot has seen.
#[derive(Default)]
struct History {
    tokens: Vec<u32>,
    /// The prompt as far as it is known, control tokens left out: what rules look into.
    text: Vec<u8>,
    /// Tokens of the prompt, known when its last chunk has come.
    prompt: Option<usize>,
}

impl FaultModel {
    pub fn new(
        spec: ModelSpec,
        plan: Arc<Plan>,
        behaviour: Behaviour,
        held: Vec<Vec<u8>>,
        held_each: u64,
    ) -> FaultModel {
        let slots = (0..spec.sequences_max).map(|_| History::default()).collect();
        FaultModel { spec, plan, behaviour, slots, held, held_each }
    }

    /// As slow as it was asked to be: one token of each sequence that decodes, and the tokens of the prompts.
    fn take_time(
        &self,
        decoding: bool,
        prompt_tokens: usize,
        progress: &mut Progress<'_>,
    ) -> Result<(), Status> {
        let seconds = |count: f64, rate: f64| {
            if rate > 0.0 { Duration::from_secs_f64(count / rate) } else { Duration::ZERO }
        };
        if decoding {
            wait_alive(seconds(1.0, self.behaviour.tokens_per_second), progress, 0, 0)?;
        }
        let each = seconds(1.0, self.behaviour.prefill_tokens_per_second);
        if !each.is_zero() {
            for done in 0..prompt_tokens as u64 {
                wait_alive(each, progress, done, prompt_tokens as u64)?;
            }
        }
        Ok(())
    }
}

impl History {
    fn extend(&mut self, position: usize, tokens: &[u32], is_last_of_prompt: bool) {
        self.tokens.truncate(position);
        self.tokens.extend_from_slice(tokens);
        if self.prompt.is_none() {
            self.text = self.tokens.iter().filter_map(|id| u8::try_from(*id).ok()).collect();
            self.prompt = is_last_of_prompt.then_some(self.tokens.len());
        }
    }

    /// The token that follows: the prompt's next one, so many times, then the end.
    fn next(&self, repeat: u32) -> u32 {
        let prompt = self.prompt.unwrap_or(self.tokens.len());
        let produced = self.tokens.len() - prompt;
        if prompt == 0 || produced >= prompt * repeat as usize { END } else { self.tokens[produced % prompt] }
    }

    fn concerned(&self) -> Concerned<'_> {
        let tokens = self.prompt.map(|prompt| u32::try_from(self.tokens.len() - prompt).unwrap_or(u32::MAX));
        Concerned { prompt: &self.text, tokens }
    }
}

impl Model for FaultModel {
    fn spec(&self) -> ModelSpec {
        self.spec.clone()
    }

    fn tokenizer(&self) -> Arc<dyn Tokenize> {
        Arc::new(ByteTokens)
    }

    fn start(&mut self, slot: Slot, _tokens_max: u32) -> Result<(), Status> {
        self.slots[slot.index()] = History::default();
        self.plan.strike(Point::Start, &[], None)
    }

    fn end(&mut self, slot: Slot) {
        self.slots[slot.index()] = History::default();
    }

    fn forward(
        &mut self,
        batch: &Batch,
        logits: &mut Logits<'_>,
        progress: &mut Progress<'_>,
    ) -> Result<(), Status> {
        let mut prompt_tokens = 0;
        let mut decoding = false;
        for row in batch.rows() {
            let history = &mut self.slots[row.slot.index()];
            if history.prompt.is_some() {
                decoding = true;
            } else {
                prompt_tokens += row.tokens.len();
            }
            history.extend(row.position as usize, row.tokens, row.wants_logits);
        }
        let concerned: Vec<Concerned<'_>> =
            batch.rows().map(|row| self.slots[row.slot.index()].concerned()).collect();
        self.plan.strike(Point::Step, &concerned, Some(progress))?;
        self.take_time(decoding, prompt_tokens, progress)?;
        for (at, row) in batch.rows().filter(|row| row.wants_logits).enumerate() {
            let out = logits.row_mut(at);
            out.fill(0.0);
            out[SPACE as usize] = LOGIT_SPACE;
            out[self.slots[row.slot.index()].next(self.behaviour.repeat) as usize] = LOGIT_NEXT;
        }
        Ok(())
    }

    fn embeddings(&self) -> Option<EmbeddingSpec> {
        Some(EmbeddingSpec { size: 2, only: false, whole: false })
    }

    /// A direction that every token turns further, by an angle of its own.
    fn embed(&mut self, slot: Slot, out: &mut [f32]) -> Result<(), Status> {
        let turn = |angle: f32, id: &u32| (angle * 1.7 + *id as f32 + 1.0) % std::f32::consts::TAU;
        let angle = self.slots[slot.index()].tokens.iter().fold(0.0, turn);
        out.copy_from_slice(&[angle.cos(), angle.sin()]);
        Ok(())
    }

    fn memory(&self) -> MemoryUse {
        let kv = |tokens: u64| tokens * self.behaviour.kv_bytes_per_token;
        let used = kv(self.slots.iter().map(|slot| slot.tokens.len() as u64).sum());
        let running = self.slots.iter().filter(|slot| !slot.tokens.is_empty()).count() as u64;
        let moving = used + running * self.behaviour.per_sequence_bytes;
        let each = moving.div_ceil(self.plan.devices.len().max(1) as u64);
        let on = |device: &String| DeviceBytes {
            device: device.clone(),
            bytes: self.held_each + each + memory::taken(device),
        };
        MemoryUse {
            devices: self.plan.devices.iter().map(on).collect(),
            kv_bytes_used: used,
            kv_bytes_total: kv(u64::from(self.spec.sequences_max) * u64::from(self.spec.context_length)),
            details_json: String::new(),
        }
    }
}

impl Drop for FaultModel {
    fn drop(&mut self) {
        pause(Duration::from_millis(self.behaviour.unload_ms));
        // Who asks how much is left gets an answer after it is gone.
        self.held.clear();
    }
}
