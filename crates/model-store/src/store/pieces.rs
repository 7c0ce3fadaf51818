//! What the network gives in small pieces, put together to writes that a disk and a file cache like.

use std::io;
use std::time::Duration;

/// Bytes of a write; it begins at a multiple of them too.
///
/// Linux keeps what was written in pages as large as the writes were, where the file system can (ext4, XFS), and of so many
/// bytes it makes a huge page. A model that was just downloaded is read from there: with one thread the first time at 30 GB/s
/// and later at 30, instead of 9 and 25 after writes of 16 KiB (512 MiB on ext4 of Linux 6.18, `bench/README.md`).
pub const WRITE_BYTES: usize = 2 << 20;
/// What came is written at the latest after so long without more: a process that is killed has lost no more than that.
pub const IDLE_MAX: Duration = Duration::from_secs(1);

/// Bytes on their way to a file.
#[derive(Debug)]
pub struct Pieces {
    /// Where in the file the next byte belongs.
    at: u64,
    pending: Vec<u8>,
}

impl Pieces {
    pub fn new(at: u64) -> Pieces {
        Pieces { at, pending: Vec::with_capacity(WRITE_BYTES) }
    }

    /// Gives `write` what is complete. After an error nothing more is to be pushed.
    pub fn push(
        &mut self,
        mut piece: &[u8],
        mut write: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        while !piece.is_empty() {
            let room = WRITE_BYTES - usize::try_from(self.at % WRITE_BYTES as u64).expect("less than 2 MiB");
            let (now, later) = piece.split_at(room.min(piece.len()));
            self.pending.extend_from_slice(now);
            self.at += now.len() as u64;
            piece = later;
            if now.len() == room {
                self.flush(&mut write)?;
            }
        }
        Ok(())
    }

    /// Gives `write` what is there.
    pub fn flush(&mut self, write: impl FnOnce(&[u8]) -> io::Result<()>) -> io::Result<()> {
        if !self.pending.is_empty() {
            write(&self.pending)?;
            self.pending.clear();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writes_are_large_and_aligned_however_the_bytes_come() {
        let bytes: Vec<u8> = (0..3 * WRITE_BYTES + 12_345).map(|n| (n % 251) as u8).collect();
        for (start, piece) in
            [(0, 1 << 14), (0, bytes.len()), (7_000, 1 << 14), (WRITE_BYTES as u64 - 1, 99_991)]
        {
            let mut pieces = Pieces::new(start);
            let (mut file, mut at, mut lengths) = (Vec::new(), start, Vec::new());
            let mut write = |part: &[u8]| {
                file.extend_from_slice(part);
                lengths.push((at, part.len()));
                at += part.len() as u64;
                Ok(())
            };
            for piece in bytes.chunks(piece) {
                pieces.push(piece, &mut write).unwrap();
            }
            pieces.flush(&mut write).unwrap();
            pieces.flush(|_| panic!("nothing is left")).unwrap();
            assert!(file == bytes, "from {start} in pieces of {piece}");
            let inner = &lengths[1..lengths.len() - 1];
            assert!(inner.len() >= 2, "{lengths:?}");
            for (at, length) in inner {
                assert_eq!((at % WRITE_BYTES as u64, *length), (0, WRITE_BYTES), "{lengths:?}");
            }
        }
    }

    #[test]
    fn an_error_comes_through() {
        let mut pieces = Pieces::new(0);
        let full = |_: &[u8]| Err(io::ErrorKind::StorageFull.into());
        pieces.push(&[0; 100], full).expect("nothing is written yet");
        let error = pieces.push(&vec![0; WRITE_BYTES], full).expect_err("the disk is full");
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
}
