//! What a device can do: memory, kernels by name, and a row of launches that is recorded once and replayed.

use std::fmt;

/// A place in a device's memory. 0 is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Address(pub u64);

impl Address {
    /// None.
    pub const NULL: Address = Address(0);

    #[must_use]
    pub fn offset(self, bytes: u64) -> Address {
        Address(self.0 + bytes)
    }
}

/// A kernel at work.
#[derive(Debug, Clone)]
pub struct Launch {
    pub kernel: &'static str,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// See [`crate::arguments`].
    pub arguments: Vec<u8>,
}

/// Launches of a device that are replayed together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recording(pub usize);

/// A copy from a device that has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fetch(pub usize);

/// Fetches that have begun and not ended, at most.
pub const FETCHES_MAX: usize = 2;
/// Bytes of one of them, at most: the answers of 256 rows fit.
pub const FETCH_BYTES_MAX: usize = 64 << 10;

/// What a device is.
#[derive(Debug, Clone)]
pub struct Info {
    pub name: String,
    /// Blocks run on so many at once.
    pub processors: u32,
    pub memory_total: u64,
    pub memory_free: u64,
    /// What the driver took for itself when the device was opened: a context and the kernels. None where nobody can tell.
    pub driver_bytes: Option<u64>,
}

/// Why a device did not do what it was asked to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    #[error(
        "no CUDA driver library ({library}) on this machine\nhint: install the driver of the GPU's vendor"
    )]
    NoDriver { library: &'static str },
    #[error("the CUDA driver finds no device {number}: {cause}")]
    NoDevice { number: u32, cause: String },
    #[error(
        "this build has no kernels for {name} (compute capability {capability})\n\
         hint: `cargo xtask cuda-kernels`, then build again"
    )]
    NoKernels { name: String, capability: String },
    #[error("{wanted} bytes of device memory were asked for and {free} are free")]
    OutOfMemory { wanted: u64, free: u64 },
    #[error("{operation} on the device failed: {cause}")]
    Failed { operation: String, cause: String },
}

/// Runs launches one after the other, in the order in which they were given. Dropping it frees all its memory.
pub trait Device: Send + fmt::Debug {
    /// # Errors
    /// The device is lost.
    fn info(&self) -> Result<Info, DeviceError>;

    /// Memory that holds garbage, at a multiple of 256 bytes, until the device is dropped.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`] with both numbers.
    fn allocate(&self, bytes: u64) -> Result<Address, DeviceError>;

    /// Copies `bytes`, which may change as soon as this returns, to the device behind what was launched before.
    ///
    /// # Errors
    /// The device, or something launched before, has failed.
    fn upload(&self, to: Address, bytes: &[u8]) -> Result<(), DeviceError>;

    /// Waits for everything that was launched before, and copies from the device.
    ///
    /// # Errors
    /// The device, or something launched before, has failed.
    fn download(&self, from: Address, bytes: &mut [u8]) -> Result<(), DeviceError>;

    /// Begins a copy from the device, behind what was launched before, and returns at once. Of up to [`FETCH_BYTES_MAX`]
    /// bytes, and with up to [`FETCHES_MAX`] that have not ended.
    ///
    /// # Errors
    /// The device, or something launched before, has failed.
    fn begin_fetch(&self, from: Address, bytes: usize) -> Result<Fetch, DeviceError>;

    /// Waits for a copy, and not for what was launched behind it. `bytes` is as long as was said.
    ///
    /// # Errors
    /// The device, or something launched before, has failed.
    fn end_fetch(&self, fetch: Fetch, bytes: &mut [u8]) -> Result<(), DeviceError>;

    /// Returns at once; what goes wrong is told by a later call.
    ///
    /// # Errors
    /// The launch is not possible, or something before has failed.
    fn launch(&self, launch: &Launch) -> Result<(), DeviceError>;

    /// Launches from here on are kept, not run. Nothing else may be called until [`Device::end_recording`].
    ///
    /// # Errors
    /// The device has failed.
    fn begin_recording(&self) -> Result<(), DeviceError>;

    /// # Errors
    /// The device has failed, or nothing is recorded.
    fn end_recording(&self) -> Result<Recording, DeviceError>;

    /// Runs what was recorded, with whatever memory holds by then.
    ///
    /// # Errors
    /// The device, or something launched before, has failed.
    fn replay(&self, recording: Recording) -> Result<(), DeviceError>;

    /// Waits for everything that was launched.
    ///
    /// # Errors
    /// Something of it has failed.
    fn wait(&self) -> Result<(), DeviceError>;

    /// Seconds from before to after what `work` launches, by the device's clock where it has one.
    ///
    /// # Errors
    /// Of `work`, or of the device.
    fn seconds(&self, work: &mut dyn FnMut() -> Result<(), DeviceError>) -> Result<f64, DeviceError>;
}
