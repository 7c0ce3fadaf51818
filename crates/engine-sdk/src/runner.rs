//! A loaded model at work: sequences in, forward passes, tokens out. Joins model, tokenizer, scheduler and sampler.
//!
//! One step is plan, forward, sample, deliver, one after the other on the caller's thread. A model that samples on its device
//! says so ([`Model::chooses`]), and one that can be given the next step before the last one is done as well
//! ([`Model::launches`]): then `ahead.rs` has the step.

mod ahead;
mod details;

use std::{collections::HashMap, sync::Arc, time::Instant};

use grammar::Constrained;

use crate::{
    Batch, Choice, Draw, EMBEDDING_SIZE_MAX, EmbeddingSpec, Event, EventKind, FinishReason, History, Logits,
    MemoryUse, Model, ModelSpec, Piece, Progress, Sampler, Sampling, SequenceId, Slot, Status, TokenLogprob,
    Tokenize,
    begin_with::BeginWith,
    constraint::{self, Grammars, Only},
    embedding,
    kv::KvLayout,
    reason,
    scheduler::{Admission, Advance, Ended, Limits, Plan, RESERVE_TOKENS, Sample, Scheduler},
    stop::StopMatcher,
};

/// The prompt of a sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Prompt {
    /// Complete text, and the byte ranges in which spellings of control tokens stay text.
    Text {
        text: String,
        literal: Vec<std::ops::Range<usize>>,
    },
    Tokens(Vec<u32>),
}

/// What is to come of a prompt.
#[derive(Debug, Clone, PartialEq)]
pub enum Task {
    Generate(Sampling),
    Embed,
}

/// Counted since the load.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    pub steps: u64,
    /// Tokens of admitted prompts.
    pub prompt_tokens: u64,
    pub completion_tokens: u64,
    /// Largest number of sequences that shared one step.
    pub batch_sequences_max: u32,
}

/// A loaded model with its sequences.
pub struct Runner<M: Model> {
    model: M,
    tokenizer: Arc<dyn Tokenize>,
    spec: ModelSpec,
    scheduler: Scheduler,
    sampler: Sampler,
    grammars: Grammars,
    sequences: HashMap<SequenceId, Sequence>,
    counters: Counters,
    batch: Batch,
    /// `(rows that sample, vocabulary_size)`, kept from step to step. Empty where the model chooses.
    logits: Vec<f32>,
    model_chooses: bool,
    model_launches: bool,
    under_way: Option<ahead::UnderWay>,
    embeddings: Option<EmbeddingSpec>,
    /// `(size of an embedding)`, kept from one to the next.
    embedding: Vec<f32>,
}

/// What sampling needs to know of a sequence.
struct Sequence {
    sampling: Sampling,
    history: History,
    stop: StopMatcher,
    begin_with: BeginWith,
    constrained: Option<Constrained>,
    /// The device needs nobody to choose its tokens.
    unaided: bool,
}

impl<M: Model> Runner<M> {
    /// # Errors
    /// `INTERNAL` when what the model says of itself cannot be.
    pub fn new(model: M) -> Result<Runner<M>, Status> {
        let (spec, tokenizer) = (model.spec(), model.tokenizer());
        check_spec(&spec)?;
        let known: Vec<bool> = (0..spec.vocabulary_size).map(|id| tokenizer.piece(id).is_some()).collect();
        let kv = model.kv();
        kv.as_ref().map_or(Ok(()), KvLayout::check)?;
        let embeddings = model.embeddings();
        embeddings.map_or(Ok(()), |embeddings| {
            check_embeddings(&embeddings, &spec, kv.is_some(), model.launches())
        })?;
        let limits = Limits {
            context_length: spec.context_length,
            sequences_max: spec.sequences_max,
            batch_tokens_max: spec.batch_tokens_max,
            prefill_gap: model.prefill_gap(),
            reserve_tokens: RESERVE_TOKENS,
            kv,
            embeds_whole: embeddings.is_some_and(|embeddings| embeddings.whole),
        };
        Ok(Runner {
            sampler: Sampler::new(known, spec.end_tokens.clone()),
            scheduler: Scheduler::new(limits),
            grammars: Grammars::default(),
            model_chooses: model.chooses(),
            model_launches: model.launches(),
            under_way: None,
            model,
            tokenizer,
            spec,
            sequences: HashMap::new(),
            counters: Counters::default(),
            batch: Batch::new(),
            logits: Vec::new(),
            embedding: vec![0.0; embeddings.map_or(0, |embeddings| embeddings.size as usize)],
            embeddings,
        })
    }

    pub fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    pub fn tokenizer(&self) -> &dyn Tokenize {
        &*self.tokenizer
    }

    /// None: the model has none.
    pub fn embeddings(&self) -> Option<EmbeddingSpec> {
        self.embeddings
    }

    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// What the model says, with the scheduler's own figures: blocks, if it has a layout, and pace.
    pub fn memory(&self) -> MemoryUse {
        details::memory(self.model.memory(), &self.scheduler)
    }

    /// (running, waiting).
    pub fn sequences(&self) -> (usize, usize) {
        (self.scheduler.running(), self.scheduler.waiting())
    }

    /// Takes a sequence, to be worked on by the next steps.
    ///
    /// # Errors
    /// `UNSUPPORTED`, see the header's `submit`; the sequence then has no events.
    pub fn submit(&mut self, sequence: SequenceId, prompt: Prompt, sampling: Sampling) -> Result<(), Status> {
        self.submit_salted(sequence, prompt, sampling, 0)
    }

    /// As [`Runner::submit`]. KV that earlier sequences with the same `cache_salt` left is used again.
    ///
    /// # Errors
    /// As `submit`.
    pub fn submit_salted(
        &mut self,
        sequence: SequenceId,
        prompt: Prompt,
        sampling: Sampling,
        cache_salt: u64,
    ) -> Result<(), Status> {
        self.submit_task(sequence, prompt, Task::Generate(sampling), cache_salt)
    }

    /// As [`Runner::submit_salted`], for whatever is to come of the prompt.
    ///
    /// # Errors
    /// As `submit`.
    pub fn submit_task(
        &mut self,
        sequence: SequenceId,
        prompt: Prompt,
        task: Task,
        cache_salt: u64,
    ) -> Result<(), Status> {
        self.check_task(&task)?;
        let prompt = match prompt {
            Prompt::Text { text, literal } if task == Task::Embed => {
                self.tokenizer.encode_to_embed(&text, &literal)?
            }
            Prompt::Text { text, literal } => self.tokenizer.encode(&text, &literal)?,
            Prompt::Tokens(tokens) => tokens,
        };
        if let Some(id) = prompt.iter().find(|&&id| id >= self.spec.vocabulary_size) {
            let below = self.spec.vocabulary_size;
            let message = format!("the prompt has token {id}; the model has the tokens below {below}");
            return Err(Status::unsupported(reason::INVALID_PROMPT, message).with_param("tokens"));
        }
        let Task::Generate(sampling) = task else {
            return self.scheduler.submit_embed(sequence, prompt, cache_salt);
        };
        let begin_with = BeginWith::new(&sampling.begin_with, &*self.tokenizer)?;
        let constrained = sampling
            .constraint
            .as_ref()
            .map(|constraint| self.grammars.start(constraint, &*self.tokenizer, &self.spec))
            .transpose()?;
        let history = History::new(&prompt, &sampling);
        self.scheduler.submit(sequence, prompt, sampling.tokens_max, cache_salt)?;
        let stop = StopMatcher::new(sampling.stop.clone());
        let unaided = self.model.chooses_unaided(&sampling);
        let state = Sequence { sampling, history, stop, begin_with, constrained, unaided };
        self.sequences.insert(sequence, state);
        Ok(())
    }

    fn check_task(&self, task: &Task) -> Result<(), Status> {
        match task {
            Task::Generate(_) if self.embeddings.is_some_and(|embeddings| embeddings.only) => {
                let message = "the model gives embeddings and no answers";
                Err(Status::unsupported(reason::NO_GENERATION, message).with_param("task"))
            }
            Task::Generate(sampling) => sampling.check(self.spec.vocabulary_size),
            Task::Embed if self.embeddings.is_none() => {
                let message = "the model has no embeddings";
                Err(Status::unsupported(reason::NO_EMBEDDINGS, message).with_param("task"))
            }
            Task::Embed => Ok(()),
        }
    }

    /// Marks a sequence for its end at the beginning of the next step.
    pub fn cancel(&mut self, sequence: SequenceId) {
        self.scheduler.cancel(sequence);
    }

    /// One iteration of the batch. Answers how many sequences have not had their last event.
    ///
    /// # Errors
    /// The forward pass failed: every sequence has ended, without further events.
    pub fn step(
        &mut self,
        progress: &mut Progress<'_>,
        sink: &mut dyn FnMut(&Event<'_>),
    ) -> Result<u32, Status> {
        while let Some(ended) = self.scheduler.end_cancelled() {
            self.finish(ended, FinishReason::Cancelled, sink);
        }
        if self.model_launches {
            self.step_ahead(progress, sink).inspect_err(|_| self.fail_all())?;
            return Ok(self.left());
        }
        self.admit(sink);
        if self.scheduler.running() > 0 {
            let plan = self.plan(sink);
            if !self.batch.is_empty() {
                let choices = self.forward(&plan.samples, progress).inspect_err(|_| self.fail_all())?;
                for (sequence, slot) in plan.embeds {
                    self.embed(sequence, slot, sink);
                }
                for (sample, choice) in plan.samples.into_iter().zip(choices) {
                    self.deliver(sample, choice, sink);
                }
            }
        }
        Ok(self.left())
    }

    /// Sequences that have not had their last event.
    fn left(&self) -> u32 {
        u32::try_from(self.scheduler.running() + self.scheduler.waiting()).unwrap_or(u32::MAX)
    }

    /// Ends every sequence without events, and gives all slots back to the model.
    pub fn fail_all(&mut self) {
        if self.under_way.take().is_some() {
            // What it says no longer matters: nobody is left to hear it.
            let _ = self.model.collect(&mut Progress::new(&mut |_, _| true));
        }
        self.sequences.clear();
        for ended in self.scheduler.fail_all() {
            if let Some(slot) = ended.slot {
                self.model.end(slot);
            }
        }
    }

    fn admit(&mut self, sink: &mut dyn FnMut(&Event<'_>)) {
        while let Some(mut admission) = self.scheduler.admit() {
            let sequence = admission.sequence;
            if let Err(status) = self.model.start(admission.slot, admission.tokens_max) {
                self.scheduler.fail(sequence);
                self.sequences.remove(&sequence);
                sink(&Event { sequence, kind: EventKind::Failed(&status) });
                continue;
            }
            if self.scheduler.kv().is_none() {
                let (prompt, salt) = self.scheduler.prompt(sequence);
                admission.cached_tokens = self.model.reuse(admission.slot, prompt, salt);
                self.scheduler.found(sequence, admission.cached_tokens);
            }
            if admission.again {
                continue;
            }
            let Admission { prompt_tokens, cached_tokens, .. } = admission;
            self.counters.prompt_tokens += u64::from(prompt_tokens);
            sink(&Event { sequence, kind: EventKind::Started { prompt_tokens, cached_tokens } });
        }
    }

    /// Decides on the next pass. Sequences that gave way leave their slots; those that fit nowhere have ended.
    fn plan(&mut self, sink: &mut dyn FnMut(&Event<'_>)) -> Plan {
        let mut plan = self.scheduler.plan(&mut self.batch);
        for slot in std::mem::take(&mut plan.preempted) {
            self.model.end(slot);
        }
        for (ended, status) in std::mem::take(&mut plan.failed) {
            self.forget(ended);
            sink(&Event { sequence: ended.sequence, kind: EventKind::Failed(&status) });
        }
        plan
    }

    /// Runs the batch, and chooses a token for every sample.
    fn forward(
        &mut self,
        samples: &[Sample],
        progress: &mut Progress<'_>,
    ) -> Result<Vec<Result<Choice, Status>>, Status> {
        self.count_step();
        // A host that wants everything to stop is heard even where the model never reports.
        progress.report(0, self.batch.tokens().len() as u64)?;
        let start = Instant::now();
        let draws = draws(samples, &self.sequences, &self.spec, &*self.tokenizer);
        if self.model_chooses {
            let choices = self.model.forward_and_choose(&self.batch, &draws, &mut self.sampler, progress)?;
            self.scheduler.completed(start.elapsed());
            assert_eq!(choices.len(), samples.len(), "the engine chose other rows than it was asked to");
            return Ok(choices);
        }
        let vocabulary_size = self.spec.vocabulary_size as usize;
        self.logits.resize(samples.len() * vocabulary_size, 0.0);
        self.model.forward(&self.batch, &mut Logits::new(&mut self.logits, vocabulary_size), progress)?;
        self.scheduler.completed(start.elapsed());
        let rows = self.logits.chunks_exact_mut(vocabulary_size).zip(&draws);
        Ok(rows.map(|(logits, draw)| self.sampler.choose_for(logits, draw)).collect())
    }

    fn count_step(&mut self) {
        let rows = u32::try_from(self.batch.len()).unwrap_or(u32::MAX);
        self.counters.steps += 1;
        self.counters.batch_sequences_max = self.counters.batch_sequences_max.max(rows);
    }

    fn deliver(&mut self, sample: Sample, choice: Result<Choice, Status>, sink: &mut dyn FnMut(&Event<'_>)) {
        let sequence = sample.sequence;
        let choice = match choice {
            Ok(choice) => choice,
            Err(status) => return self.fail(sequence, &status, sink),
        };
        let state = self.sequences.get_mut(&sequence).expect("what is planned is known");
        let mut ends = ends(&state.sampling, &self.spec, choice.id);
        let piece = |id| self.tokenizer.piece(id).unwrap_or(Piece { bytes: b"", control: false });
        let (id, chosen) = (choice.id, piece(choice.id));
        let logprobs: Vec<(TokenLogprob, Piece<'_>)> =
            choice.logprobs.into_iter().map(|l| (l, piece(l.id))).collect();
        state.history.push(id);
        state.begin_with.push(id, chosen);
        let spells_stop = !chosen.control && state.stop.push(chosen.bytes);
        let followed = match &mut state.constrained {
            Some(constrained) if !ends && !spells_stop => {
                let followed = constraint::push(constrained, id);
                ends = followed.is_ok() && constrained.is_over();
                followed
            }
            _ => Ok(()),
        };
        self.counters.completion_tokens += 1;
        sink(&Event { sequence, kind: EventKind::Token { id, piece: chosen, logprobs: &logprobs } });
        if let Err(status) = followed {
            return self.fail(sequence, &status, sink);
        }
        match self.scheduler.advance(sequence, id, ends || spells_stop) {
            Advance::Continues => {}
            Advance::Full(ended) => self.finish(ended, FinishReason::Length, sink),
            Advance::Stopped(ended) => self.finish(ended, FinishReason::Stop, sink),
        }
    }

    /// Ends one sequence that runs.
    fn fail(&mut self, sequence: SequenceId, status: &Status, sink: &mut dyn FnMut(&Event<'_>)) {
        let ended = self.scheduler.fail(sequence).expect("it runs");
        self.forget(ended);
        sink(&Event { sequence, kind: EventKind::Failed(status) });
    }

    fn embed(&mut self, sequence: SequenceId, slot: Slot, sink: &mut dyn FnMut(&Event<'_>)) {
        let made = self.model.embed(slot, &mut self.embedding);
        if let Err(status) = made.and_then(|()| embedding::normalize(&mut self.embedding)) {
            return self.fail(sequence, &status, sink);
        }
        sink(&Event { sequence, kind: EventKind::Embedding(&self.embedding) });
        let ended = self.scheduler.embedded(sequence);
        self.finish(ended, FinishReason::Stop, sink);
    }

    fn finish(&mut self, ended: Ended, reason: FinishReason, sink: &mut dyn FnMut(&Event<'_>)) {
        self.forget(ended);
        let Ended { sequence, completion_tokens, .. } = ended;
        sink(&Event { sequence, kind: EventKind::Finished { reason, completion_tokens } });
    }

    fn forget(&mut self, ended: Ended) {
        self.sequences.remove(&ended.sequence);
        if let Some(under_way) = &mut self.under_way {
            under_way.ignore(ended.sequence);
        }
        if let Some(slot) = ended.slot {
            self.model.end(slot);
        }
    }
}

fn draws<'s>(
    samples: &[Sample],
    sequences: &'s HashMap<SequenceId, Sequence>,
    spec: &ModelSpec,
    tokenizer: &dyn Tokenize,
) -> Vec<Draw<'s>> {
    let of = |sample: &Sample| {
        let state = sequences.get(&sample.sequence).expect("what is planned is known");
        draw(state, spec, tokenizer, sample.position)
    };
    samples.iter().map(of).collect()
}

/// What it takes to choose the next token of a sequence, which goes to `position`.
fn draw<'s>(state: &'s Sequence, spec: &ModelSpec, tokenizer: &dyn Tokenize, position: u32) -> Draw<'s> {
    let Sequence { sampling, history, begin_with, constrained, .. } = state;
    let only = match constrained {
        Some(constrained) => Some(Only::Borrowed(constrained.next())),
        None => begin_with
            .allowed(tokenizer, spec.vocabulary_size, |id| ends(sampling, spec, *id))
            .map(Only::Owned),
    };
    Draw { sampling, history, position, only }
}

/// Whether a token ends an answer.
fn ends(sampling: &Sampling, spec: &ModelSpec, id: u32) -> bool {
    sampling.stop_tokens.contains(&id) || (!sampling.ignore_end_tokens && spec.end_tokens.contains(&id))
}

fn check_embeddings(
    embeddings: &EmbeddingSpec,
    spec: &ModelSpec,
    in_blocks: bool,
    launches: bool,
) -> Result<(), Status> {
    let sound = (1..=EMBEDDING_SIZE_MAX).contains(&embeddings.size)
        && !launches
        && (!embeddings.whole || (spec.batch_tokens_max >= spec.context_length && !in_blocks));
    if sound {
        return Ok(());
    }
    let message = format!("the engine loaded {spec:?} with {embeddings:?}");
    Err(Status::internal(reason::INTERNAL, message))
}

fn check_spec(spec: &ModelSpec) -> Result<(), Status> {
    let sound = spec.vocabulary_size > 0
        && spec.context_length > 1
        && spec.sequences_max > 0
        && spec.batch_tokens_max >= spec.sequences_max;
    if sound {
        Ok(())
    } else {
        Err(Status::internal(reason::INTERNAL, format!("the engine loaded {spec:?}")))
    }
}

#[cfg(test)]
mod tests;
