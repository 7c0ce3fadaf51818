//! `/proc/<pid>/status`: cheap, where `smaps_rollup` walks every page of the mapped weights.

use std::fs;

use super::ProcessMemory;

pub fn read(pid: u32) -> Option<ProcessMemory> {
    parse(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?)
}

/// `None`: not the form the kernel writes, or a process that has ended and has no memory any more.
fn parse(text: &str) -> Option<ProcessMemory> {
    let bytes = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        kib.checked_mul(1024)
    };
    let own = [bytes("RssAnon")?, bytes("RssShmem").unwrap_or(0), bytes("VmSwap").unwrap_or(0)];
    Some(ProcessMemory {
        own: own.into_iter().fold(0, u64::saturating_add),
        mapped: bytes("RssFile").unwrap_or(0),
        ..ProcessMemory::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_and_mapped_pages_are_told_apart() {
        let text = "Name:\tworker\nVmRSS:\t  999 kB\nRssAnon:\t  100 kB\nRssFile:\t 2000 kB\nRssShmem:\t    4 kB\nVmSwap:\t   1 kB\n";
        let memory = parse(text).unwrap();
        assert_eq!((memory.own, memory.mapped), (105 * 1024, 2000 * 1024));
    }

    #[test]
    fn what_the_kernel_does_not_write_is_nothing() {
        // A process that has ended and is not yet reaped has no such lines.
        for text in
            ["", "Name:\tx\nState:\tZ (zombie)\n", "RssAnon: many kB", "RssAnon:\t18446744073709551615 kB"]
        {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn this_process_has_memory_of_its_own_and_mapped_pages() {
        let memory = read(std::process::id()).unwrap();
        assert!(memory.own > 0 && memory.mapped > 0, "{memory:?}");
        assert_eq!(read(u32::MAX), None);
    }
}
