//! The step of a model that launches: the next pass is launched before the tokens of the last one are waited for.
//!
//! So the device has work while the host reads tokens, searches stop strings, writes events and plans. The price is a row too
//! many for every sequence that a token ends, which nobody reads. What a client sees is the same as without: rows do not depend
//! on each other, and a token is drawn by seed and position.

use std::time::Instant;

use super::{Runner, Sequence, draw, draws};
use crate::{
    Choice, Event, Model, Progress, Status,
    scheduler::{Sample, SequenceId},
};

/// A step whose tokens were not waited for yet.
pub(super) struct UnderWay {
    /// None: the sequence has ended meanwhile.
    samples: Vec<Option<Sample>>,
    since: Instant,
}

impl UnderWay {
    /// The sequence has ended. Its number may be another one's soon.
    pub fn ignore(&mut self, sequence: SequenceId) {
        for sample in &mut self.samples {
            if sample.is_some_and(|s| s.sequence == sequence) {
                *sample = None;
            }
        }
    }
}

impl Sequence {
    /// Whether its next token but one can be chosen without knowing the next.
    fn goes_ahead(&self) -> bool {
        let sampling = &self.sampling;
        self.unaided
            && sampling.presence_penalty == 0.0
            && sampling.frequency_penalty == 0.0
            && sampling.repetition_penalty == 1.0
            && self.history.answer_tokens() >= sampling.tokens_min
            && !self.begin_with.is_restricting()
            && self.constrained.is_none()
    }
}

impl<M: Model> Runner<M> {
    /// Plans and launches a step, then delivers the tokens of the one before.
    pub(super) fn step_ahead(
        &mut self,
        progress: &mut Progress<'_>,
        sink: &mut dyn FnMut(&Event<'_>),
    ) -> Result<(), Status> {
        if !self.may_go_ahead() {
            self.collect(progress, sink)?;
        }
        self.admit(sink);
        let plan = self.plan(sink);
        // A host that wants everything to stop is heard even where the model never reports.
        progress.report(0, self.batch.tokens().len() as u64)?;
        if self.batch.is_empty() {
            return self.collect(progress, sink);
        }
        self.count_step();
        let draws = draws(&plan.samples, &self.sequences, &self.spec, &*self.tokenizer);
        let launched = self.model.launch(&self.batch, &draws, progress);
        // After an error nothing is under way, the step before included.
        launched.inspect_err(|_| self.under_way = None)?;
        self.scheduler.launched();
        let samples = plan.samples.into_iter().map(Some).collect();
        let next = UnderWay { samples, since: Instant::now() };
        let Some(last) = self.under_way.replace(next) else { return Ok(()) };
        self.deliver_all(last, progress, sink)
    }

    /// Whether every token of the step under way can stay unknown while the next step is launched.
    fn may_go_ahead(&self) -> bool {
        let samples = self.under_way.iter().flat_map(|step| step.samples.iter().flatten());
        samples.map(|sample| &self.sequences[&sample.sequence]).all(Sequence::goes_ahead)
    }

    /// Delivers the tokens of the step under way, if there is one.
    fn collect(
        &mut self,
        progress: &mut Progress<'_>,
        sink: &mut dyn FnMut(&Event<'_>),
    ) -> Result<(), Status> {
        self.under_way.take().map_or(Ok(()), |step| self.deliver_all(step, progress, sink))
    }

    fn deliver_all(
        &mut self,
        step: UnderWay,
        progress: &mut Progress<'_>,
        sink: &mut dyn FnMut(&Event<'_>),
    ) -> Result<(), Status> {
        let choices = self.model.collect(progress).inspect_err(|_| self.under_way = None)?;
        assert_eq!(choices.len(), step.samples.len(), "the engine chose other rows than it was asked to");
        let done = Instant::now();
        self.scheduler.paced(done - step.since);
        if let Some(next) = &mut self.under_way {
            // It began when this one ended.
            next.since = done;
        }
        let mut chosen = Vec::with_capacity(choices.len());
        for (row, (choice, sample)) in choices.into_iter().zip(step.samples).enumerate() {
            let Some(sample) = sample else { continue };
            chosen.push((sample, choice.map_or_else(|| self.choose_here(row, sample), Ok)?));
        }
        for (sample, choice) in chosen {
            self.deliver(sample, choice, sink);
        }
        Ok(())
    }

    /// What the device left to the host.
    fn choose_here(&mut self, row: usize, sample: Sample) -> Result<Result<Choice, Status>, Status> {
        assert!(self.under_way.is_none(), "the engine left a choice to the SDK that it said it would make");
        self.logits.resize(self.spec.vocabulary_size as usize, 0.0);
        self.model.logits(row, &mut self.logits)?;
        let state = &self.sequences[&sample.sequence];
        let draw = draw(state, &self.spec, &*self.tokenizer, sample.position);
        Ok(self.sampler.choose_for(&mut self.logits, &draw))
    }
}

#[cfg(test)]
mod tests;
