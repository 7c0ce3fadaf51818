//! Threads that stay on a processor. On Linux; elsewhere they go where the system puts them.

pub use system::Pinned;
pub(super) use system::allowed_by_core;

#[cfg(target_os = "linux")]
mod system {
    use std::mem::{size_of, zeroed};

    /// The calling thread stays on one processor until this is dropped.
    #[derive(Debug)]
    pub struct Pinned {
        before: libc::cpu_set_t,
        /// The set belongs to the thread that was pinned.
        not_send: std::marker::PhantomData<*const ()>,
    }

    impl Pinned {
        /// None where the system refuses.
        pub(in crate::pool) fn new(processor: usize) -> Option<Pinned> {
            let before = allowed()?;
            // SAFETY: a set of no processors is all zeros; the number is below CPU_SETSIZE, as `allowed` gave it.
            let only = unsafe {
                let mut only: libc::cpu_set_t = zeroed();
                libc::CPU_SET(processor, &mut only);
                only
            };
            set(&only).then_some(Pinned { before, not_send: std::marker::PhantomData })
        }
    }

    impl Drop for Pinned {
        fn drop(&mut self) {
            // Where it is refused, as after a change of the machine's processors, the thread stays where it is.
            set(&self.before);
        }
    }

    /// Processors that the calling thread may use, one of each core before the second one of any.
    pub(in crate::pool) fn allowed_by_core() -> Vec<usize> {
        let Some(set) = allowed() else { return Vec::new() };
        let count = usize::try_from(libc::CPU_SETSIZE).unwrap_or(0);
        // SAFETY: numbers below CPU_SETSIZE.
        let all = (0..count).filter(|&processor| unsafe { libc::CPU_ISSET(processor, &set) });
        let mut cores: Vec<String> = Vec::new();
        let mut ordered: Vec<(usize, usize)> = all
            .map(|processor| {
                let path = format!("/sys/devices/system/cpu/cpu{processor}/topology/thread_siblings_list");
                // A system that does not tell is taken for one without siblings.
                let core = std::fs::read_to_string(path).unwrap_or_else(|_| processor.to_string());
                let before = cores.iter().filter(|c| **c == core).count();
                cores.push(core);
                (before, processor)
            })
            .collect();
        ordered.sort_unstable();
        ordered.into_iter().map(|(_, processor)| processor).collect()
    }

    fn allowed() -> Option<libc::cpu_set_t> {
        // SAFETY: a set is plain data, and the call is told its size.
        unsafe {
            let mut set: libc::cpu_set_t = zeroed();
            let status = libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set);
            (status == 0).then_some(set)
        }
    }

    fn set(processors: &libc::cpu_set_t) -> bool {
        // SAFETY: a valid set and its size; 0 is the calling thread.
        unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), processors) == 0 }
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    /// Never there: a thread is not pinned on this system.
    #[derive(Debug)]
    pub enum Pinned {}

    impl Pinned {
        pub(in crate::pool) fn new(_processor: usize) -> Option<Pinned> {
            None
        }
    }

    pub(in crate::pool) fn allowed_by_core() -> Vec<usize> {
        Vec::new()
    }
}
