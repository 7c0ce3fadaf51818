//! What an engine writes: [`Engine`] and [`Model`]. Everything else of a plugin comes from this crate.

use std::{sync::Arc, time::Duration};

use crate::{
    Batch, Choice, Device, DeviceBytes, Draw, EmbeddingSpec, EngineInfo, Estimate, KvLayout, Logits,
    MemoryUse, ModelFiles, ModelSpec, Progress, Sampler, Sampling, Settings, Slot, Status, Tokenize, reason,
    scheduler::PREFILL_GAP_DEFAULT,
};

/// An engine: what it is, where it can run, and how it loads a model.
///
/// Export it with [`export_engine!`](crate::export_engine). A panic in any of these becomes an `INTERNAL` status; the
/// host then ends the process. Nothing here may print to stdout, install signal handlers or end the process.
pub trait Engine: 'static {
    type Model: Model;

    fn info() -> EngineInfo;

    /// The devices there are on this machine, best first. Asked anew each time; must not allocate on them.
    fn devices() -> Result<Vec<Device>, Status>;

    /// What a load with these settings would take. Reads headers only, in well under a second.
    fn estimate(files: &ModelFiles, settings: &Settings) -> Result<Estimate, Status>;

    /// Loads a model. `budget` has the bytes that may be used on each device, as [`Engine::estimate`] counts them
    /// (mapped weights not included); empty: whatever is free. Settings that are `None` are chosen to fit it; what does
    /// not fit at all is refused with `OOM_VRAM` or `OOM_RAM` and both numbers. The process holds one model at a time.
    fn load(
        files: &ModelFiles,
        settings: &Settings,
        budget: &[DeviceBytes],
        progress: &mut Progress<'_>,
    ) -> Result<Self::Model, Status>;
}

/// A loaded model. Scheduling, sampling, stop strings and events are not its business: it turns tokens into logits.
///
/// All methods are called from one thread at a time, with one exception made by type: the tokenizer is shared.
/// Dropping it frees everything.
pub trait Model: Send + 'static {
    /// Asked once after loading.
    fn spec(&self) -> ModelSpec;

    /// Asked once after loading; used from any thread, also while a step runs.
    fn tokenizer(&self) -> Arc<dyn Tokenize>;

    /// How its KV lies in blocks; asked once after loading. With a layout the SDK keeps block tables: the KV of a row is
    /// in the blocks that [`Row::table`](crate::Row::table) names and nowhere else, prefixes are found again, and
    /// sequences may give way to older ones. Without one (`None`) the model keeps the KV of each slot by itself, as long
    /// as the slot is started, and has to have room for `sequences_max` sequences of `context_length`.
    fn kv(&self) -> Option<KvLayout> {
        None
    }

    /// How much later a token of a stream may come because somebody else's prompt is read in its step; asked once after
    /// loading. The scheduler sizes chunks of prompts so, from how long steps take.
    fn prefill_gap(&self) -> Duration {
        PREFILL_GAP_DEFAULT
    }

    /// A sequence of at most `tokens_max` positions (prompt and answer) begins in a slot that is free. An error ends
    /// that sequence alone; the slot then counts as free and `end` is not called for it.
    ///
    /// With a [`Model::kv`] layout its first row may begin behind position 0: what is before was found in blocks. And it
    /// may be a sequence that gave way and is read again.
    fn start(&mut self, slot: Slot, tokens_max: u32) -> Result<(), Status>;

    /// Asked behind `start`, of a model without a [`Model::kv`] layout: of how many of the first tokens of `prompt` the slot
    /// has the KV already. The sequence's first row begins there; at most all but the last token, which is always read.
    ///
    /// Such a model may keep what a slot held after `end`, as long as it has the room, and hand it on here; only to prompts
    /// with the same `salt`, so that nobody can learn from time what others have asked.
    fn reuse(&mut self, slot: Slot, prompt: &[u32], salt: u64) -> u32 {
        let _ = (slot, prompt, salt);
        0
    }

    /// The sequence has ended, or gave way: what the model holds for the slot is to be gone when this returns, or free for
    /// whoever needs it (see [`Model::reuse`]). Blocks are not its business: what is in them may be read by other sequences and be wanted again.
    fn end(&mut self, slot: Slot);

    /// Runs the rows of `batch` through the model, stores their keys and values, and writes the logits of those that want
    /// them. A row attends to its own sequence's earlier positions and to itself, causally; in a layer with a window only
    /// to the last so many. Blocks hold garbage where no row of the sequence was.
    ///
    /// The result of a row must not depend on which other rows are in the batch, nor on how its prompt was cut into
    /// chunks, beyond rounding. A model that offers an option `deterministic` drops "beyond rounding": then the same
    /// bits come whatever is beside a row, however it was cut, and whether its KV was found or computed again; and so
    /// the same request has the same tokens. The scheduler needs to know nothing of it.
    ///
    /// Progress counts tokens of the batch; at least one report each second of work.
    ///
    /// # Errors
    /// Ends every running sequence with that status. Slots are then freed by `end` as usual.
    fn forward(
        &mut self,
        batch: &Batch,
        logits: &mut Logits<'_>,
        progress: &mut Progress<'_>,
    ) -> Result<(), Status>;

    /// Whether [`Model::forward_and_choose`] is called instead of [`Model::forward`]; asked once after loading.
    fn chooses(&self) -> bool {
        false
    }

    /// As [`Model::forward`], and then chooses a token for every row that wants logits, by the rules of [`Sampler`], so
    /// that logits need not leave the device. `draws` has one entry for each such row, in order. What the device cannot
    /// choose, `sampler` can, from the row's logits.
    ///
    /// # Errors
    /// As `forward`. What is wrong with a single row is that row's own error and ends its sequence alone.
    fn forward_and_choose(
        &mut self,
        batch: &Batch,
        draws: &[Draw<'_>],
        sampler: &mut Sampler,
        progress: &mut Progress<'_>,
    ) -> Result<Vec<Result<Choice, Status>>, Status> {
        let _ = (batch, draws, sampler, progress);
        Err(Status::internal(reason::INTERNAL, "the engine says that it chooses tokens, and does not"))
    }

    /// Whether [`Model::launch`] and [`Model::collect`] are called instead of `forward` and `forward_and_choose`; asked once
    /// after loading. Such a model chooses tokens on its device, and the next step is launched before the tokens of the one
    /// before have come to the host, so that the device does not wait.
    fn launches(&self) -> bool {
        false
    }

    /// Whether the device chooses tokens by itself under `sampling`, whatever is beside them; asked at the submission of a
    /// sequence, of models that launch. Where it does not, or where a choice depends on the tokens before (penalties, a
    /// beginning that is given, `tokens_min`), the step behind is launched only when its tokens are known.
    fn chooses_unaided(&self, sampling: &Sampling) -> bool {
        let _ = sampling;
        false
    }

    /// Launches a pass and the choice of a token for every row that wants logits, by the rules of [`Sampler`], behind what
    /// was launched before. `draws` has one entry for each such row, in order. A row with
    /// [`Row::chosen_by`](crate::Row::chosen_by) reads what that draw of the launch before chooses.
    ///
    /// At most two launches are not collected at a time. [`Model::end`] may come for a slot, and its blocks may go to others,
    /// while a row of it is under way: what that row still writes has to come before what later launches write.
    ///
    /// # Errors
    /// As `forward`; then nothing is under way any more.
    fn launch(
        &mut self,
        batch: &Batch,
        draws: &[Draw<'_>],
        progress: &mut Progress<'_>,
    ) -> Result<(), Status> {
        let _ = (batch, draws, progress);
        Err(Status::internal(reason::INTERNAL, "the engine says that it launches steps, and does not"))
    }

    /// Waits for the oldest launch that was not collected, and answers what its draws chose. None: the device cannot choose
    /// for this row; [`Model::logits`] has what it would have chosen from.
    ///
    /// # Errors
    /// As `forward_and_choose`; then nothing is under way any more.
    fn collect(
        &mut self,
        progress: &mut Progress<'_>,
    ) -> Result<Vec<Option<Result<Choice, Status>>>, Status> {
        let _ = progress;
        Err(Status::internal(reason::INTERNAL, "the engine says that it launches steps, and does not"))
    }

    /// The logits for draw number `draw` of the step that was collected last, where that was answered with none. Nothing was
    /// launched since.
    ///
    /// # Errors
    /// As `forward`.
    fn logits(&mut self, draw: usize, logits: &mut [f32]) -> Result<(), Status> {
        let _ = (draw, logits);
        Err(Status::internal(reason::INTERNAL, "the engine leaves choices to the SDK, and has no logits"))
    }

    /// Its embeddings, asked once after loading; `None`: it has none, and prompts to be embedded are refused. Not of a model
    /// that launches.
    fn embeddings(&self) -> Option<EmbeddingSpec> {
        None
    }

    /// The embedding of the sequence in `slot`, into as many numbers as [`Model::embeddings`] says: its length is the SDK's
    /// to make 1. Called behind the pass that has read the last token of its prompt, and before any other; the rows of
    /// such a sequence want no logits.
    ///
    /// # Errors
    /// Ends that sequence alone.
    fn embed(&mut self, slot: Slot, out: &mut [f32]) -> Result<(), Status> {
        let _ = (slot, out);
        Err(Status::internal(reason::INTERNAL, "the engine says that it has embeddings, and does not"))
    }

    /// What is in use now, for the operator.
    fn memory(&self) -> MemoryUse {
        MemoryUse::default()
    }
}
