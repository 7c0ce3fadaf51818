//! The one wrapper around mapped memory: the bytes of a shard without a copy of them, and large pieces of our own.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;

use memmap2::{Mmap, MmapMut};

/// Bytes made present by one call of [`Mapped::touch`] at most; a disk reads this much well within a second.
pub const TOUCH_BYTES: usize = 64 << 20;
/// Smallest page of any system this runs on.
const PAGE_BYTES: usize = 4096;

/// A whole file as memory. Its pages are the system's file cache: they count as nobody's private memory and may be
/// dropped and read again. Or bytes of our own in the same place, where a file's had to be converted.
#[derive(Debug)]
pub struct Mapped {
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    File(Mmap),
    Own(Vec<u8>),
}

impl Mapped {
    /// # Errors
    /// The file cannot be opened or mapped.
    pub fn open(path: &Path) -> io::Result<Mapped> {
        let file = File::open(path)?;
        // SAFETY: a mapping is sound as long as nobody changes the file. Model files are verified and then never
        // written: a store replaces files by new ones instead of changing them. If someone shortens the file all the
        // same, access ends this worker process with a signal, which the node survives and reports.
        let map = unsafe { Mmap::map(&file)? };
        // What is not in the cache yet is then read into huge pages, where the file system can. What is stays as it is.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        Ok(Mapped { bytes: Bytes::File(map) })
    }

    /// Brings the pages of these bytes into memory, so that the first request does not wait for the disk. Not more than
    /// [`TOUCH_BYTES`] at once: nobody hears of progress meanwhile.
    ///
    /// # Errors
    /// The file cannot be read there.
    pub fn touch(&self, range: Range<usize>) -> io::Result<()> {
        let Bytes::File(map) = &self.bytes else { return Ok(()) };
        // Not after `WillNeed`, which would fill the cache with pages that are not huge.
        #[cfg(target_os = "linux")]
        match map.advise_range(memmap2::Advice::PopulateRead, range.start, range.len()) {
            Ok(()) => return Ok(()),
            // Kernels before 5.14 do not know it.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
            Err(error) => return Err(error),
        }
        // Only asks the system to read ahead; where it does not know the call, the reads below do the work.
        #[cfg(unix)]
        let _ = map.advise_range(memmap2::Advice::WillNeed, range.start, range.len());
        let sum: u64 = map[range].iter().step_by(PAGE_BYTES).map(|b| u64::from(*b)).sum();
        std::hint::black_box(sum);
        Ok(())
    }

    /// Tells the system that the pages that lie wholly in these bytes are not needed for now. They can still be read.
    pub fn let_go(&self, range: Range<usize>) {
        // Bytes of our own would be gone.
        #[cfg(target_os = "linux")]
        if let Bytes::File(map) = &self.bytes {
            let start = range.start.next_multiple_of(PAGE_BYTES);
            let bytes = (range.end / PAGE_BYTES * PAGE_BYTES).saturating_sub(start);
            // SAFETY: the mapping is shared, of a file that nobody changes: what is read again is what was there. Where
            // the system's pages are larger, those at the ends go too, which does no harm for the same reason.
            let _ = unsafe { map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, bytes) };
        }
        #[cfg(not(target_os = "linux"))]
        let _ = range;
    }
}

/// Zeroed memory of this process alone, in huge pages where the system has them: a pass over it then does not wait for
/// the translation of addresses.
#[derive(Debug)]
pub struct Anonymous {
    map: MmapMut,
}

impl Anonymous {
    /// # Errors
    /// The system refuses so much memory. That it grants it does not mean that it has it.
    pub fn new(bytes: usize) -> io::Result<Anonymous> {
        let map = MmapMut::map_anon(bytes)?;
        // Where there are no huge pages, small ones do.
        #[cfg(target_os = "linux")]
        let _ = map.advise(memmap2::Advice::HugePage);
        Ok(Anonymous { map })
    }

    /// How many bytes lie in huge pages just now, where the system tells.
    pub fn huge_bytes(&self) -> Option<u64> {
        let first = self.map.as_ptr() as u64;
        let maps = std::fs::read_to_string("/proc/self/smaps").ok()?;
        huge_bytes(&maps, first..first + self.map.len() as u64)
    }
}

/// The sum of `AnonHugePages` of the mappings that overlap `range`, at most its length: the system joins mappings that lie
/// side by side.
fn huge_bytes(smaps: &str, range: Range<u64>) -> Option<u64> {
    let mut inside = false;
    let mut sum = None;
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        match (words.next(), words.next()) {
            (Some("AnonHugePages:"), Some(kib)) if inside => {
                sum = Some(sum.unwrap_or(0) + kib.parse::<u64>().ok()? * 1024);
            }
            // The first line of a mapping: addresses, and no name with a colon at its end.
            (Some(addresses), _) if !addresses.ends_with(':') => {
                let (start, end) = addresses.split_once('-')?;
                let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
                inside = start < range.end && range.start < end;
            }
            _ => {}
        }
    }
    sum.map(|sum| sum.min(range.end - range.start))
}

impl AsRef<[u8]> for Anonymous {
    fn as_ref(&self) -> &[u8] {
        &self.map
    }
}

impl AsMut<[u8]> for Anonymous {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.map
    }
}

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        match &self.bytes {
            Bytes::File(map) => map,
            Bytes::Own(bytes) => bytes,
        }
    }
}

impl From<Vec<u8>> for Mapped {
    fn from(bytes: Vec<u8>) -> Mapped {
        Mapped { bytes: Bytes::Own(bytes) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapped_file_has_the_bytes_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let bytes: Vec<u8> = (0..100_000u32).map(|i| (i * 7) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let mapped = Mapped::open(&path).unwrap();
        assert_eq!(mapped.as_ref(), bytes);
        for range in [0..bytes.len(), 50_000..60_001, 0..0, 99_999..100_000] {
            mapped.touch(range.clone()).unwrap();
            mapped.let_go(range);
        }
        assert_eq!(mapped.as_ref(), bytes);
    }

    #[test]
    fn bytes_of_our_own_stay_when_they_are_let_go() {
        let bytes: Vec<u8> = (0..50_000u32).map(|i| (i * 5) as u8).collect();
        let own = Mapped::from(bytes.clone());
        own.touch(0..bytes.len()).unwrap();
        own.let_go(0..bytes.len());
        assert_eq!(own.as_ref(), bytes);
    }

    #[test]
    fn memory_of_our_own_is_zeroed_and_can_be_written() {
        let mut memory = Anonymous::new(5 << 20).unwrap();
        assert!(memory.as_ref().len() == 5 << 20 && memory.as_ref().iter().all(|b| *b == 0));
        memory.as_mut().fill(7);
        assert!(memory.as_ref().iter().all(|b| *b == 7));
        // Whether there are huge pages is the system's affair; where it tells, it cannot be more than there is.
        assert!(memory.huge_bytes().is_none_or(|bytes| bytes <= 5 << 20));
        assert!(!cfg!(target_os = "linux") || memory.huge_bytes().is_some());
    }

    #[test]
    fn huge_pages_are_summed_over_the_mappings_of_the_memory() {
        let smaps = "7f0000000000-7f0000200000 rw-p 00000000 00:00 0 \nRss: 8 kB\nAnonHugePages:    2048 kB\n\
                     7f0000200000-7f0000600000 rw-p 00000000 00:00 0 \nAnonHugePages:    4096 kB\nVmFlags: rd wr\n\
                     7f0000600000-7f0000a00000 r--s 00000000 08:01 5 /a b:\nAnonHugePages:       0 kB\n";
        assert_eq!(huge_bytes(smaps, 0x7f00_0000_0000..0x7f00_0060_0000), Some(6 << 20));
        assert_eq!(huge_bytes(smaps, 0x7f00_0030_0000..0x7f00_0040_0000), Some(1 << 20));
        assert_eq!(huge_bytes(smaps, 0x7f00_0060_0000..0x7f00_0070_0000), Some(0));
        assert_eq!(huge_bytes(smaps, 0x1000..0x2000), None);
    }

    #[test]
    fn a_missing_file_is_an_error() {
        let error = Mapped::open(Path::new("no-such-file")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
