//! A thread pool for work of microseconds: threads stay, tasks are claimed one by one, results go into one array.
//!
//! A decode step is some two hundred small pieces of work with nothing between them, so idle threads look for work a
//! little while before they sleep ([`SPIN`]). Tasks are claimed dynamically: when another process takes a core, the
//! other threads go on.
//!
//! **NUMA.** Nothing is done for it. On a machine with several memory nodes each thread reads weights from wherever the
//! file cache has their pages, and any thread may claim any task, so half of the reading crosses between two sockets. What
//! would have to be done: a copy of the weights for each node, or rows of each matrix bound to nodes (`mbind`) with tasks
//! claimed first by the threads of their node, and KV blocks touched first by a thread of the node that will read them.
//! Until then, a worker process for each node, bound with `numactl`, is faster than one for the whole machine.

mod affinity;

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long an idle thread looks for work before it sleeps. Longer than what lies between two pieces of a step, and than
/// the sampling between two steps of a small model; whoever wakes a sleeping thread waits some 50 microseconds for it.
const SPIN: Duration = Duration::from_micros(100);
/// Turns at first, without looking at the clock and without offering the core to others: some 5 to 10 microseconds.
const TURNS_FIRST: u32 = 256;
/// Turns between two offers: about one microsecond.
const TURNS: u32 = 32;
/// Threads of one pool at most.
pub const THREADS_MAX: usize = 256;

/// Threads that help the one that calls [`Pool::run`].
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// One piece of work at a time.
    running: Mutex<()>,
    /// A processor for each thread, the caller's first; empty where threads go where the system puts them.
    processors: Vec<usize>,
}

/// What the caller and the workers have in common. All atomics that order something are sequentially consistent: each
/// side writes its own and then looks at the other's.
#[derive(Debug, Default)]
struct Shared {
    /// The job that may be entered, or null.
    job: AtomicPtr<Job<'static>>,
    /// Workers that may be inside a job.
    active: AtomicUsize,
    /// Counts jobs; changes tell workers that there is one.
    generation: AtomicU64,
    stop: AtomicBool,
    /// Workers that sleep or are about to.
    sleeping: AtomicUsize,
    /// The caller sleeps, or is about to, until `active` is 0.
    caller_sleeps: AtomicBool,
    /// Held by whoever goes to sleep, until it does.
    sleep: Mutex<()>,
    wake: Condvar,
    idle: Condvar,
}

/// A job on the stack of the thread that runs it.
struct Job<'a> {
    task: &'a (dyn Fn(usize) + Sync),
    tasks: usize,
    next: Claimed,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// Written by all threads: on lines of its own, so that what is only read stays in every cache.
#[repr(align(128))]
struct Claimed(AtomicUsize);

impl Job<'_> {
    fn work(&self) {
        loop {
            let task = self.next.0.fetch_add(1, Ordering::Relaxed);
            if task >= self.tasks {
                return;
            }
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| (self.task)(task))) {
                self.next.0.store(self.tasks, Ordering::Relaxed);
                lock(&self.panic).get_or_insert(payload);
            }
        }
    }
}

impl Pool {
    /// A pool in which `threads` threads work, the caller included, wherever the system puts them.
    ///
    /// # Errors
    /// The system refuses another thread.
    pub fn new(threads: usize) -> std::io::Result<Pool> {
        Pool::on(threads, Vec::new())
    }

    /// A pool whose threads stay each on a processor of its own, of different cores first, among those this process may
    /// use. As [`Pool::new`] where there are fewer processors than threads, or the system is not Linux.
    ///
    /// # Errors
    /// The system refuses another thread.
    pub fn pinned(threads: usize) -> std::io::Result<Pool> {
        let mut processors = affinity::allowed_by_core();
        processors.truncate(threads);
        if processors.len() < threads {
            processors.clear();
        }
        Pool::on(threads, processors)
    }

    fn on(threads: usize, processors: Vec<usize>) -> std::io::Result<Pool> {
        let shared = Arc::new(Shared::default());
        let mut pool =
            Pool { shared: Arc::clone(&shared), workers: Vec::new(), running: Mutex::new(()), processors };
        for i in 1..threads.clamp(1, THREADS_MAX) {
            let shared = Arc::clone(&shared);
            let processor = pool.processors.get(i).copied();
            let builder = std::thread::Builder::new().name(format!("gpt-oss-cpu-{i}"));
            pool.workers.push(builder.spawn(move || {
                // For as long as the thread lives.
                let _pinned = processor.and_then(affinity::Pinned::new);
                serve(&shared);
            })?);
        }
        Ok(pool)
    }

    /// Threads that work, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Whether each thread has a processor.
    pub fn is_pinned(&self) -> bool {
        !self.processors.is_empty()
    }

    /// The calling thread stays on the processor that is left for it until the result is dropped; then it may go where
    /// it could before.
    #[must_use]
    pub fn enter(&self) -> Option<affinity::Pinned> {
        self.processors.first().copied().and_then(affinity::Pinned::new)
    }

    /// Calls `task` with each number below `tasks`, on all threads, and returns when all are done.
    ///
    /// # Panics
    /// When a task panics, with its payload.
    pub fn run(&self, tasks: usize, task: impl Fn(usize) + Sync) {
        if tasks <= 1 || self.workers.is_empty() {
            (0..tasks).for_each(task);
            return;
        }
        let _one_at_a_time = lock(&self.running);
        let shared = &*self.shared;
        let job = Job { task: &task, tasks, next: Claimed(AtomicUsize::new(0)), panic: Mutex::new(None) };
        // Only lifetimes change. Whoever enters raises `active` before it takes the pointer, and this frame ends only
        // after the pointer is gone and `active` is 0. Nothing between here and there unwinds: `work` catches the panics
        // of tasks.
        shared.job.store((&raw const job).cast::<Job<'static>>().cast_mut(), Ordering::SeqCst);
        shared.generation.fetch_add(1, Ordering::SeqCst);
        if shared.sleeping.load(Ordering::SeqCst) > 0 {
            // Whoever has counted itself holds the lock until it sleeps.
            drop(lock(&shared.sleep));
            shared.wake.notify_all();
        }
        job.work();
        shared.job.store(null_mut(), Ordering::SeqCst);
        if !spin(|| shared.active.load(Ordering::SeqCst) == 0) {
            let mut guard = lock(&shared.sleep);
            shared.caller_sleeps.store(true, Ordering::SeqCst);
            while shared.active.load(Ordering::SeqCst) > 0 {
                guard = shared.idle.wait(guard).unwrap_or_else(PoisonError::into_inner);
            }
            shared.caller_sleeps.store(false, Ordering::SeqCst);
        }
        let panic = lock(&job.panic).take();
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }

    /// Cuts `out`, (rows, width), into tiles: rows end at each of `row_ends`, columns every `columns`. Each tile is
    /// given to `task` once, on some thread.
    ///
    /// # Panics
    /// When `row_ends` do not rise to the number of rows, or a task panics.
    pub fn tiles<N: Send>(
        &self,
        out: &mut [N],
        width: usize,
        row_ends: &[usize],
        columns: usize,
        task: impl Fn(&mut Tile<'_, N>) + Sync,
    ) {
        assert!(width > 0 && columns > 0 && row_ends.is_sorted());
        assert_eq!(row_ends.last().copied().unwrap_or(0) * width, out.len(), "tiles do not cover the array");
        let across = width.div_ceil(columns);
        let base = SendPointer(out.as_mut_ptr());
        self.run(row_ends.len() * across, |i| {
            let (group, column) = (i / across, i % across * columns);
            let first = if group == 0 { 0 } else { row_ends[group - 1] };
            let base = &base;
            let mut tile = Tile {
                base: base.0,
                width,
                group,
                rows: first..row_ends[group],
                columns: column..(column + columns).min(width),
                marker: std::marker::PhantomData,
            };
            task(&mut tile);
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.generation.fetch_add(1, Ordering::SeqCst);
        drop(lock(&self.shared.sleep));
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // Workers catch the panics of tasks and have none of their own.
            let _ = worker.join();
        }
    }
}

/// The rows and columns of an array that one task writes.
#[derive(Debug)]
pub struct Tile<'a, N = f32> {
    base: *mut N,
    width: usize,
    group: usize,
    rows: Range<usize>,
    columns: Range<usize>,
    marker: std::marker::PhantomData<&'a mut [N]>,
}

impl<N> Tile<'_, N> {
    /// Which of `row_ends` the rows end at.
    pub fn group(&self) -> usize {
        self.group
    }

    pub fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    pub fn columns(&self) -> Range<usize> {
        self.columns.clone()
    }

    /// This tile's part of a row of the array.
    ///
    /// # Panics
    /// When the row is not in the tile.
    pub fn row(&mut self, row: usize) -> &mut [N] {
        assert!(self.rows.contains(&row), "row {row} is in another tile");
        // SAFETY: `tiles` made this tile of rows and columns inside the array, disjoint from every other tile, and
        // borrows the array for as long as tiles live; `&mut self` keeps the parts of one tile apart.
        unsafe {
            std::slice::from_raw_parts_mut(
                self.base.add(row * self.width + self.columns.start),
                self.columns.len(),
            )
        }
    }
}

/// The start of an array that tiles divide among threads.
struct SendPointer<N>(*mut N);

// SAFETY: only used to make tiles, which are disjoint, so that each number is on one thread at a time.
unsafe impl<N: Send> Sync for SendPointer<N> {}

fn serve(shared: &Shared) {
    let mut seen = 0;
    loop {
        if !spin(|| shared.generation.load(Ordering::SeqCst) != seen) {
            let mut guard = lock(&shared.sleep);
            shared.sleeping.fetch_add(1, Ordering::SeqCst);
            while shared.generation.load(Ordering::SeqCst) == seen {
                guard = shared.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
            }
            shared.sleeping.fetch_sub(1, Ordering::SeqCst);
        }
        seen = shared.generation.load(Ordering::SeqCst);
        if shared.stop.load(Ordering::SeqCst) {
            return;
        }
        shared.active.fetch_add(1, Ordering::SeqCst);
        let job = shared.job.load(Ordering::SeqCst);
        // SAFETY: a job whose pointer was taken after `active` was raised lives until `active` is 0 again: its owner takes
        // the pointer away and then waits for that.
        if let Some(job) = unsafe { job.as_ref() } {
            job.work();
        }
        if shared.active.fetch_sub(1, Ordering::SeqCst) == 1 && shared.caller_sleeps.load(Ordering::SeqCst) {
            drop(lock(&shared.sleep));
            shared.idle.notify_all();
        }
    }
}

/// Looks for `done` for as long as [`SPIN`]; whether it has come.
fn spin(done: impl Fn() -> bool) -> bool {
    let turns = |count: u32| {
        (0..count).any(|_| {
            std::hint::spin_loop();
            done()
        })
    };
    if done() || turns(TURNS_FIRST) {
        return true;
    }
    let start = Instant::now();
    while start.elapsed() < SPIN {
        // Another thread of this machine may be waiting for this very core.
        std::thread::yield_now();
        if turns(TURNS) {
            return true;
        }
    }
    false
}

/// Nothing panics while it holds one of these locks, so a poisoned one is as good as any.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
