//! The table of functions, what the host offers, and what an engine says of itself.

use std::ffi::c_void;

use crate::{
    Code, DeviceBytes, DeviceNeed, Devices, EventSink, Loaded, Model, Range, Settings, Stats, Status, Str,
    Submit, Tokens,
};

pub type LogLevel = u32;

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Host {
    pub struct_size: u32,
    pub abi_major: u32,
    pub abi_minor: u32,
    pub log_level: LogLevel,
    pub context: *mut c_void,
    pub log: Option<unsafe extern "C" fn(context: *mut c_void, level: LogLevel, message: Str, sequence: u64)>,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Progress {
    pub context: *mut c_void,
    /// Answers 0 to go on.
    pub report: Option<unsafe extern "C" fn(context: *mut c_void, done: u64, total: u64) -> u32>,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Info {
    pub struct_size: u32,
    pub reserved: u32,
    pub id: Str,
    pub version: Str,
}

/// Walk `items` in steps of `element_size` bytes.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Estimate {
    pub struct_size: u32,
    pub count: u32,
    pub element_size: u64,
    pub items: *const DeviceNeed,
    /// Tokens.
    pub context_length_max: u32,
    pub reserved: u32,
}

/// An opened engine; only ever seen behind a pointer.
#[repr(C)]
#[derive(Debug)]
pub struct Engine {
    _opaque: [u8; 0],
    // Neither Send, Sync nor Unpin follow from an empty struct.
    _marker: std::marker::PhantomData<(*mut u8, std::marker::PhantomPinned)>,
}

/// Signature of [`crate::ENTRY_SYMBOL`].
pub type EntryFn = unsafe extern "C" fn() -> *const EngineApi;

/// The table. A pointer is an `Option` because a broken plugin may leave one out; the host refuses such a table.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct EngineApi {
    pub struct_size: u32,
    pub abi_major: u32,
    pub abi_minor: u32,
    pub reserved: u32,
    pub info: Option<unsafe extern "C" fn() -> *const Info>,
    pub open:
        Option<unsafe extern "C" fn(host: *const Host, out: *mut *mut Engine, status: *mut Status) -> Code>,
    pub close: Option<unsafe extern "C" fn(engine: *mut Engine)>,
    pub devices:
        Option<unsafe extern "C" fn(engine: *mut Engine, out: *mut Devices, status: *mut Status) -> Code>,
    pub estimate: Option<
        unsafe extern "C" fn(
            engine: *mut Engine,
            model: *const Model,
            settings: *const Settings,
            out: *mut Estimate,
            status: *mut Status,
        ) -> Code,
    >,
    pub load: Option<
        unsafe extern "C" fn(
            engine: *mut Engine,
            model: *const Model,
            settings: *const Settings,
            budget: *const DeviceBytes,
            budget_count: u32,
            progress: *const Progress,
            out: *mut Loaded,
            status: *mut Status,
        ) -> Code,
    >,
    pub unload: Option<unsafe extern "C" fn(engine: *mut Engine)>,
    pub tokenize: Option<
        unsafe extern "C" fn(
            engine: *mut Engine,
            text: Str,
            literal: *const Range,
            literal_count: u32,
            out: *mut Tokens,
            status: *mut Status,
        ) -> Code,
    >,
    pub submit:
        Option<unsafe extern "C" fn(engine: *mut Engine, submit: *const Submit, status: *mut Status) -> Code>,
    pub cancel: Option<unsafe extern "C" fn(engine: *mut Engine, sequence: u64)>,
    pub step: Option<
        unsafe extern "C" fn(
            engine: *mut Engine,
            progress: *const Progress,
            sink: *const EventSink,
            pending: *mut u32,
            status: *mut Status,
        ) -> Code,
    >,
    pub stats:
        Option<unsafe extern "C" fn(engine: *mut Engine, out: *mut Stats, status: *mut Status) -> Code>,
    pub get_extension: Option<unsafe extern "C" fn(id: Str) -> *const c_void>,
}
