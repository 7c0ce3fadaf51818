//! The cuda device of gpt-oss: kernels in CUDA C++, a device that runs them, and the model on top.
//!
//! Reading order: [`device`] (what a device can do), [`ops`] (one file for each operator, beside `kernels/` with the same
//! names), [`weights`] and [`model`]. Two devices: [`cuda`], an NVIDIA GPU, and `emulated`, which runs the same kernels on
//! the processor where they were compiled for it.
//!
//! **Invariant:** unsafe code is in [`cuda`], [`compile`] and `emulated` only.

#![deny(unsafe_code)]

pub mod arguments;
#[expect(unsafe_code, reason = "a library of C functions")]
pub mod compile;
#[cfg(test)]
mod counting;
#[expect(unsafe_code, reason = "the driver's functions take addresses")]
pub mod cuda;
pub mod device;
#[cfg(emulated)]
#[expect(unsafe_code, reason = "kernels on the processor take addresses")]
pub mod emulated;
mod figures;
pub mod model;
pub mod ops;
pub mod plan;
pub mod roofline;
pub mod step;
pub mod testing;
pub mod weights;

pub use device::{Address, Device, DeviceError, Launch};
pub use model::{CudaModel, Span};
pub use plan::{Bounds, Needs};

/// The processor as a device, with a seed for the order of threads (0: their own); none where the kernels were not
/// compiled for it.
pub fn emulated_device(schedule: u64) -> Option<Box<dyn Device>> {
    #[cfg(emulated)]
    return Some(Box::new(emulated::Emulated::new(schedule)));
    #[cfg(not(emulated))]
    {
        let _ = schedule;
        None
    }
}
