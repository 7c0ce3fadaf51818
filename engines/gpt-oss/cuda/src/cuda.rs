//! An NVIDIA GPU as a device, by the driver's own library, which is looked for at run time.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

use crate::device::{
    Address, Device, DeviceError, FETCH_BYTES_MAX, FETCHES_MAX, Fetch, Info, Launch, Recording,
};
use crate::figures::{self, InUse, Place};

/// Pinned memory of one of the two staging buffers: one is filled while the other is read by the device.
const STAGING_BYTES: usize = 32 << 20;
/// Pieces of a staging buffer that are filled at once: one thread alone reads mapped files at a part of the bus's speed.
const COPY_THREADS: usize = 8;
/// Less than this is copied by the caller alone.
const COPY_THREAD_BYTES_MIN: usize = 1 << 20;

include!(concat!(env!("OUT_DIR"), "/images.rs"));

#[cfg(windows)]
const LIBRARY: &str = "nvcuda.dll";
#[cfg(not(windows))]
const LIBRARY: &str = "libcuda.so.1";

/// What hides GPUs from a process.
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// A GPU of this machine.
#[derive(Debug, Clone)]
pub struct Gpu {
    /// Among all that there are, as `nvidia-smi` and the node count them, whatever is hidden. The driver's own order begins with
    /// the fastest.
    pub number: u32,
    /// The driver's own number.
    ordinal: i32,
    place: Place,
    pub name: String,
    /// Such as (9, 0).
    pub capability: (i32, i32),
    /// Blocks run on so many at once.
    pub processors: u32,
    pub memory_total: u64,
}

impl Gpu {
    /// Whether this build has kernels for it.
    pub fn has_kernels(&self) -> bool {
        image(self.capability).is_some()
    }
}

/// The GPUs that the driver shows to this process, by their numbers. Allocates nothing on them.
///
/// # Errors
/// [`DeviceError::NoDriver`] where there is no driver library; [`DeviceError::Failed`] where it does not work.
pub fn gpus() -> Result<Vec<Gpu>, DeviceError> {
    let count = if start()? { call("count of devices", result::device::get_count)? } else { 0 };
    let mut gpus: Vec<Gpu> = (0..count).map(gpu).collect::<Result<_, _>>()?;
    gpus.sort_by_key(|gpu| gpu.place);
    let shown: Vec<Place> = gpus.iter().map(|gpu| gpu.place).collect();
    let numbered = gpus.into_iter().zip(numbers(&shown, figures::places().as_deref()));
    let mut gpus: Vec<Gpu> =
        numbered.filter_map(|(gpu, number)| Some(Gpu { number: number?, ..gpu })).collect();
    gpus.sort_by_key(|gpu| gpu.number);
    Ok(gpus)
}

/// The numbers of GPUs that the driver shows, in the order of their places, among all that there are; none of one of which nobody
/// can say which it is.
fn numbers(shown: &[Place], all: Option<&[Option<Place>]>) -> Vec<Option<u32>> {
    let in_order = || (0..).map(Some).take(shown.len()).collect();
    // Without NVML, which comes with the driver, those that are hidden are not known.
    let Some(all) = all else { return in_order() };
    let number = |place| all.iter().position(|known| *known == Some(place));
    let found: Vec<_> =
        shown.iter().map(|place| number(*place).and_then(|n| u32::try_from(n).ok())).collect();
    // Where none is hidden the order says it too.
    if all.len() == shown.len() && found.contains(&None) { in_order() } else { found }
}

/// The GPU of this number.
///
/// # Errors
/// As [`gpus`], and [`DeviceError::NoDevice`]: there is none, or it is hidden from this process.
pub fn find(number: u32) -> Result<Gpu, DeviceError> {
    let gpus = gpus()?;
    let shown = gpus.len();
    if let Some(gpu) = gpus.into_iter().find(|gpu| gpu.number == number) {
        return Ok(gpu);
    }
    let all = figures::places().map_or(shown, |places| places.len());
    let cause = match std::env::var(VISIBLE) {
        _ if number as usize >= all => format!("it has {all}"),
        Ok(visible) => format!(
            "{VISIBLE} is \"{visible}\", which hides it\n\
             hint: `nvidia-smi -L` lists the GPUs; name this one in {VISIBLE}, or start without that variable"
        ),
        Err(_) => "it is there, and not shown to this process".to_owned(),
    };
    Err(DeviceError::NoDevice { number, cause })
}

/// Loads the driver's library and starts it. Whether it shows any device.
fn start() -> Result<bool, DeviceError> {
    // SAFETY: opens the library, if it is there, which runs no code but its own.
    if !unsafe { sys::is_culib_present() } {
        return Err(DeviceError::NoDriver { library: LIBRARY });
    }
    call("start of the driver", || match result::init() {
        Err(DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE)) => Ok(false),
        started => started.map(|()| true),
    })
}

fn gpu(ordinal: i32) -> Result<Gpu, DeviceError> {
    use sys::CUdevice_attribute_enum as attribute;
    let device = call("device", || result::device::get(ordinal))?;
    // SAFETY: the device was just given by the driver.
    let read = |what| call("attribute", || unsafe { result::device::get_attribute(device, what) });
    Ok(Gpu {
        number: ordinal.unsigned_abs(),
        ordinal,
        place: [
            read(attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?,
            read(attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?,
            read(attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?,
        ],
        name: call("name", || result::device::get_name(device))?,
        capability: (
            read(attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            read(attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ),
        processors: read(attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?.unsigned_abs(),
        // SAFETY: as above.
        memory_total: call("memory", || unsafe { result::device::total_mem(device) })? as u64,
    })
}

/// A call of the driver. A function that an older driver does not have panics in the binding: that is an error too.
fn call<T>(operation: &str, function: impl FnOnce() -> Result<T, DriverError>) -> Result<T, DeviceError> {
    let failed = |cause| DeviceError::Failed { operation: operation.to_owned(), cause };
    match catch_unwind(AssertUnwindSafe(|| function().map_err(words))) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(words)) => Err(failed(words)),
        Err(_) => Err(failed("the driver lacks a function; a newer driver has it".to_owned())),
    }
}

fn words(error: DriverError) -> String {
    let text = |text: Result<&CStr, DriverError>| {
        text.map_or_else(|_| "unknown".to_owned(), |t| t.to_string_lossy().into_owned())
    };
    format!("{} ({})", text(error.error_string()), text(error.error_name()))
}

/// Whether the driver may load a compiled image on a GPU of this capability, and how well it fits: more is better.
fn fit(image: &str, (major, minor): (i32, i32)) -> Option<u32> {
    if let Some(target) = image.strip_prefix("sm_").and_then(|i| i.strip_suffix(".cubin")) {
        let (number, only_this) = target.strip_suffix('a').map_or((target, false), |n| (n, true));
        let number: i32 = number.parse().ok()?;
        let (image_major, image_minor) = (number / 10, number % 10);
        // Machine code runs on later ones of the same generation, unless it is for one alone.
        let runs =
            image_major == major && if only_this { image_minor == minor } else { image_minor <= minor };
        return runs.then(|| 100 + image_minor.unsigned_abs());
    }
    // What is compiled by the driver runs on everything later.
    let number: i32 = image.strip_prefix("compute_")?.strip_suffix(".ptx")?.parse().ok()?;
    (number <= major * 10 + minor).then_some(1)
}

/// The best of the images that were compiled ahead of time.
fn image(capability: (i32, i32)) -> Option<(&'static str, &'static [u8])> {
    let fits = IMAGES.iter().filter_map(|image| fit(image.0, capability).map(|fit| (fit, image)));
    fits.max_by_key(|(fit, _)| *fit).map(|(_, image)| *image)
}

/// Names of the images in this build.
pub fn images() -> impl Iterator<Item = &'static str> {
    IMAGES.iter().map(|image| image.0)
}

/// A GPU with the kernels loaded and a stream of work.
#[derive(Debug)]
pub struct Cuda {
    gpu: Gpu,
    handle: sys::CUdevice,
    context: sys::CUcontext,
    stream: sys::CUstream,
    module: sys::CUmodule,
    /// See [`Info::driver_bytes`].
    driver_bytes: Option<u64>,
    state: RefCell<State>,
}

#[derive(Debug, Default)]
struct State {
    functions: HashMap<&'static str, sys::CUfunction>,
    allocations: Vec<sys::CUdeviceptr>,
    graphs: Vec<sys::CUgraphExec>,
    staging: Vec<Staging>,
    /// The buffer to use next.
    next: usize,
    /// Where fetches arrive, used in turn.
    arrivals: Vec<Staging>,
    next_arrival: usize,
}

/// Pinned memory, and the event behind its last use.
#[derive(Debug, Clone, Copy)]
struct Staging {
    memory: *mut c_void,
    event: sys::CUevent,
}

impl Staging {
    /// Let go when the device is dropped. The context is current.
    fn new(bytes: usize) -> Result<Staging, DeviceError> {
        // SAFETY: freed with the event when the device is dropped.
        let memory = call("pinned memory", || unsafe { result::malloc_host(bytes, 0) })?;
        let event = call("event", || result::event::create(sys::CUevent_flags::CU_EVENT_DISABLE_TIMING));
        let event = event.inspect_err(|_| {
            // SAFETY: just allocated, and nobody has it.
            let _ = call("pinned memory", || unsafe { result::free_host(memory) });
        })?;
        Ok(Staging { memory, event })
    }
}

// SAFETY: the driver's handles may be used from any thread; every call makes the context current for its own.
unsafe impl Send for Cuda {}

impl Cuda {
    /// Opens a GPU with the kernels of this build, or with `kernels`: an image as a compiler gave it.
    ///
    /// # Errors
    /// There is no driver, no such GPU, or no kernels for it.
    pub fn open(number: u32, kernels: Option<&[u8]>) -> Result<Cuda, DeviceError> {
        let gpu = find(number)?;
        let bytes = match kernels.or_else(|| image(gpu.capability).map(|i| i.1)) {
            // PTX is text that ends with a zero.
            Some(image) => [image, &[0]].concat(),
            None => {
                let (major, minor) = gpu.capability;
                let capability = format!("{major}.{minor}");
                return Err(DeviceError::NoKernels { name: gpu.name, capability });
            }
        };
        let handle = call("device", || result::device::get(gpu.ordinal))?;
        let before = InUse::now(number);
        // SAFETY: the device was just given by the driver.
        let context = call("context", || unsafe { result::primary_ctx::retain(handle) })?;
        let mut cuda = Cuda {
            gpu,
            handle,
            context,
            stream: std::ptr::null_mut(),
            module: std::ptr::null_mut(),
            driver_bytes: None,
            state: RefCell::default(),
        };
        // What is not there yet is null, and freeing skips it.
        cuda.enter()?;
        cuda.stream = call("stream", || result::stream::create(result::stream::StreamKind::NonBlocking))?;
        // SAFETY: the image is whole, and lives until the call returns.
        cuda.module =
            call("load of kernels", || unsafe { result::module::load_data(bytes.as_ptr().cast()) })?;
        cuda.driver_bytes = before.taken_since();
        Ok(cuda)
    }

    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// Makes the context current for this thread.
    fn enter(&self) -> Result<(), DeviceError> {
        // SAFETY: the context is retained until this is dropped.
        call("context", || unsafe { result::ctx::set_current(self.context) })
    }

    fn function(&self, kernel: &'static str) -> Result<sys::CUfunction, DeviceError> {
        if let Some(function) = self.state.borrow().functions.get(kernel) {
            return Ok(*function);
        }
        let name = CString::new(kernel).expect("names of kernels have no zeros");
        // SAFETY: the module is loaded until this is dropped.
        let function = call(kernel, || unsafe { result::module::get_function(self.module, name) })?;
        self.state.borrow_mut().functions.insert(kernel, function);
        Ok(function)
    }

    /// A staging buffer that the device has read, and its number.
    fn staging(&self) -> Result<(usize, *mut u8), DeviceError> {
        let mut state = self.state.borrow_mut();
        let number = state.next % 2;
        state.next += 1;
        if state.staging.len() <= number {
            state.staging.push(Staging::new(STAGING_BYTES)?);
        }
        let Staging { memory, event } = state.staging[number];
        // SAFETY: the event is destroyed when this is dropped. One that was never recorded is done.
        call("upload", || unsafe { result::event::synchronize(event) })?;
        Ok((number, memory.cast()))
    }
}

/// Fills `to` by several threads if it is long.
fn copy(to: &mut [u8], from: &[u8]) {
    let piece = from.len().div_ceil(COPY_THREADS).max(COPY_THREAD_BYTES_MIN);
    if from.len() <= piece {
        return to.copy_from_slice(from);
    }
    std::thread::scope(|scope| {
        for (to, from) in to.chunks_mut(piece).zip(from.chunks(piece)) {
            scope.spawn(move || to.copy_from_slice(from));
        }
    });
}

impl Device for Cuda {
    fn info(&self) -> Result<Info, DeviceError> {
        self.enter()?;
        let (free, total) = call("free memory", result::mem_get_info)?;
        Ok(Info {
            name: self.gpu.name.clone(),
            processors: self.gpu.processors,
            memory_total: total as u64,
            memory_free: free as u64,
            driver_bytes: self.driver_bytes,
        })
    }

    fn allocate(&self, bytes: u64) -> Result<Address, DeviceError> {
        self.enter()?;
        let size = usize::try_from(bytes.max(1)).unwrap_or(usize::MAX);
        // SAFETY: what is in it is garbage, as is said; it is freed when this is dropped.
        match unsafe { result::malloc_sync(size) } {
            Ok(address) => {
                self.state.borrow_mut().allocations.push(address);
                Ok(Address(address))
            }
            Err(DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY)) => {
                Err(DeviceError::OutOfMemory { wanted: bytes, free: self.info()?.memory_free })
            }
            Err(error) => {
                Err(DeviceError::Failed { operation: "allocation".to_owned(), cause: words(error) })
            }
        }
    }

    fn upload(&self, to: Address, bytes: &[u8]) -> Result<(), DeviceError> {
        self.enter()?;
        for (n, from) in bytes.chunks(STAGING_BYTES).enumerate() {
            let (number, memory) = self.staging()?;
            // SAFETY: the buffer is that long at least, ours, and the device has read what was in it.
            let staged = unsafe { std::slice::from_raw_parts_mut(memory, from.len()) };
            copy(staged, from);
            let address = to.offset((n * STAGING_BYTES) as u64).0;
            let event = self.state.borrow().staging[number].event;
            // SAFETY: the caller's addresses are of this device, and the buffer stays as it is until the event.
            call("upload", || unsafe {
                result::memcpy_htod_async(address, staged, self.stream)?;
                result::event::record(event, self.stream)
            })?;
        }
        Ok(())
    }

    fn download(&self, from: Address, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.wait()?;
        // SAFETY: the caller's addresses are of this device; the call returns when the bytes are there.
        call("download", || unsafe { result::memcpy_dtoh_sync(bytes, from.0) })
    }

    fn begin_fetch(&self, from: Address, bytes: usize) -> Result<Fetch, DeviceError> {
        assert!(bytes <= FETCH_BYTES_MAX, "a fetch of {bytes} bytes");
        self.enter()?;
        let mut state = self.state.borrow_mut();
        let number = state.next_arrival % FETCHES_MAX;
        state.next_arrival += 1;
        if state.arrivals.len() <= number {
            state.arrivals.push(Staging::new(FETCH_BYTES_MAX)?);
        }
        let Staging { memory, event } = state.arrivals[number];
        // SAFETY: the buffer is that long, and nobody reads it before the event; the caller's address is of this device.
        call("fetch", || unsafe {
            let arrival = std::slice::from_raw_parts_mut(memory.cast::<u8>(), bytes);
            result::memcpy_dtoh_async(arrival, from.0, self.stream)?;
            result::event::record(event, self.stream)
        })?;
        Ok(Fetch(number))
    }

    fn end_fetch(&self, fetch: Fetch, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.enter()?;
        let Staging { memory, event } = self.state.borrow().arrivals[fetch.0];
        // SAFETY: the event was recorded behind the copy, and lives until this is dropped.
        call("work", || unsafe { result::event::synchronize(event) })?;
        // SAFETY: the copy into the buffer has ended, and none has begun since.
        bytes.copy_from_slice(unsafe { std::slice::from_raw_parts(memory.cast::<u8>(), bytes.len()) });
        Ok(())
    }

    fn launch(&self, launch: &Launch) -> Result<(), DeviceError> {
        self.enter()?;
        let function = self.function(launch.kernel)?;
        let mut arguments: Vec<u64> =
            launch.arguments.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let mut parameters = [arguments.as_mut_ptr().cast::<c_void>()];
        let [x, y, z] = launch.grid;
        // SAFETY: every kernel has one parameter, a struct of these bytes, as the tests on the emulated device check; the
        // driver copies it before it returns.
        call(launch.kernel, || unsafe {
            result::launch_kernel(
                function,
                (x, y, z),
                (launch.threads, 1, 1),
                0,
                self.stream,
                &mut parameters,
            )
        })
    }

    fn begin_recording(&self) -> Result<(), DeviceError> {
        self.enter()?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives until this is dropped.
        call("begin of recording", || unsafe { result::stream::begin_capture(self.stream, mode) })
    }

    fn end_recording(&self) -> Result<Recording, DeviceError> {
        self.enter()?;
        // SAFETY: as above; the graph is destroyed once it is instantiated, and that when this is dropped.
        let graph = call("end of recording", || unsafe {
            let graph = result::stream::end_capture(self.stream)?;
            let instance = result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0));
            result::graph::destroy(graph)?;
            instance
        })?;
        let mut state = self.state.borrow_mut();
        state.graphs.push(graph);
        Ok(Recording(state.graphs.len() - 1))
    }

    fn replay(&self, recording: Recording) -> Result<(), DeviceError> {
        self.enter()?;
        let graph = self.state.borrow().graphs[recording.0];
        // SAFETY: graph and stream live until this is dropped.
        call("replay", || unsafe { result::graph::launch(graph, self.stream) })
    }

    fn wait(&self) -> Result<(), DeviceError> {
        self.enter()?;
        // SAFETY: the stream lives until this is dropped.
        call("work", || unsafe { result::stream::synchronize(self.stream) })
    }

    /// By this machine's clock around work that is waited for: the driver's own clock has another name in each version.
    fn seconds(&self, work: &mut dyn FnMut() -> Result<(), DeviceError>) -> Result<f64, DeviceError> {
        self.wait()?;
        let start = Instant::now();
        work()?;
        self.wait()?;
        Ok(start.elapsed().as_secs_f64())
    }
}

impl Drop for Cuda {
    /// What cannot be freed after an error of the device goes with the process.
    fn drop(&mut self) {
        let _ = self.wait();
        let state = std::mem::take(self.state.get_mut());
        // SAFETY: everything was made by this context, and is let go once.
        let _ = call("end", || unsafe {
            for graph in state.graphs {
                let _ = result::graph::exec_destroy(graph);
            }
            for address in state.allocations {
                let _ = result::free_sync(address);
            }
            for Staging { memory, event } in state.staging.into_iter().chain(state.arrivals) {
                let _ = result::event::destroy(event);
                let _ = result::free_host(memory);
            }
            if !self.module.is_null() {
                let _ = result::module::unload(self.module);
            }
            if !self.stream.is_null() {
                let _ = result::stream::destroy(self.stream);
            }
            result::primary_ctx::release(self.handle)
        });
    }
}

#[cfg(test)]
mod tests;
