//! An opened engine: the model it holds, and the memory behind what it handed out.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Mutex, MutexGuard, PoisonError, TryLockError},
    thread::ThreadId,
};

use engine_abi as c;

use super::{fence, input, output};
use crate::{
    Counters, Device, DeviceBytes, DeviceNeed, Engine, Event, EventKind, MemoryUse, ModelFiles, Runner,
    SequenceId, Settings, Status, log, log::LogLevel, reason,
};

/// INTERNAL: a function of the engine-thread was called elsewhere, or while another one ran.
const WRONG_THREAD: &str = "wrong_thread";

pub(super) struct Opened<E: Engine> {
    thread: ThreadId,
    on_thread: Mutex<OnThread<E>>,
    /// Sequences that have not had their last event, and whether their end was asked for.
    live: Mutex<BTreeMap<SequenceId, bool>>,
}

impl<E: Engine> Opened<E> {
    pub fn new() -> Opened<E> {
        Opened {
            thread: std::thread::current().id(),
            on_thread: Mutex::new(OnThread::default()),
            live: Mutex::new(BTreeMap::new()),
        }
    }

    /// The part that belongs to the engine-thread.
    ///
    /// # Errors
    /// `INTERNAL` `wrong_thread` when the host breaks the header's rule.
    pub fn on_thread(&self) -> Result<MutexGuard<'_, OnThread<E>>, Status> {
        if std::thread::current().id() != self.thread {
            return Err(Status::internal(WRONG_THREAD, "called on another thread than open was"));
        }
        match self.on_thread.try_lock() {
            Ok(guard) => Ok(guard),
            // A panic was answered with a status, and what it left behind was dealt with there.
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {
                Err(Status::internal(WRONG_THREAD, "called while another function of the engine runs"))
            }
        }
    }

    fn live(&self) -> MutexGuard<'_, BTreeMap<SequenceId, bool>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn remember(&self, sequence: SequenceId) {
        self.live().insert(sequence, false);
    }

    /// Any thread.
    pub fn cancel(&self, sequence: SequenceId) {
        if let Some(asked) = self.live().get_mut(&sequence) {
            *asked = true;
        }
    }

    pub fn take_cancelled(&self) -> Vec<SequenceId> {
        self.live().iter().filter(|(_, asked)| **asked).map(|(sequence, _)| *sequence).collect()
    }

    pub fn saw(&self, event: &Event<'_>) {
        if matches!(event.kind, EventKind::Finished { .. } | EventKind::Failed(_)) {
            self.live().remove(&event.sequence);
        }
    }

    pub fn forget_sequences(&self) {
        self.live().clear();
    }
}

/// Everything but the cancels. The vectors are what the host may still be reading: each is replaced at the next call of
/// the function it belongs to, as the header allows.
pub(super) struct OnThread<E: Engine> {
    runner: Option<Runner<E::Model>>,
    devices: Vec<Device>,
    c_devices: Vec<c::Device>,
    needs: Vec<DeviceNeed>,
    c_needs: Vec<c::DeviceNeed>,
    ids: Vec<u32>,
    memory: MemoryUse,
    c_memory: Vec<c::DeviceBytes>,
}

impl<E: Engine> Default for OnThread<E> {
    fn default() -> Self {
        OnThread {
            runner: None,
            devices: Vec::new(),
            c_devices: Vec::new(),
            needs: Vec::new(),
            c_needs: Vec::new(),
            ids: Vec::new(),
            memory: MemoryUse::default(),
            c_memory: Vec::new(),
        }
    }
}

impl<E: Engine> OnThread<E> {
    pub fn devices(&mut self) -> Result<c::Devices, Status> {
        self.devices = E::devices()?;
        self.c_devices = self
            .devices
            .iter()
            .map(|device| c::Device {
                struct_size: size_of::<c::Device>() as u32,
                reserved: 0,
                id: output::text(&device.id),
                kind: output::text(&device.kind),
                name: output::text(&device.name),
                memory_total: device.memory_total,
                memory_free: device.memory_free,
            })
            .collect();
        Ok(c::Devices {
            struct_size: size_of::<c::Devices>() as u32,
            count: count(&self.c_devices),
            element_size: size_of::<c::Device>() as u64,
            items: self.c_devices.as_ptr(),
        })
    }

    pub fn estimate(&mut self, files: &ModelFiles, settings: &Settings) -> Result<c::Estimate, Status> {
        let estimate = E::estimate(files, settings)?;
        self.needs = estimate.devices;
        self.c_needs = self
            .needs
            .iter()
            .map(|need| c::DeviceNeed {
                struct_size: size_of::<c::DeviceNeed>() as u32,
                reserved: 0,
                device: output::text(&need.device),
                weights: need.weights,
                weights_mapped: need.weights_mapped,
                workspace: need.workspace,
                per_sequence: need.per_sequence,
                kv_per_token: need.kv_per_token,
                kv_fixed: need.kv_fixed,
            })
            .collect();
        Ok(c::Estimate {
            struct_size: size_of::<c::Estimate>() as u32,
            count: count(&self.c_needs),
            element_size: size_of::<c::DeviceNeed>() as u64,
            items: self.c_needs.as_ptr(),
            context_length_max: estimate.context_length_max,
            reserved: 0,
        })
    }

    pub fn load(
        &mut self,
        files: &ModelFiles,
        settings: &Settings,
        budget: &[DeviceBytes],
        report: &mut input::Report,
    ) -> Result<c::Loaded, Status> {
        if self.runner.is_some() {
            return Err(Status::unsupported(
                reason::MODEL_ALREADY_LOADED,
                "a model is loaded; unload comes first",
            ));
        }
        let model = report.with(|progress| E::load(files, settings, budget, progress))?;
        let runner = Runner::new(model)?;
        let spec = runner.spec();
        let over = |got: u32, asked: Option<u32>| asked.is_some_and(|asked| got > asked);
        if over(spec.context_length, settings.context_length)
            || over(spec.sequences_max, settings.sequences_max)
        {
            let message = format!("the engine loaded more than was asked for: {spec:?} for {settings:?}");
            return Err(Status::internal(reason::INTERNAL, message));
        }
        let runner = self.runner.insert(runner);
        let (spec, embeddings) = (runner.spec(), runner.embeddings());
        Ok(c::Loaded {
            struct_size: size_of::<c::Loaded>() as u32,
            context_length: spec.context_length,
            sequences_max: spec.sequences_max,
            vocabulary_size: spec.vocabulary_size,
            end_token_count: count(&spec.end_tokens),
            reserved: 0,
            end_tokens: spec.end_tokens.as_ptr(),
            embedding_size: embeddings.map_or(0, |embeddings| embeddings.size),
            flags: if embeddings.is_some_and(|e| e.only) { c::LOADED_EMBEDS_ONLY } else { 0 },
        })
    }

    pub fn unload(&mut self) {
        let runner = self.runner.take();
        fence::quiet(|| drop(runner));
    }

    fn runner(&mut self) -> Result<&mut Runner<E::Model>, Status> {
        self.runner.as_mut().ok_or_else(|| {
            Status::unsupported(reason::MODEL_NOT_LOADED, "no model is loaded; load comes first")
        })
    }

    pub fn tokenize(&mut self, text: &str, literal: &[Range<usize>]) -> Result<c::Tokens, Status> {
        self.ids = self.runner()?.tokenizer().encode(text, literal)?;
        Ok(c::Tokens {
            struct_size: size_of::<c::Tokens>() as u32,
            count: count(&self.ids),
            ids: self.ids.as_ptr(),
        })
    }

    pub fn submit(&mut self, submission: input::Submission) -> Result<(), Status> {
        let input::Submission { sequence, request_id, prompt, task, cache_salt } = submission;
        let submitted = self.runner()?.submit_task(sequence, prompt, task, cache_salt);
        match &submitted {
            Ok(()) => log::line(
                LogLevel::Debug,
                sequence,
                format_args!("request {request_id} is sequence {sequence}"),
            ),
            Err(status) => {
                log::line(LogLevel::Debug, sequence, format_args!("request {request_id} refused: {status}"))
            }
        }
        submitted
    }

    pub fn step(
        &mut self,
        cancelled: &[SequenceId],
        report: &mut input::Report,
        sink: &mut dyn FnMut(&Event<'_>),
    ) -> Result<u32, Status> {
        let runner = self.runner()?;
        cancelled.iter().for_each(|&sequence| runner.cancel(sequence));
        report.with(|progress| runner.step(progress, sink))
    }

    /// After a failed step. Where even the end of a sequence panics, the model is beyond use and goes.
    pub fn fail_all(&mut self) {
        let Some(runner) = &mut self.runner else { return };
        if fence::quiet(|| runner.fail_all()).is_none() {
            self.unload();
        }
    }

    pub fn stats(&mut self) -> c::Stats {
        let (counters, running, waiting) = match &self.runner {
            Some(runner) => {
                self.memory = runner.memory();
                let (running, waiting) = runner.sequences();
                (runner.counters(), running, waiting)
            }
            None => {
                self.memory = MemoryUse::default();
                (Counters::default(), 0, 0)
            }
        };
        let entry = |d: &DeviceBytes| c::DeviceBytes { device: output::text(&d.device), bytes: d.bytes };
        self.c_memory = self.memory.devices.iter().map(entry).collect();
        c::Stats {
            struct_size: size_of::<c::Stats>() as u32,
            sequences_running: u32::try_from(running).unwrap_or(u32::MAX),
            sequences_waiting: u32::try_from(waiting).unwrap_or(u32::MAX),
            batch_sequences_max: counters.batch_sequences_max,
            steps: counters.steps,
            prompt_tokens: counters.prompt_tokens,
            completion_tokens: counters.completion_tokens,
            kv_bytes_used: self.memory.kv_bytes_used,
            kv_bytes_total: self.memory.kv_bytes_total,
            memory: self.c_memory.as_ptr(),
            memory_count: count(&self.c_memory),
            reserved: 0,
            details_json: output::text(&self.memory.details_json),
        }
    }
}

fn count<T>(items: &[T]) -> u32 {
    u32::try_from(items.len()).expect("devices and tokens are far fewer than four billion")
}
