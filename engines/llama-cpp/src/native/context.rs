//! A context of llama.cpp: its KV, its threads, and the pass of a batch through the model.

use std::cell::Cell;
use std::ffi::c_void;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use engine_sdk::{Batch, Logits, Progress, Status, reason};
use llama_cpp_sys_2 as sys;

use super::guard::{guarded, llmr_llama_decode};
use super::model::LoadedModel;
use super::say;
use crate::embedding::Pooled;
use crate::options::KvFormat;

/// Tokens that pass through the graph at once; more save no time on any device we know of.
pub(crate) const PASS_TOKENS_MAX: u32 = 512;
/// How often the host hears of a pass. It is asked between any two operations of the graph.
const REPORT_EVERY: Duration = Duration::from_millis(50);

/// What a context is made for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ContextParameters {
    /// Places for keys and values, over all sequences.
    pub(crate) cells: u32,
    pub(crate) sequences: u32,
    pub(crate) batch_tokens: u32,
    pub(crate) kv_format: KvFormat,
    /// All sequences have their cells in one place and can share them; else each has an equal part.
    pub(crate) shared_cells: bool,
    /// The attention that keeps scores; see [`crate::attention`].
    pub(crate) keeps_scores: bool,
    /// None: logits are wanted.
    pub(crate) embedding: Option<Pooled>,
    pub(crate) threads: usize,
}

/// Why a pass has no logits.
#[derive(Debug)]
pub(crate) enum DecodeError {
    /// There is no cell free for a token.
    NoRoom,
    /// The host wanted it to stop, or it failed; part of the batch may be in the KV.
    Ended(Status),
}

/// A sequence of llama.cpp: what it holds, and what may be done with it.
pub(crate) struct Context {
    raw: NonNull<sys::llama_context>,
    threads: NonNull<sys::ggml_threadpool>,
    watch: Box<Watch>,
    rows: Rows,
    vocabulary_size: usize,
    /// Behind the context, which points to it.
    model: Arc<LoadedModel>,
}

// SAFETY: a context belongs to whoever has it; llama.cpp asks for one caller at a time and not for the same thread.
unsafe impl Send for Context {}

/// What the graph asks between two operations: whether anybody still wants the result.
struct Watch {
    /// Null between passes.
    progress: Cell<*mut c_void>,
    /// The thread of the pass; the others of the pool never ask, by llama.cpp's word.
    thread: Cell<Option<ThreadId>>,
    reported: Cell<Instant>,
    tokens: Cell<u64>,
}

/// A batch as llama.cpp wants it, kept from step to step.
#[derive(Default)]
struct Rows {
    tokens: Vec<sys::llama_token>,
    positions: Vec<sys::llama_pos>,
    counts: Vec<i32>,
    sequences: Vec<sys::llama_seq_id>,
    lists: Vec<*mut sys::llama_seq_id>,
    outputs: Vec<i8>,
    /// Where in the batch the tokens are whose logits are wanted, in the order of the SDK's rows.
    wanted: Vec<i32>,
}

impl Context {
    /// # Errors
    /// `LOAD_FAILED` when llama.cpp cannot make it, in its words.
    pub(crate) fn new(
        id: &str,
        model: Arc<LoadedModel>,
        parameters: &ContextParameters,
    ) -> Result<Context, Status> {
        Context::with(id, model, parameters, |_| ())
    }

    /// As [`Context::new`], with what llama.cpp is given changed.
    fn with(
        id: &str,
        model: Arc<LoadedModel>,
        parameters: &ContextParameters,
        change: impl FnOnce(&mut sys::llama_context_params),
    ) -> Result<Context, Status> {
        let threads = i32::try_from(parameters.threads).unwrap_or(i32::MAX);
        let watch = Box::new(Watch {
            progress: Cell::new(null_mut()),
            thread: Cell::new(None),
            reported: Cell::new(Instant::now()),
            tokens: Cell::new(0),
        });
        say::take_error();
        let failed = || {
            let words = say::take_error().unwrap_or_else(|| "no reason was given".to_owned());
            Status::load_failed("llama_cpp", format!("{id}: llama.cpp makes no context: {words}"))
        };
        // SAFETY: the model outlives the context (`Context::model`); the watch is boxed, so that it stays where it is; the
        // parameters are llama.cpp's own defaults with numbers changed.
        unsafe {
            let mut given = sys::llama_context_default_params();
            given.n_ctx = parameters.cells;
            given.n_batch = parameters.batch_tokens;
            given.n_ubatch = parameters.batch_tokens.min(PASS_TOKENS_MAX);
            given.n_seq_max = parameters.sequences;
            // Logits are wanted once for a sequence and pass.
            given.n_outputs_max = parameters.sequences;
            given.n_outputs_max_per_seq = 1;
            given.n_threads = threads;
            given.n_threads_batch = threads;
            given.type_k = kv_type(parameters.kv_format);
            given.type_v = given.type_k;
            given.kv_unified = parameters.shared_cells;
            given.flash_attn_type = if parameters.keeps_scores {
                sys::LLAMA_FLASH_ATTN_TYPE_DISABLED
            } else {
                sys::LLAMA_FLASH_ATTN_TYPE_ENABLED
            };
            if let Some(pooled) = parameters.embedding {
                given.embeddings = true;
                // Every token's row is an output then, whether it is pooled or not.
                given.n_outputs_max = parameters.batch_tokens;
                given.n_outputs_max_per_seq = parameters.batch_tokens;
                if pooled.whole {
                    // A prompt that is cut into several graphs would be pooled in parts.
                    given.n_ubatch = parameters.batch_tokens;
                    given.kv_unified = true;
                }
            }
            given.swa_full = false;
            given.no_perf = true;
            given.abort_callback = Some(is_unwanted);
            given.abort_callback_data = (&raw const *watch).cast_mut().cast();
            change(&mut given);
            let raw = NonNull::new(sys::llama_init_from_model(model.raw(), given)).ok_or_else(failed)?;
            let mut pool = sys::ggml_threadpool_params_default(threads);
            let Some(threads) = NonNull::new(sys::ggml_threadpool_new(&raw mut pool)) else {
                sys::llama_free(raw.as_ptr());
                return Err(failed());
            };
            sys::llama_attach_threadpool(raw.as_ptr(), threads.as_ptr(), threads.as_ptr());
            let vocabulary = sys::llama_model_get_vocab(model.raw());
            let vocabulary_size = usize::try_from(sys::llama_vocab_n_tokens(vocabulary)).unwrap_or(0);
            Ok(Context { raw, threads, watch, rows: Rows::default(), vocabulary_size, model })
        }
    }

    pub(crate) fn model(&self) -> &LoadedModel {
        &self.model
    }

    pub(crate) fn vocabulary_size(&self) -> usize {
        self.vocabulary_size
    }

    /// Runs a batch; `sequence_of` says which sequence of llama.cpp the n-th row is.
    ///
    /// # Errors
    /// See [`DecodeError`].
    pub(crate) fn decode(
        &mut self,
        batch: &Batch,
        sequence_of: impl Fn(engine_sdk::Slot) -> u32,
        logits: &mut Logits<'_>,
        progress: &mut Progress<'_>,
    ) -> Result<(), DecodeError> {
        self.rows.fill(batch, sequence_of);
        let tokens = batch.tokens().len();
        self.watch.tokens.set(tokens as u64);
        self.watch.thread.set(Some(std::thread::current().id()));
        self.watch.reported.set(Instant::now());
        self.watch.progress.set((&raw mut *progress).cast());
        say::take_error();
        let (given, mut code) = (self.rows.as_batch(), 0);
        let done = guarded(|words, room| {
            // SAFETY: the arrays have as many entries as is said and live until the call returns; positions follow on what the
            // KV has, by the SDK's scheduler.
            unsafe { llmr_llama_decode(self.raw.as_ptr(), &raw const given, &raw mut code, words, room) }
        });
        self.watch.progress.set(null_mut());
        if let Err(words) = done {
            let message = format!("llama.cpp throws while it decodes {tokens} tokens: {words}");
            return Err(DecodeError::Ended(Status::internal(reason::INTERNAL, message)));
        }
        match code {
            0 => {}
            1 => return Err(DecodeError::NoRoom),
            _ if progress.is_cancelled() => {
                return Err(DecodeError::Ended(Status::cancelled("the host asked to stop")));
            }
            code => {
                let words = say::take_error().unwrap_or_else(|| "no reason was given".to_owned());
                let message = format!("llama.cpp fails to decode {tokens} tokens with code {code}: {words}");
                return Err(DecodeError::Ended(Status::internal(reason::INTERNAL, message)));
            }
        }
        for (row, &index) in self.rows.wanted.iter().enumerate() {
            // SAFETY: the pass has succeeded, and this index wanted logits: a row of the vocabulary's size, or null.
            let from = unsafe {
                let from = sys::llama_get_logits_ith(self.raw.as_ptr(), index);
                NonNull::new(from).map(|from| std::slice::from_raw_parts(from.as_ptr(), self.vocabulary_size))
            };
            let Some(from) = from else {
                let message = format!("llama.cpp has no logits for token {index} of a batch of {tokens}");
                return Err(DecodeError::Ended(Status::internal(reason::INTERNAL, message)));
            };
            logits.row_mut(row).copy_from_slice(from);
        }
        Ok(())
    }

    /// The embedding of a sequence whose last token was in the last pass.
    ///
    /// # Errors
    /// `INTERNAL` where llama.cpp has none.
    pub(crate) fn embedding(&self, sequence: u32, out: &mut [f32]) -> Result<(), Status> {
        assert_eq!(out.len(), self.model.embedding_size() as usize, "an embedding of another size");
        // SAFETY: the context is there; what it has for a sequence are as many numbers as the model says, or null, and they
        // stay until the next pass.
        let from = unsafe {
            let from = sys::llama_get_embeddings_seq(self.raw.as_ptr(), id(sequence));
            NonNull::new(from).map(|from| std::slice::from_raw_parts(from.as_ptr(), out.len()))
        };
        let Some(from) = from else {
            let message = format!("llama.cpp has no embedding for sequence {sequence}");
            return Err(Status::internal(reason::INTERNAL, message));
        };
        out.copy_from_slice(from);
        Ok(())
    }

    fn memory(&self) -> sys::llama_memory_t {
        // SAFETY: the context is there.
        unsafe { sys::llama_get_memory(self.raw.as_ptr()) }
    }

    /// Drops what a sequence holds from a position on; false where the kind of model cannot do that for a part.
    pub(crate) fn remove(&mut self, sequence: u32, from: u32) -> bool {
        // SAFETY: the sequence is below the number the context was made for; the memory belongs to the context.
        unsafe { sys::llama_memory_seq_rm(self.memory(), id(sequence), position(from), -1) }
    }

    /// Lets `to`, which holds nothing, hold the first `tokens` positions of `from` too.
    pub(crate) fn share(&mut self, from: u32, to: u32, tokens: u32) {
        // SAFETY: as above.
        unsafe { sys::llama_memory_seq_cp(self.memory(), id(from), id(to), 0, position(tokens)) };
    }

    /// The first position that is still there; none where the sequence holds nothing.
    pub(crate) fn first_held(&self, sequence: u32) -> Option<u32> {
        // SAFETY: as above.
        u32::try_from(unsafe { sys::llama_memory_seq_pos_min(self.memory(), id(sequence)) }).ok()
    }

    /// Drops everything.
    pub(crate) fn clear(&mut self) {
        // SAFETY: as above.
        unsafe { sys::llama_memory_clear(self.memory(), false) };
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: both were made in `new`; the context goes first, because it uses the threads.
        unsafe {
            sys::llama_free(self.raw.as_ptr());
            sys::ggml_threadpool_free(self.threads.as_ptr());
        }
    }
}

impl Rows {
    /// Sequences come in the order of their numbers: where each has cells of its own llama.cpp computes those whose numbers
    /// follow on one another together, and cuts the batch wherever the next one is not the next number.
    fn fill(&mut self, batch: &Batch, sequence_of: impl Fn(engine_sdk::Slot) -> u32) {
        let Rows { tokens, positions, counts, sequences, outputs, wanted, .. } = self;
        tokens.clear();
        positions.clear();
        sequences.clear();
        outputs.clear();
        wanted.clear();
        let mut rows: Vec<_> = batch.rows().map(|row| (sequence_of(row.slot), row)).collect();
        rows.sort_by_key(|(sequence, _)| *sequence);
        for (sequence, row) in rows {
            tokens.extend(row.tokens.iter().map(|token| token.cast_signed()));
            positions.extend((row.position..).take(row.tokens.len()).map(position));
            sequences.extend(row.tokens.iter().map(|_| id(sequence)));
            outputs.extend(row.tokens.iter().map(|_| 0));
            if let Some(last) = outputs.last_mut() {
                *last = i8::from(row.wants_logits);
            }
        }
        counts.resize(tokens.len(), 1);
        for row in batch.rows().filter(|row| row.wants_logits) {
            let sequence = id(sequence_of(row.slot));
            let last = sequences.iter().rposition(|other| *other == sequence).expect("its row is there");
            wanted.push(i32::try_from(last).unwrap_or(i32::MAX));
        }
    }

    fn as_batch(&mut self) -> sys::llama_batch {
        let Rows { tokens, positions, counts, sequences, lists, outputs, .. } = self;
        lists.clear();
        lists.extend(sequences.iter_mut().map(|sequence| &raw mut *sequence));
        sys::llama_batch {
            n_tokens: i32::try_from(tokens.len()).unwrap_or(i32::MAX),
            token: tokens.as_mut_ptr(),
            embd: null_mut(),
            pos: positions.as_mut_ptr(),
            n_seq_id: counts.as_mut_ptr(),
            seq_id: lists.as_mut_ptr(),
            logits: outputs.as_mut_ptr(),
        }
    }
}

fn kv_type(format: KvFormat) -> sys::ggml_type {
    match format {
        KvFormat::F32 => sys::GGML_TYPE_F32,
        KvFormat::F16 => sys::GGML_TYPE_F16,
        KvFormat::Q8_0 => sys::GGML_TYPE_Q8_0,
    }
}

fn id(sequence: u32) -> sys::llama_seq_id {
    sequence.cast_signed()
}

/// Contexts are far shorter than 2^31.
fn position(position: u32) -> sys::llama_pos {
    position.cast_signed()
}

/// # Safety
/// `data` is the [`Watch`] of the context.
unsafe extern "C" fn is_unwanted(data: *mut c_void) -> bool {
    // SAFETY: the context keeps its watch until it is freed.
    let watch = unsafe { &*data.cast::<Watch>() };
    let progress = watch.progress.get();
    if progress.is_null() || watch.thread.get() != Some(std::thread::current().id()) {
        return false;
    }
    if watch.reported.get().elapsed() < REPORT_EVERY {
        return false;
    }
    watch.reported.set(Instant::now());
    // SAFETY: `decode` lends it until the pass has returned, on this thread, and does not touch it meanwhile.
    let progress = unsafe { &mut *progress.cast::<Progress<'_>>() };
    // Which part of the batch is done llama.cpp does not tell: a sign of life.
    progress.report(0, watch.tokens.get()).is_err()
}

// The exception of the tests is thrown by a function that only this C++ library has.
#[cfg(all(test, target_os = "linux"))]
mod tests;
