//! Devices, a model's files, how to load it and what that takes.

use crate::{File, Str};

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Device {
    pub struct_size: u32,
    pub reserved: u32,
    pub id: Str,
    pub kind: Str,
    pub name: Str,
    /// Bytes; 0: unknown.
    pub memory_total: u64,
    /// Bytes; 0: unknown.
    pub memory_free: u64,
}

/// Walk `items` in steps of `element_size` bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Devices {
    pub struct_size: u32,
    pub count: u32,
    pub element_size: u64,
    pub items: *const Device,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Model {
    pub struct_size: u32,
    pub file_count: u32,
    pub id: Str,
    pub format: Str,
    pub architecture: Str,
    pub runtime: Str,
    pub model_dir: Str,
    pub primary: Str,
    pub files: *const File,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    pub struct_size: u32,
    /// Tokens; 0: the model's maximum.
    pub context_length: u32,
    pub sequences_max: u32,
    pub batch_tokens_max: u32,
    pub threads: u32,
    pub device_count: u32,
    pub devices: *const Str,
    pub options_json: Str,
}

/// All figures in bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct DeviceNeed {
    pub struct_size: u32,
    pub reserved: u32,
    pub device: Str,
    pub weights: u64,
    pub weights_mapped: u64,
    pub workspace: u64,
    pub per_sequence: u64,
    pub kv_per_token: u64,
    pub kv_fixed: u64,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Loaded {
    pub struct_size: u32,
    pub context_length: u32,
    pub sequences_max: u32,
    pub vocabulary_size: u32,
    pub end_token_count: u32,
    pub reserved: u32,
    pub end_tokens: *const u32,
    /// Numbers of an embedding; 0: the model has none.
    pub embedding_size: u32,
    pub flags: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Tokens {
    pub struct_size: u32,
    pub count: u32,
    pub ids: *const u32,
}
