//! The one wrapper around mapped files: the bytes of a shard without a copy of them.

use std::fs::File;
use std::io;
use std::path::Path;

use memmap2::Mmap;

/// Bytes made present by one call of [`Mapped::touch`] at most; a disk reads this much well within a second.
pub const TOUCH_BYTES: usize = 64 << 20;
/// Smallest page of any system this runs on.
const PAGE_BYTES: usize = 4096;

/// A whole file as memory. Its pages are the system's file cache: they count as nobody's private memory and may be
/// dropped and read again.
#[derive(Debug)]
pub struct Mapped {
    map: Mmap,
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
        Ok(Mapped { map })
    }

    /// Brings the pages of `TOUCH_BYTES` from `start` on into memory, so that the first request does not wait for the
    /// disk. Returns how many bytes that were; 0 behind the end.
    ///
    /// # Errors
    /// The file cannot be read there.
    pub fn touch(&self, start: usize) -> io::Result<usize> {
        let bytes = self.map.len().saturating_sub(start).min(TOUCH_BYTES);
        if bytes == 0 {
            return Ok(0);
        }
        // Only asks the system to read ahead; where it does not know the call, the reads below do the work.
        #[cfg(unix)]
        let _ = self.map.advise_range(memmap2::Advice::WillNeed, start, bytes);
        #[cfg(target_os = "linux")]
        match self.map.advise_range(memmap2::Advice::PopulateRead, start, bytes) {
            Ok(()) => return Ok(bytes),
            // Kernels before 5.14 do not know it.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {}
            Err(error) => return Err(error),
        }
        let sum: u64 = self.map[start..start + bytes].iter().step_by(PAGE_BYTES).map(|b| u64::from(*b)).sum();
        std::hint::black_box(sum);
        Ok(bytes)
    }
}

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        &self.map
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
        assert_eq!(mapped.touch(0).unwrap(), bytes.len());
        assert_eq!(mapped.touch(50_000).unwrap(), 50_000);
        assert_eq!(mapped.touch(bytes.len()).unwrap(), 0);
    }

    #[test]
    fn a_missing_file_is_an_error() {
        let error = Mapped::open(Path::new("no-such-file")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
