//! A device: memory, kernels by name, and rows of launches that run as one compute pass.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use crate::adapters::{self, Adapter};
use crate::experimental;
use crate::pages::{Lying, Pages};
use crate::shaders::{self, Form, Shape};

/// Every binding begins at a multiple of this, whatever the adapter would allow.
pub const BINDING_ALIGNMENT: u64 = 256;
/// Bytes that are on their way to the device at most: wgpu keeps them in memory of its own until it has them.
pub const STAGING_BYTES_MAX: usize = 32 << 20;
/// Sizes of buffers are multiples of this.
const WORD_BYTES: u64 = 4;

/// Why a device did not do what it was asked to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    #[error(
        "no device {id} on this machine; there are: {known}\nhint: `llm-router doctor` shows every adapter"
    )]
    NoAdapter { id: String, known: String },
    #[error("{id} ({name}) cannot run gpt-oss: {why}")]
    Unusable { id: String, name: String, why: String },
    #[error("{id} ({name}) computes on the processor\nhint: `--allow-software` uses it all the same")]
    Software { id: String, name: String },
    #[error("{what} has {wanted} bytes, and a buffer of this device has {limit} at most")]
    TooLarge { what: String, wanted: u64, limit: u64 },
    #[error("{wanted} bytes of device memory for {what} were refused; {used} are in use\ncause: {cause}")]
    OutOfMemory { what: String, wanted: u64, used: u64, cause: String },
    #[error("the device is lost: {cause}")]
    Lost { cause: String },
    #[error("{operation} on the device failed: {cause}")]
    Failed { operation: String, cause: String },
}

/// A buffer of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Memory {
    number: usize,
    pub bytes: u64,
}

/// What a kernel sees of a buffer: it begins at a multiple of [`BINDING_ALIGNMENT`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Slice {
    memory: Memory,
    offset: u64,
    bytes: u64,
}

impl Memory {
    /// All of it.
    pub fn whole(self) -> Slice {
        Slice { memory: self, offset: 0, bytes: self.bytes }
    }

    /// From a multiple of [`BINDING_ALIGNMENT`] at or before `offset` on, and how many bytes before it.
    ///
    /// # Panics
    /// When that is behind its end.
    pub fn from(self, offset: u64) -> (Slice, u32) {
        assert!(offset < self.bytes, "a binding behind the end of a buffer");
        let begin = offset / BINDING_ALIGNMENT * BINDING_ALIGNMENT;
        let slice = Slice { memory: self, offset: begin, bytes: self.bytes - begin };
        (slice, (offset - begin) as u32)
    }
}

/// A kernel at work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    pub kernel: &'static str,
    /// Workgroups.
    pub grid: [u32; 3],
    pub bindings: Vec<Slice>,
    /// See [`crate::ops`].
    pub arguments: Vec<u32>,
}

/// An adapter in use, with the kernels for one model's shape. Dropping it frees all its memory.
pub struct Gpu {
    adapter: Adapter,
    shape: Shape,
    device: wgpu::Device,
    queue: wgpu::Queue,
    pipelines: HashMap<&'static str, wgpu::ComputePipeline>,
    memory: Vec<wgpu::Buffer>,
    used: u64,
    /// Bytes that were uploaded since anything was waited for.
    staged: usize,
    /// What kernels were given before is given again.
    groups: HashMap<(&'static str, Vec<Slice>), wgpu::BindGroup>,
    /// What was launched at each place of a pass before: mostly the same again, which is then not looked up.
    places: Vec<Bound>,
    /// What the processor took to hand work to the driver, ever.
    submitting: Duration,
    /// What the device said outside of any call.
    trouble: Arc<Mutex<Option<DeviceError>>>,
    /// What was read back into before.
    spare: Vec<wgpu::Buffer>,
    /// Pages of weights that are a buffer, or have one like it.
    pages: Vec<(Pages, Memory)>,
    /// Weights that are read where they are mapped: freed behind everything above.
    #[cfg(target_os = "macos")]
    kept: Option<crate::model::KeptWeights>,
}

/// A kernel with what it is given.
#[derive(Debug)]
struct Bound {
    kernel: &'static str,
    bindings: Vec<Slice>,
    pipeline: wgpu::ComputePipeline,
    group: wgpu::BindGroup,
}

/// Launches that are on their way.
#[derive(Debug)]
pub(crate) struct Running(wgpu::SubmissionIndex);

/// Words that are on their way back from the device.
#[derive(Debug)]
pub(crate) struct Reading {
    buffer: wgpu::Buffer,
    words: usize,
    submitted: wgpu::SubmissionIndex,
    mapped: mpsc::Receiver<Result<(), wgpu::BufferAsyncError>>,
}

impl std::fmt::Debug for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gpu").field("adapter", &self.adapter.id).field("used", &self.used).finish()
    }
}

impl Gpu {
    /// Opens an adapter and compiles every kernel.
    ///
    /// # Errors
    /// [`DeviceError::Failed`]: the driver gives no device, or does not take a kernel.
    pub fn open(adapter: Adapter, shape: Shape) -> Result<Gpu, DeviceError> {
        let failed =
            |operation: &str, cause: String| DeviceError::Failed { operation: operation.to_owned(), cause };
        let limits = wgpu::Limits {
            max_buffer_size: adapter.buffer_max,
            max_storage_buffer_binding_size: adapter.binding_max,
            ..adapter.adapter.limits()
        };
        let descriptor = wgpu::DeviceDescriptor {
            required_features: adapters::features(adapter.form),
            experimental_features: match adapter.form {
                Form::Plain | Form::Subgroups => wgpu::ExperimentalFeatures::disabled(),
                Form::Matrices { .. } => experimental::features(),
            },
            required_limits: limits,
            // Buffers are few, large and made once.
            memory_hints: wgpu::MemoryHints::MemoryUsage,
            ..wgpu::DeviceDescriptor::default()
        };
        let (device, queue) = pollster::block_on(adapter.adapter.request_device(&descriptor))
            .map_err(|error| failed("opening", chain(&error)))?;
        let trouble = Arc::new(Mutex::new(None));
        let said = Arc::clone(&trouble);
        device.on_uncaptured_error(Arc::new(move |error: wgpu::Error| {
            note(&said, DeviceError::Failed { operation: "a launch".to_owned(), cause: chain(&error) });
        }));
        let said = Arc::clone(&trouble);
        device.set_device_lost_callback(move |reason, message| {
            // Some drivers say nothing.
            let cause = if message.is_empty() { format!("{reason:?}") } else { message };
            note(&said, DeviceError::Lost { cause });
        });
        let mut pipelines = HashMap::new();
        for kernel in shaders::KERNELS {
            let scope = device.push_error_scope(wgpu::ErrorFilter::Validation);
            let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
                label: Some(kernel.name),
                source: wgpu::ShaderSource::Wgsl(kernel.source(shape, adapter.form).into()),
            });
            let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: Some(kernel.name),
                layout: None,
                module: &module,
                entry_point: Some(kernel.entry),
                compilation_options: wgpu::PipelineCompilationOptions {
                    // No kernel reads what it has not written there.
                    zero_initialize_workgroup_memory: false,
                    ..wgpu::PipelineCompilationOptions::default()
                },
                cache: None,
            });
            if let Some(error) = pollster::block_on(scope.pop()) {
                return Err(failed(&format!("compiling the kernel {}", kernel.name), chain(&error)));
            }
            pipelines.insert(kernel.name, pipeline);
        }
        Ok(Gpu {
            adapter,
            shape,
            device,
            queue,
            pipelines,
            memory: Vec::new(),
            used: 0,
            staged: 0,
            groups: HashMap::new(),
            places: Vec::new(),
            submitting: Duration::ZERO,
            trouble,
            spare: Vec::new(),
            pages: Vec::new(),
            #[cfg(target_os = "macos")]
            kept: None,
        })
    }

    /// The buffer of pages that has these addresses already, and where they begin in it. So many bytes of it are new weights.
    ///
    /// # Errors
    /// More than may be taken of this device.
    pub(crate) fn holds(
        &mut self,
        range: &Range<usize>,
        bytes: u64,
        what: &str,
    ) -> Result<Option<(Memory, u64)>, DeviceError> {
        let held = self.pages.iter().find_map(|(pages, memory)| Some((*memory, pages.offset(range)? as u64)));
        if held.is_some() {
            self.has_room(what, bytes)?;
            self.used += bytes;
        }
        Ok(held)
    }

    /// Pages as a buffer, with weights that are kept, and where those begin in it. None where the system refuses.
    ///
    /// # Errors
    /// More than may be taken of this device.
    ///
    /// # Safety
    /// The pages belong to `weights`, and nobody writes to them.
    #[cfg(target_os = "macos")]
    #[expect(unsafe_code, reason = "a buffer that is not wgpu's own")]
    pub(crate) unsafe fn wrap(
        &mut self,
        what: &str,
        pages: Pages,
        lying: &Lying,
        weights: &crate::model::KeptWeights,
    ) -> Result<Option<(Memory, u64)>, DeviceError> {
        self.has_room(what, lying.bytes as u64)?;
        // SAFETY: as the caller promises; `kept` is freed behind the device, and dropping this waits for what runs.
        let Some(buffer) = (unsafe { crate::metal::wrap(&self.device, what, pages) }) else {
            return Ok(None);
        };
        self.kept = Some(Arc::clone(weights));
        Ok(Some(self.add_pages(buffer, pages, lying)))
    }

    /// A buffer of zeros that is like the pages, and where the weights begin in it.
    ///
    /// # Errors
    /// As [`Gpu::allocate`].
    #[cfg(not(target_os = "macos"))]
    pub(crate) fn stand_in(
        &mut self,
        what: &str,
        pages: Pages,
        lying: &Lying,
    ) -> Result<(Memory, u64), DeviceError> {
        self.has_room(what, lying.bytes as u64)?;
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST;
        let buffer = self.create(what, pages.bytes as u64, usage)?;
        Ok(self.add_pages(buffer, pages, lying))
    }

    fn add_pages(&mut self, buffer: wgpu::Buffer, pages: Pages, lying: &Lying) -> (Memory, u64) {
        self.memory.push(buffer);
        // What else is in these pages is no weight, or is counted when it is asked for.
        self.used += lying.bytes as u64;
        let memory = Memory { number: self.memory.len() - 1, bytes: pages.bytes as u64 };
        self.pages.push((pages, memory));
        (memory, (lying.range.start - pages.address) as u64)
    }

    fn has_room(&self, what: &str, bytes: u64) -> Result<(), DeviceError> {
        match self.adapter.memory_max {
            Some(granted) if self.used + bytes > granted => Err(DeviceError::OutOfMemory {
                what: what.to_owned(),
                wanted: bytes,
                used: self.used,
                cause: format!("{granted} bytes may be taken of this device"),
            }),
            _ => Ok(()),
        }
    }

    /// Gives the device up as a driver does that has lost it: for tests of what follows.
    pub fn lose(&self) {
        self.device.destroy();
    }

    pub fn adapter(&self) -> &Adapter {
        &self.adapter
    }

    /// What its kernels were compiled for.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Bytes that were allocated.
    pub fn used(&self) -> u64 {
        self.used
    }

    /// Bytes that the driver was asked for now, staging included, where wgpu counts them.
    pub fn driver_bytes(&self) -> Option<u64> {
        self.device.generate_allocator_report().map(|report| report.total_allocated_bytes)
    }

    /// Buffers that they are in.
    pub fn buffers(&self) -> usize {
        self.memory.len()
    }

    /// Bytes of a buffer at most, all of which a kernel can see.
    pub fn buffer_max(&self) -> u64 {
        self.adapter.buffer_max.min(self.adapter.binding_max)
    }

    /// Zeroed memory until the device is dropped.
    ///
    /// # Errors
    /// [`DeviceError::TooLarge`] and [`DeviceError::OutOfMemory`], with both numbers.
    pub fn allocate(&mut self, what: &str, bytes: u64) -> Result<Memory, DeviceError> {
        let bytes = buffer_bytes(bytes);
        let limit = self.buffer_max();
        if bytes > limit {
            return Err(DeviceError::TooLarge { what: what.to_owned(), wanted: bytes, limit });
        }
        self.has_room(what, bytes)?;
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::COPY_SRC;
        let buffer = self.create(what, bytes, usage)?;
        self.memory.push(buffer);
        self.used += bytes;
        Ok(Memory { number: self.memory.len() - 1, bytes })
    }

    fn create(&self, what: &str, bytes: u64, usage: wgpu::BufferUsages) -> Result<wgpu::Buffer, DeviceError> {
        self.check()?;
        let scope = self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let descriptor =
            wgpu::BufferDescriptor { label: Some(what), size: bytes, usage, mapped_at_creation: false };
        let buffer = self.device.create_buffer(&descriptor);
        match pollster::block_on(scope.pop()) {
            None => self.check().map(|()| buffer),
            Some(error) => Err(DeviceError::OutOfMemory {
                what: what.to_owned(),
                wanted: bytes,
                used: self.used,
                cause: chain(&error),
            }),
        }
    }

    /// Copies `bytes` to the device, behind what was launched before. What is on its way is waited for before it is more than
    /// [`STAGING_BYTES_MAX`], in one call or in many, so that weights are not twice in memory.
    ///
    /// # Errors
    /// The device has failed.
    ///
    /// # Panics
    /// When `offset` is no multiple of four, or the bytes do not fit.
    pub fn upload(&mut self, to: Memory, offset: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        assert!(offset.is_multiple_of(WORD_BYTES), "an upload to a broken word");
        assert!(offset + bytes.len() as u64 <= to.bytes, "an upload behind the end of a buffer");
        let begun = Instant::now();
        for (n, piece) in bytes.chunks(STAGING_BYTES_MAX).enumerate() {
            if self.staged + piece.len() > STAGING_BYTES_MAX {
                self.queue.submit([]);
                self.wait()?;
                self.staged = 0;
            }
            self.staged += piece.len();
            let at = offset + (n * STAGING_BYTES_MAX) as u64;
            let whole = piece.len() / 4 * 4;
            let buffer = &self.memory[to.number];
            self.queue.write_buffer(buffer, at, &piece[..whole]);
            if whole < piece.len() {
                let mut word = [0; 4];
                word[..piece.len() - whole].copy_from_slice(&piece[whole..]);
                self.queue.write_buffer(buffer, at + whole as u64, &word);
            }
        }
        self.submitting += begun.elapsed();
        self.check()
    }

    /// Runs launches one after the other, in one compute pass. Returns at once; what goes wrong is told by a later call.
    ///
    /// # Errors
    /// The device, or something launched before, has failed.
    ///
    /// # Panics
    /// For a kernel that there is not.
    pub fn run(&mut self, launches: &[Launch]) -> Result<(), DeviceError> {
        self.begin(launches).map(drop)
    }

    /// As [`Gpu::run`], for who waits for it later.
    ///
    /// # Errors
    /// As `run`.
    pub(crate) fn begin(&mut self, launches: &[Launch]) -> Result<Running, DeviceError> {
        let encoder = self.encode(launches)?;
        let submitted = self.submit(encoder);
        self.check().map(|()| Running(submitted))
    }

    /// Waits for launches, and for none behind them.
    ///
    /// # Errors
    /// Something of them has failed.
    pub(crate) fn wait_until(&self, running: Running) -> Result<(), DeviceError> {
        self.wait_for(wgpu::PollType::Wait { submission_index: Some(running.0), timeout: None })
    }

    /// What the processor took to hand work to the driver, since the device was opened.
    pub(crate) fn submitting(&self) -> Duration {
        self.submitting
    }

    fn submit(&mut self, encoder: wgpu::CommandEncoder) -> wgpu::SubmissionIndex {
        let recorded = encoder.finish();
        let begun = Instant::now();
        let submitted = self.queue.submit([recorded]);
        self.submitting += begun.elapsed();
        submitted
    }

    /// As [`Gpu::run`], and begins to read the first words of a buffer behind it.
    ///
    /// # Errors
    /// As `run`.
    pub(crate) fn run_and_read(
        &mut self,
        launches: &[Launch],
        from: Memory,
        words: usize,
    ) -> Result<Reading, DeviceError> {
        let encoder = self.encode(launches)?;
        self.begin_read(encoder, from, 0, words)
    }

    fn encode(&mut self, launches: &[Launch]) -> Result<wgpu::CommandEncoder, DeviceError> {
        self.check()?;
        let mut encoder = self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
        let (mut last, mut arguments) = ("", Vec::new());
        for (place, launch) in launches.iter().enumerate() {
            let before = self.places.get(place);
            if before.is_none_or(|b| b.kernel != launch.kernel || b.bindings != launch.bindings) {
                let bound = self.bind(launch);
                match self.places.get_mut(place) {
                    Some(before) => *before = bound,
                    None => self.places.push(bound),
                }
            }
            let Bound { pipeline, group, .. } = &self.places[place];
            if launch.kernel != last {
                pass.set_pipeline(pipeline);
                last = launch.kernel;
            }
            pass.set_bind_group(0, group, &[]);
            arguments.clear();
            arguments.extend(launch.arguments.iter().flat_map(|word| word.to_ne_bytes()));
            pass.set_immediates(0, &arguments);
            let [x, y, z] = launch.grid;
            pass.dispatch_workgroups(x, y, z);
        }
        drop(pass);
        Ok(encoder)
    }

    fn bind(&mut self, launch: &Launch) -> Bound {
        let Launch { kernel, ref bindings, .. } = *launch;
        let pipeline = self.pipelines[kernel].clone();
        let group = self.groups.entry((kernel, bindings.clone())).or_insert_with(|| {
            let entries: Vec<_> = (0u32..)
                .zip(bindings)
                .map(|(binding, slice)| wgpu::BindGroupEntry {
                    binding,
                    resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                        buffer: &self.memory[slice.memory.number],
                        offset: slice.offset,
                        size: wgpu::BufferSize::new(slice.bytes),
                    }),
                })
                .collect();
            self.device.create_bind_group(&wgpu::BindGroupDescriptor {
                label: Some(kernel),
                layout: &pipeline.get_bind_group_layout(0),
                entries: &entries,
            })
        });
        Bound { kernel, bindings: bindings.clone(), group: group.clone(), pipeline }
    }

    /// Submits what is encoded, and a copy of words of a buffer to where the host can read them.
    fn begin_read(
        &mut self,
        mut encoder: wgpu::CommandEncoder,
        from: Memory,
        first: usize,
        words: usize,
    ) -> Result<Reading, DeviceError> {
        let (begin, bytes) = (first as u64 * WORD_BYTES, words.max(1) as u64 * WORD_BYTES);
        assert!(begin + bytes <= from.bytes, "reading behind the end of a buffer");
        let buffer = match self.spare.iter().position(|buffer| buffer.size() >= bytes) {
            Some(at) => self.spare.swap_remove(at),
            None => {
                let usage = wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST;
                self.create("what is read back", bytes, usage)?
            }
        };
        encoder.copy_buffer_to_buffer(&self.memory[from.number], begin, &buffer, 0, bytes);
        let submitted = self.submit(encoder);
        let (told, mapped) = mpsc::channel();
        buffer.map_async(wgpu::MapMode::Read, 0..bytes, move |result| {
            // Nobody listens any more only when waiting failed, which is told instead.
            let _ = told.send(result);
        });
        self.check()?;
        Ok(Reading { buffer, words, submitted, mapped })
    }

    /// Waits for what is read, and for no launch behind it.
    ///
    /// # Errors
    /// The device, or something launched before, has failed.
    pub(crate) fn read(&mut self, reading: Reading) -> Result<Vec<u32>, DeviceError> {
        let Reading { buffer, words, submitted, mapped } = reading;
        self.wait_for(wgpu::PollType::Wait { submission_index: Some(submitted), timeout: None })?;
        // But for the few words of a step that was launched since.
        self.staged = 0;
        let failed = |cause: String| DeviceError::Failed { operation: "reading back".to_owned(), cause };
        match mapped.try_recv() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(failed(chain(&error))),
            Err(error) => return Err(failed(chain(&error))),
        }
        let bytes = words.max(1) as u64 * WORD_BYTES;
        let view = buffer.get_mapped_range(0..bytes).map_err(|error| failed(chain(&error)))?;
        let words = view.as_chunks::<4>().0.iter().take(words).map(|b| u32::from_ne_bytes(*b)).collect();
        drop(view);
        buffer.unmap();
        self.spare.push(buffer);
        Ok(words)
    }

    /// Waits for everything that was launched before, and copies words of a buffer, from the word `first` on.
    ///
    /// # Errors
    /// The device, or something launched before, has failed.
    ///
    /// # Panics
    /// When the buffer has fewer.
    pub fn download(&mut self, from: Memory, first: usize, words: usize) -> Result<Vec<u32>, DeviceError> {
        if words == 0 {
            return self.wait().map(|()| Vec::new());
        }
        self.check()?;
        let encoder = self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let reading = self.begin_read(encoder, from, first, words)?;
        self.read(reading)
    }

    /// As [`Gpu::download`], of numbers.
    ///
    /// # Errors
    /// As `download`.
    ///
    /// # Panics
    /// As `download`.
    pub fn download_f32(&mut self, from: Memory, first: usize, to: &mut [f32]) -> Result<(), DeviceError> {
        let words = self.download(from, first, to.len())?;
        for (number, word) in to.iter_mut().zip(words) {
            *number = f32::from_bits(word);
        }
        Ok(())
    }

    /// Waits for everything that was launched.
    ///
    /// # Errors
    /// Something of it has failed.
    pub fn wait(&self) -> Result<(), DeviceError> {
        self.wait_for(wgpu::PollType::wait_indefinitely())
    }

    fn wait_for(&self, what: wgpu::PollType) -> Result<(), DeviceError> {
        let waited = self.device.poll(what);
        self.check()?;
        waited.map(|_| ()).map_err(|error| DeviceError::Lost { cause: chain(&error) })
    }

    fn check(&self) -> Result<(), DeviceError> {
        let said = || self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if said().is_none() {
            return Ok(());
        }
        // A loss is told only when the device is asked, and explains the rest. What is under way does not matter any more.
        let _ = self.device.poll(wgpu::PollType::Poll);
        said().map_or(Ok(()), Err)
    }
}

#[cfg(target_os = "macos")]
impl Drop for Gpu {
    fn drop(&mut self) {
        // What runs may read weights that are unmapped next. What went wrong matters to nobody any more.
        let _ = self.wait();
    }
}

/// Bytes of a buffer for so many: whole words, and never none.
pub fn buffer_bytes(bytes: u64) -> u64 {
    bytes.max(1).next_multiple_of(WORD_BYTES)
}

/// Keeps the first: what follows comes of it. A loss explains more than what failed because of it.
fn note(trouble: &Mutex<Option<DeviceError>>, error: DeviceError) {
    let mut kept = trouble.lock().unwrap_or_else(PoisonError::into_inner);
    if kept.is_none() || matches!(error, DeviceError::Lost { .. }) {
        *kept = Some(error);
    }
}

/// An error and all its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += ": ";
        text += &error.to_string();
        cause = error.source();
    }
    text
}
