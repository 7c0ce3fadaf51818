//! The processor as a device: the kernels themselves, compiled by g++ against `emulation/emulation.h`.

use std::alloc::{Layout, alloc, dealloc};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::ffi::{CString, c_char, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::device::{
    Address, Device, DeviceError, FETCH_BYTES_MAX, FETCHES_MAX, Fetch, Info, Launch, Recording,
};
use crate::plan::PAGE_BYTES;

/// Of every allocation, as CUDA's.
const ALIGNMENT: usize = 256;
/// As a GPU of a desktop would have; only the number of parts of attention depends on it.
const PROCESSORS: u32 = 4;
const ERROR_BYTES: usize = 512;

unsafe extern "C" {
    fn emulation_argument_bytes(kernel: *const c_char) -> usize;
    fn emulation_launch(
        kernel: *const c_char,
        grid: *const c_uint,
        threads: c_uint,
        arguments: *const c_void,
        schedule: u64,
        error: *mut c_char,
        error_bytes: usize,
    ) -> bool;
}

/// Memory that is allocated, for whoever outlives the device.
#[derive(Debug, Default)]
pub struct Usage {
    bytes: AtomicU64,
    pages: AtomicU64,
}

impl Usage {
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Bytes, where each allocation has whole pages of a driver.
    pub fn page_bytes(&self) -> u64 {
        self.pages.load(Ordering::Relaxed) * PAGE_BYTES
    }

    fn add(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.pages.fetch_add(bytes.div_ceil(PAGE_BYTES), Ordering::Relaxed);
    }

    fn take(&self, bytes: u64) {
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.pages.fetch_sub(bytes.div_ceil(PAGE_BYTES), Ordering::Relaxed);
    }
}

/// Runs every launch to its end before it returns; or, if it is late, everything when somebody waits for it, and no more
/// than that.
#[derive(Debug)]
pub struct Emulated {
    /// 0: threads run in their order. Else a seed: they run in an order by chance.
    schedule: u64,
    memory_total: u64,
    is_late: bool,
    usage: Arc<Usage>,
    state: RefCell<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Start to layout.
    allocations: BTreeMap<u64, Layout>,
    recording: Option<Vec<Launch>>,
    recorded: Vec<Vec<Launch>>,
    /// What a late device has still to do.
    waiting: VecDeque<Work>,
    /// What fetches have brought, and the fetch to use next.
    fetched: [Option<Vec<u8>>; FETCHES_MAX],
    next_fetch: usize,
}

#[derive(Debug)]
enum Work {
    Upload(Address, Vec<u8>),
    Launch(Launch),
    Fetch(Fetch, Address, usize),
}

impl Emulated {
    pub fn new(schedule: u64) -> Emulated {
        Emulated::with_memory(schedule, u64::MAX)
    }

    /// A device with so many bytes.
    pub fn with_memory(schedule: u64, memory_total: u64) -> Emulated {
        Emulated { schedule, memory_total, is_late: false, usage: Arc::default(), state: RefCell::default() }
    }

    /// Does everything as late as can be.
    #[must_use]
    pub fn late(mut self) -> Emulated {
        self.is_late = true;
        self
    }

    pub fn usage(&self) -> Arc<Usage> {
        Arc::clone(&self.usage)
    }

    fn give(&self, work: Work) -> Result<(), DeviceError> {
        self.state.borrow_mut().waiting.push_back(work);
        if self.is_late { Ok(()) } else { self.work_until(|_| false) }
    }

    /// Works until this holds, or nothing is left.
    fn work_until(&self, is_enough: impl Fn(&State) -> bool) -> Result<(), DeviceError> {
        while !is_enough(&self.state.borrow()) {
            let Some(work) = self.state.borrow_mut().waiting.pop_front() else { break };
            match work {
                Work::Launch(launch) => self.run(&launch)?,
                Work::Upload(to, bytes) => {
                    // SAFETY: the bytes lie in one of our allocations, as was checked, which nobody borrows.
                    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.0 as *mut u8, bytes.len()) };
                }
                Work::Fetch(fetch, from, length) => {
                    let mut bytes = vec![0; length];
                    // SAFETY: as above.
                    unsafe { std::ptr::copy_nonoverlapping(from.0 as *const u8, bytes.as_mut_ptr(), length) };
                    self.state.borrow_mut().fetched[fetch.0] = Some(bytes);
                }
            }
        }
        Ok(())
    }

    fn run(&self, launch: &Launch) -> Result<(), DeviceError> {
        let failed = |cause: String| DeviceError::Failed { operation: launch.kernel.to_owned(), cause };
        let name = CString::new(launch.kernel).expect("names of kernels have no zeros");
        // SAFETY: the name ends with a zero.
        let expected = unsafe { emulation_argument_bytes(name.as_ptr()) };
        if expected != launch.arguments.len() {
            let got = launch.arguments.len();
            return Err(failed(format!("its arguments have {expected} bytes and {got} were given")));
        }
        // Aligned as the struct is.
        let arguments: Vec<u64> =
            launch.arguments.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let mut error = [0u8; ERROR_BYTES];
        // SAFETY: the arguments are as many bytes as the kernel's struct, and what they point to was allocated by this
        // device, or the kernel has a fault that the tests are there to find. The error's buffer has that many bytes.
        let ok = unsafe {
            emulation_launch(
                name.as_ptr(),
                launch.grid.as_ptr(),
                launch.threads,
                arguments.as_ptr().cast(),
                self.schedule,
                error.as_mut_ptr().cast(),
                ERROR_BYTES,
            )
        };
        if ok {
            return Ok(());
        }
        let end = error.iter().position(|&b| b == 0).unwrap_or(ERROR_BYTES);
        Err(failed(String::from_utf8_lossy(&error[..end]).into_owned()))
    }

    /// The allocation in which these bytes lie.
    fn check(&self, operation: &str, address: Address, bytes: usize) -> Result<(), DeviceError> {
        let state = self.state.borrow();
        let found = state.allocations.range(..=address.0).next_back();
        match found {
            Some((start, layout)) if address.0 + bytes as u64 <= start + layout.size() as u64 => Ok(()),
            _ => Err(DeviceError::Failed {
                operation: operation.to_owned(),
                cause: format!("{bytes} bytes at {:#x} are not in one allocation", address.0),
            }),
        }
    }
}

impl Device for Emulated {
    fn info(&self) -> Result<Info, DeviceError> {
        Ok(Info {
            name: "emulated".to_owned(),
            processors: PROCESSORS,
            memory_total: self.memory_total,
            memory_free: self.memory_total - self.usage.bytes(),
            driver_bytes: None,
        })
    }

    fn allocate(&self, bytes: u64) -> Result<Address, DeviceError> {
        let mut state = self.state.borrow_mut();
        let free = self.memory_total - self.usage.bytes();
        let size = usize::try_from(bytes.max(1)).ok().filter(|_| bytes <= free);
        let layout = size.and_then(|size| Layout::from_size_align(size, ALIGNMENT).ok());
        let Some(layout) = layout else { return Err(DeviceError::OutOfMemory { wanted: bytes, free }) };
        // SAFETY: the size is not 0.
        let start = unsafe { alloc(layout) };
        if start.is_null() {
            return Err(DeviceError::OutOfMemory { wanted: bytes, free });
        }
        // SAFETY: that many bytes were just allocated. NaNs, so that what nobody wrote is seen.
        unsafe { start.write_bytes(0xff, layout.size()) };
        state.allocations.insert(start as u64, layout);
        self.usage.add(layout.size() as u64);
        Ok(Address(start as u64))
    }

    fn upload(&self, to: Address, bytes: &[u8]) -> Result<(), DeviceError> {
        self.check("upload", to, bytes.len())?;
        self.give(Work::Upload(to, bytes.to_vec()))
    }

    fn download(&self, from: Address, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.check("download", from, bytes.len())?;
        self.wait()?;
        // SAFETY: the bytes lie in one of our allocations, which nobody borrows.
        unsafe { std::ptr::copy_nonoverlapping(from.0 as *const u8, bytes.as_mut_ptr(), bytes.len()) };
        Ok(())
    }

    fn begin_fetch(&self, from: Address, bytes: usize) -> Result<Fetch, DeviceError> {
        self.check("fetch", from, bytes)?;
        assert!(bytes <= FETCH_BYTES_MAX, "a fetch of {bytes} bytes");
        let fetch = Fetch(self.state.borrow().next_fetch % FETCHES_MAX);
        self.state.borrow_mut().next_fetch += 1;
        self.give(Work::Fetch(fetch, from, bytes))?;
        Ok(fetch)
    }

    fn end_fetch(&self, fetch: Fetch, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.work_until(|state| state.fetched[fetch.0].is_some())?;
        let fetched = self.state.borrow_mut().fetched[fetch.0].take();
        bytes.copy_from_slice(&fetched.expect("a fetch ends once, and has begun"));
        Ok(())
    }

    fn launch(&self, launch: &Launch) -> Result<(), DeviceError> {
        if let Some(recording) = &mut self.state.borrow_mut().recording {
            recording.push(launch.clone());
            return Ok(());
        }
        self.give(Work::Launch(launch.clone()))
    }

    fn begin_recording(&self) -> Result<(), DeviceError> {
        self.state.borrow_mut().recording = Some(Vec::new());
        Ok(())
    }

    fn end_recording(&self) -> Result<Recording, DeviceError> {
        let mut state = self.state.borrow_mut();
        let launches = state.recording.take().ok_or_else(|| DeviceError::Failed {
            operation: "end of recording".to_owned(),
            cause: "nothing is recorded".to_owned(),
        })?;
        state.recorded.push(launches);
        Ok(Recording(state.recorded.len() - 1))
    }

    fn replay(&self, recording: Recording) -> Result<(), DeviceError> {
        let launches = self.state.borrow().recorded[recording.0].clone();
        launches.into_iter().try_for_each(|launch| self.give(Work::Launch(launch)))
    }

    fn wait(&self) -> Result<(), DeviceError> {
        self.work_until(|_| false)
    }

    fn seconds(&self, work: &mut dyn FnMut() -> Result<(), DeviceError>) -> Result<f64, DeviceError> {
        self.wait()?;
        let start = Instant::now();
        work()?;
        self.wait()?;
        Ok(start.elapsed().as_secs_f64())
    }
}

impl Drop for Emulated {
    fn drop(&mut self) {
        for (start, layout) in &self.state.get_mut().allocations {
            // SAFETY: allocated with this layout, and freed once.
            unsafe { dealloc(*start as *mut u8, *layout) };
            self.usage.take(layout.size() as u64);
        }
    }
}
