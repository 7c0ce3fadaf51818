//! The one thing that wgpu wants to be asked for with `unsafe`: what it calls experimental.

/// Leave to use cooperative matrices, which wgpu counts as experimental.
pub(crate) fn features() -> wgpu::ExperimentalFeatures {
    // SAFETY: the token asks its user to accept that wgpu may have bugs there. What it is used for is tried on the device, against
    // plain Rust, before a model is loaded (`WgpuModel::load`); a driver that fails takes its worker process with it and no more.
    unsafe { wgpu::ExperimentalFeatures::enabled() }
}
