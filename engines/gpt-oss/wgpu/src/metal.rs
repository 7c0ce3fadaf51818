//! What Metal has and wgpu does not: memory of this process as a buffer, without a copy, and how much of it to take.

use std::ffi::c_void;
use std::ptr::NonNull;

use objc2_metal::{MTLDevice, MTLResourceOptions};

use crate::pages::Pages;

/// Pages of this process as a buffer that kernels read. None where the system refuses, and where a GPU has memory of its own: it
/// would read them across a bus.
///
/// # Safety
/// The pages stay mapped, and nobody writes to them, until the buffer and everything launched with it is done.
pub(crate) unsafe fn wrap(device: &wgpu::Device, what: &str, pages: Pages) -> Option<wgpu::Buffer> {
    let address = NonNull::new(pages.address as *mut c_void)?;
    // SAFETY: the device is only asked for a buffer, and not destroyed.
    let metal = unsafe { device.as_hal::<wgpu::hal::api::Metal>() }?;
    if !metal.raw_device().hasUnifiedMemory() {
        return None;
    }
    // SAFETY: whole pages, which the caller keeps; nothing is called when the buffer is freed.
    let raw = unsafe {
        metal.raw_device().newBufferWithBytesNoCopy_length_options_deallocator(
            address,
            pages.bytes,
            MTLResourceOptions::StorageModeShared,
            None,
        )
    }?;
    let bytes = pages.bytes as u64;
    let descriptor = wgpu::BufferDescriptor {
        label: Some(what),
        size: bytes,
        usage: wgpu::BufferUsages::STORAGE,
        mapped_at_creation: false,
    };
    // SAFETY: it is a buffer of this device, as long as is said, with everything in it, and not empty.
    unsafe {
        let buffer = wgpu::hal::metal::Device::buffer_from_raw(raw, bytes);
        Some(device.create_buffer_from_hal::<wgpu::hal::api::Metal>(buffer, &descriptor))
    }
}

/// Bytes that Metal recommends to use at most: beyond that the system is short of memory. None where it does not say.
pub(crate) fn working_set_bytes(adapter: &wgpu::Adapter) -> Option<u64> {
    // SAFETY: the adapter is only asked.
    let metal = unsafe { adapter.as_hal::<wgpu::hal::api::Metal>() }?;
    Some(metal.raw_device().recommendedMaxWorkingSetSize()).filter(|bytes| *bytes > 0)
}
