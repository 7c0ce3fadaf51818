//! Small values that never change: strings, bytes, ranges.

use std::ffi::c_char;

/// Borrowed UTF-8, not NUL-terminated. `data` may be null when `size` is 0.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Str {
    pub data: *const c_char,
    pub size: usize,
}

/// Borrowed bytes. `data` may be null when `size` is 0.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Bytes {
    pub data: *const u8,
    pub size: usize,
}

/// Bytes `start..end` of a text.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    pub start: u32,
    pub end: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct DeviceBytes {
    pub device: Str,
    pub bytes: u64,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct File {
    pub name: Str,
    pub path: Str,
}

#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenBias {
    pub id: u32,
    pub bias: f32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct TokenLogprob {
    pub id: u32,
    pub logprob: f32,
    pub bytes: Bytes,
}
