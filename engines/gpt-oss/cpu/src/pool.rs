//! A thread pool for work of microseconds: threads stay, tasks are claimed one by one, results go into one array.
//!
//! A decode step is some two hundred small pieces of work with nothing between them, so idle threads spin a little
//! before they sleep. Tasks are claimed dynamically: when another process takes a core, the other threads go on.

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Turns of an idle thread before it sleeps: some 20 to 50 microseconds.
const SPINS: u32 = 2_000;
/// Threads of one pool at most.
pub const THREADS_MAX: usize = 256;

/// Threads that help the one that calls [`Pool::run`].
#[derive(Debug)]
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
    /// One piece of work at a time.
    running: Mutex<()>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
    idle: Condvar,
    /// Counts jobs; changes tell spinning workers that there is one.
    generation: AtomicU64,
    stop: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    job: Option<JobRef>,
    /// Workers inside the job.
    active: usize,
}

/// A job on the stack of the thread that runs it.
struct Job<'a> {
    task: &'a (dyn Fn(usize) + Sync),
    tasks: usize,
    next: AtomicUsize,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

/// A pointer to a [`Job`] whose owner waits until nobody holds it.
#[derive(Debug, Clone, Copy)]
struct JobRef(*const Job<'static>);

// SAFETY: a Job is only used through shared references, and all its parts are Sync.
unsafe impl Send for JobRef {}

impl Job<'_> {
    fn work(&self) {
        loop {
            let task = self.next.fetch_add(1, Ordering::Relaxed);
            if task >= self.tasks {
                return;
            }
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| (self.task)(task))) {
                self.next.store(self.tasks, Ordering::Relaxed);
                lock(&self.panic).get_or_insert(payload);
            }
        }
    }
}

impl Pool {
    /// A pool in which `threads` threads work, the caller included.
    ///
    /// # Errors
    /// The system refuses another thread.
    pub fn new(threads: usize) -> std::io::Result<Pool> {
        let shared = Arc::new(Shared::default());
        let mut pool = Pool { shared: Arc::clone(&shared), workers: Vec::new(), running: Mutex::new(()) };
        for i in 1..threads.clamp(1, THREADS_MAX) {
            let shared = Arc::clone(&shared);
            let builder = std::thread::Builder::new().name(format!("gpt-oss-cpu-{i}"));
            pool.workers.push(builder.spawn(move || serve(&shared))?);
        }
        Ok(pool)
    }

    /// Threads that work, the caller included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
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
        let job = Job { task: &task, tasks, next: AtomicUsize::new(0), panic: Mutex::new(None) };
        // SAFETY: only lifetimes change. The job is taken back below before this frame ends: workers enter under the
        // lock while it is offered, and this thread leaves only after the offer is gone and `active` is 0. Nothing
        // between here and there unwinds: `work` catches the panics of tasks.
        let reference =
            JobRef(unsafe { std::mem::transmute::<*const Job<'_>, *const Job<'static>>(&raw const job) });
        lock(&self.shared.state).job = Some(reference);
        self.shared.generation.fetch_add(1, Ordering::Release);
        self.shared.wake.notify_all();
        job.work();
        let mut state = lock(&self.shared.state);
        state.job = None;
        let mut spins = 0;
        while state.active > 0 {
            if spins < SPINS {
                drop(state);
                std::hint::spin_loop();
                spins += 1;
                state = lock(&self.shared.state);
            } else {
                state = self.shared.idle.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
        drop(state);
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
    pub fn tiles(
        &self,
        out: &mut [f32],
        width: usize,
        row_ends: &[usize],
        columns: usize,
        task: impl Fn(&mut Tile<'_>) + Sync,
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
        self.shared.stop.store(true, Ordering::Release);
        // Taking the lock orders the flag before the sleep of whoever is about to wait.
        drop(lock(&self.shared.state));
        self.shared.generation.fetch_add(1, Ordering::Release);
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // Workers catch the panics of tasks and have none of their own.
            let _ = worker.join();
        }
    }
}

/// The rows and columns of an array that one task writes.
#[derive(Debug)]
pub struct Tile<'a> {
    base: *mut f32,
    width: usize,
    group: usize,
    rows: Range<usize>,
    columns: Range<usize>,
    marker: std::marker::PhantomData<&'a mut [f32]>,
}

impl Tile<'_> {
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
    pub fn row(&mut self, row: usize) -> &mut [f32] {
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
struct SendPointer(*mut f32);

// SAFETY: only used to make tiles, which are disjoint.
unsafe impl Sync for SendPointer {}

fn serve(shared: &Shared) {
    let mut seen = 0;
    loop {
        let mut spins = 0;
        while shared.generation.load(Ordering::Acquire) == seen && spins < SPINS {
            std::hint::spin_loop();
            spins += 1;
        }
        let mut state = lock(&shared.state);
        while shared.generation.load(Ordering::Acquire) == seen {
            state = shared.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        seen = shared.generation.load(Ordering::Acquire);
        if shared.stop.load(Ordering::Acquire) {
            return;
        }
        let Some(job) = state.job else { continue };
        state.active += 1;
        drop(state);
        // SAFETY: the job was offered when `active` was raised, under one lock; its owner waits until `active` is 0.
        unsafe { &*job.0 }.work();
        let mut state = lock(&shared.state);
        state.active -= 1;
        if state.active == 0 {
            shared.idle.notify_all();
        }
    }
}

/// Nothing panics while it holds one of these locks, so a poisoned one is as good as any.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
