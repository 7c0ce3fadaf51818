//! A global allocator that can be given a limit, past which the process exits.

#![expect(
    unsafe_code,
    reason = "GlobalAlloc is an unsafe trait; everything is passed on to the system's allocator"
)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicI64, Ordering};

static ARMED: AtomicBool = AtomicBool::new(false);
/// Bytes allocated since arming, less those freed; memory from before that is freed makes it smaller.
static LIVE: AtomicI64 = AtomicI64::new(0);
static CAP: AtomicI64 = AtomicI64::new(i64::MAX);
static EXIT_CODE: AtomicI32 = AtomicI32::new(1);

/// The system's allocator with a limit that [`CappedAllocator::arm`] sets. Install it with `#[global_allocator]`.
#[derive(Debug, Clone, Copy, Default)]
pub struct CappedAllocator;

impl CappedAllocator {
    /// From now on the process exits with `exit_code` when it holds more than `bytes_max` beyond what it holds now.
    /// False: this is not the global allocator, and nothing is limited.
    pub fn arm(bytes_max: u32, exit_code: i32) -> bool {
        const PROBE_BYTES: usize = 4096;
        CAP.store(i64::from(bytes_max), Ordering::Relaxed);
        EXIT_CODE.store(exit_code, Ordering::Relaxed);
        LIVE.store(0, Ordering::Relaxed);
        ARMED.store(true, Ordering::SeqCst);
        let probe = std::hint::black_box(Vec::<u8>::with_capacity(PROBE_BYTES));
        let counted = LIVE.load(Ordering::Relaxed);
        drop(probe);
        let is_installed = counted >= PROBE_BYTES as i64;
        if !is_installed {
            ARMED.store(false, Ordering::Relaxed);
        }
        is_installed
    }
}

/// Layout sizes fit `i64`: they are at most `isize::MAX`.
fn charge(bytes: usize) {
    let bytes = bytes as i64;
    if LIVE.fetch_add(bytes, Ordering::Relaxed) + bytes > CAP.load(Ordering::Relaxed) {
        // Exiting may allocate: no second time through here.
        ARMED.store(false, Ordering::SeqCst);
        std::process::exit(EXIT_CODE.load(Ordering::Relaxed));
    }
}

fn credit(bytes: usize) {
    LIVE.fetch_sub(bytes as i64, Ordering::Relaxed);
}

// SAFETY: every call goes to `System` unchanged, which keeps the promises of the trait; the counting beside it touches
// only atomics, and exits instead of unwinding.
unsafe impl GlobalAlloc for CappedAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if ARMED.load(Ordering::Relaxed) {
            charge(layout.size());
        }
        // SAFETY: the caller's promises about `layout` are those that `System` asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if ARMED.load(Ordering::Relaxed) {
            charge(layout.size());
        }
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        if ARMED.load(Ordering::Relaxed) {
            credit(layout.size());
        }
        // SAFETY: `block` came from `System` with this layout, since all allocations go there.
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if ARMED.load(Ordering::Relaxed) {
            // Both may exist for a moment.
            charge(new_size);
            credit(layout.size());
        }
        // SAFETY: as in `dealloc`; `new_size` is the caller's promise.
        unsafe { System.realloc(block, layout, new_size) }
    }
}
