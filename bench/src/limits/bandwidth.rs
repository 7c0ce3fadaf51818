//! How fast memory is read that is far larger than the caches, by the size of its pages.

use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context as _, Result};
use core_affinity::CoreId;
use memmap2::{Mmap, MmapMut};

use super::{median_of, on_each};

/// What a thread claims at once: no thread waits long for another at the end, and claiming costs nothing.
const PIECE_BYTES: usize = 2 << 20;
/// Streams of the second pattern; memory controllers serve several pages at once better than one.
const STREAMS: usize = 4;
/// How far in front of the loads the second pattern asks for lines.
#[cfg(target_arch = "x86_64")]
const AHEAD_BYTES: usize = 2048;
#[cfg(target_arch = "x86_64")]
const LINE: usize = 64;

/// In what kind of pages the memory lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    /// Anonymous, the smallest pages of the machine.
    Small,
    /// Anonymous, as large as the system makes them by itself (2 MiB).
    Huge,
    /// A mapped file that is in the system's cache.
    File,
}

impl Pages {
    pub const ALL: [Pages; 3] = [Pages::Small, Pages::Huge, Pages::File];

    pub fn as_str(self) -> &'static str {
        match self {
            Pages::Small => "small",
            Pages::Huge => "huge",
            Pages::File => "file",
        }
    }
}

/// Memory that is there: every page of it has been written or read.
pub enum Memory {
    Anonymous(MmapMut),
    File(Mmap),
}

impl Memory {
    /// `bytes` in such pages; `None` where the system leaves us no choice of them. `file`: what to map for
    /// [`Pages::File`]; without one a temporary file is written.
    ///
    /// # Errors
    /// There is not so much memory; the file cannot be written, opened or mapped, or is empty.
    pub fn of(pages: Pages, bytes: usize, file: Option<&Path>) -> Result<Option<Memory>> {
        if pages == Pages::File {
            return Memory::mapped(bytes, file).map(Some);
        }
        let mut map =
            MmapMut::map_anon(bytes).with_context(|| format!("cannot have {bytes} bytes of memory"))?;
        if !advise(&map, pages) {
            return Ok(None);
        }
        map.fill(1);
        Ok(Some(Memory::Anonymous(map)))
    }

    fn mapped(bytes: usize, file: Option<&Path>) -> Result<Memory> {
        let file = match file {
            Some(path) => {
                std::fs::File::open(path).with_context(|| format!("cannot open {}", path.display()))?
            }
            None => written(bytes).context("cannot write a temporary file to map")?,
        };
        let length = file.metadata().context("cannot ask for the length of the file to map")?.len();
        let length = usize::try_from(length).unwrap_or(usize::MAX).min(bytes);
        anyhow::ensure!(length >= PIECE_BYTES, "the file to map has less than {PIECE_BYTES} bytes");
        // SAFETY: sound as long as nobody shortens the file meanwhile: the temporary one has no name any more, another
        // one is a checkpoint that nobody writes. Otherwise this benchmark ends with a signal.
        let map = unsafe { memmap2::MmapOptions::new().len(length).map(&file) };
        let memory = Memory::File(map.context("cannot map the file")?);
        // The first touch reads from the disk and makes every page present.
        std::hint::black_box(sum(memory.bytes()));
        Ok(memory)
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Memory::Anonymous(map) => map,
            Memory::File(map) => map,
        }
    }
}

/// Memory that becomes present, in such pages, when it is written; `None` where the system leaves us no choice of them.
///
/// # Errors
/// There is not so much memory.
pub fn anonymous(pages: Pages, bytes: usize) -> Result<Option<MmapMut>> {
    let map = MmapMut::map_anon(bytes).with_context(|| format!("cannot have {bytes} bytes of memory"))?;
    Ok(advise(&map, pages).then_some(map))
}

/// False: this system has no such choice.
#[cfg(target_os = "linux")]
fn advise(map: &MmapMut, pages: Pages) -> bool {
    let advice = if pages == Pages::Huge { memmap2::Advice::HugePage } else { memmap2::Advice::NoHugePage };
    // A kernel without huge pages knows neither word; small ones it has all the same.
    map.advise(advice).is_ok() || pages == Pages::Small
}

#[cfg(not(target_os = "linux"))]
fn advise(_: &MmapMut, pages: Pages) -> bool {
    pages == Pages::Small
}

fn written(bytes: usize) -> std::io::Result<std::fs::File> {
    let mut file = tempfile::tempfile()?;
    let piece = vec![1; PIECE_BYTES];
    for _ in 0..bytes.div_ceil(PIECE_BYTES) {
        file.write_all(&piece)?;
    }
    Ok(file)
}

/// Bytes a second that the threads on `cores` read together, with the better of two patterns.
pub fn read(cores: &[CoreId], memory: &Memory, rounds: u32) -> f64 {
    let patterns: [fn(&[u8]) -> u64; 2] = [sum, sum_streams];
    patterns
        .map(|sum| median_of(rounds, |_| once(cores, memory.bytes(), sum)))
        .into_iter()
        .fold(0.0, f64::max)
}

fn once(cores: &[CoreId], bytes: &[u8], sum: fn(&[u8]) -> u64) -> f64 {
    let next = AtomicUsize::new(0);
    let times = on_each(cores, |_| {
        let start = Instant::now();
        loop {
            let at = next.fetch_add(PIECE_BYTES, Ordering::Relaxed);
            // Whole pieces only; the memory has one at least.
            let Some(piece) = bytes.get(at..at + PIECE_BYTES) else { break };
            std::hint::black_box(sum(piece));
        }
        (start, Instant::now())
    });
    let start = times.iter().map(|t| t.0).min().expect("there is a thread");
    let end = times.iter().map(|t| t.1).max().expect("there is a thread");
    (bytes.len() / PIECE_BYTES * PIECE_BYTES) as f64 / (end - start).as_secs_f64()
}

/// From the first byte to the last.
fn sum(bytes: &[u8]) -> u64 {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: the feature was asked for just now.
        return unsafe { x86::sum_avx512(bytes) };
    } else if is_x86_feature_detected!("avx2") {
        // SAFETY: as above.
        return unsafe { x86::sum_avx2(bytes) };
    }
    plain(bytes)
}

/// Four places at once.
fn sum_streams(bytes: &[u8]) -> u64 {
    let quarter = bytes.len() / STREAMS;
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx512f") {
        // SAFETY: the feature was asked for just now.
        return unsafe { x86::sum_streams_avx512(bytes, quarter) };
    } else if is_x86_feature_detected!("avx2") {
        // SAFETY: as above.
        return unsafe { x86::sum_streams_avx2(bytes, quarter) };
    }
    let streams: Vec<&[[u8; 64]]> = bytes.chunks_exact(quarter).map(|s| s.as_chunks().0).collect();
    let lines = streams.iter().map(|s| s.len()).min().unwrap_or(0);
    (0..lines).flat_map(|line| streams.iter().map(move |s| plain(&s[line]))).fold(0, u64::wrapping_add)
}

/// For a compiler that makes vectors of it.
fn plain(bytes: &[u8]) -> u64 {
    let mut sums = [0u64; 16];
    let (lines, rest) = bytes.as_chunks::<128>();
    for line in lines {
        for (sum, bytes) in sums.iter_mut().zip(line.as_chunks::<8>().0) {
            *sum = sum.wrapping_add(u64::from_ne_bytes(*bytes));
        }
    }
    let rest = rest.as_chunks::<8>().0.iter().map(|bytes| u64::from_ne_bytes(*bytes));
    sums.into_iter().chain(rest).fold(0, u64::wrapping_add)
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{AHEAD_BYTES, LINE, STREAMS};

    /// Lines whose sums do not wait for each other.
    const TOGETHER: usize = 8;

    #[target_feature(enable = "avx512f")]
    pub fn sum_avx512(bytes: &[u8]) -> u64 {
        let mut sums = [_mm512_setzero_si512(); TOGETHER];
        for lines in bytes.as_chunks::<{ TOGETHER * LINE }>().0 {
            for (sum, line) in sums.iter_mut().zip(lines.as_chunks::<LINE>().0) {
                // SAFETY: a line has the 64 bytes that are loaded.
                *sum = _mm512_add_epi64(*sum, unsafe { _mm512_loadu_si512(line.as_ptr().cast()) });
            }
        }
        total_avx512(sums)
    }

    #[target_feature(enable = "avx512f")]
    pub fn sum_streams_avx512(bytes: &[u8], quarter: usize) -> u64 {
        assert!(quarter * STREAMS <= bytes.len());
        let mut sums = [_mm512_setzero_si512(); TOGETHER];
        for at in (0..quarter / (2 * LINE) * 2 * LINE).step_by(2 * LINE) {
            for (stream, sums) in sums.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                let start = bytes.as_ptr().wrapping_add(stream * quarter + at);
                _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(AHEAD_BYTES).cast());
                _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(AHEAD_BYTES + LINE).cast());
                // SAFETY: two lines from `at` on end inside the stream, and all streams inside `bytes`.
                let (a, b) = unsafe {
                    (_mm512_loadu_si512(start.cast()), _mm512_loadu_si512(start.wrapping_add(LINE).cast()))
                };
                sums[0] = _mm512_add_epi64(sums[0], a);
                sums[1] = _mm512_add_epi64(sums[1], b);
            }
        }
        total_avx512(sums)
    }

    #[target_feature(enable = "avx512f")]
    fn total_avx512(sums: [__m512i; TOGETHER]) -> u64 {
        let mut total = _mm512_setzero_si512();
        for sum in sums {
            total = _mm512_add_epi64(total, sum);
        }
        _mm512_reduce_add_epi64(total).cast_unsigned()
    }

    #[target_feature(enable = "avx2")]
    pub fn sum_avx2(bytes: &[u8]) -> u64 {
        let mut sums = [_mm256_setzero_si256(); TOGETHER];
        for halves in bytes.as_chunks::<{ TOGETHER * LINE / 2 }>().0 {
            for (sum, half) in sums.iter_mut().zip(halves.as_chunks::<{ LINE / 2 }>().0) {
                // SAFETY: half a line has the 32 bytes that are loaded.
                *sum = _mm256_add_epi64(*sum, unsafe { _mm256_loadu_si256(half.as_ptr().cast()) });
            }
        }
        total_avx2(sums)
    }

    #[target_feature(enable = "avx2")]
    pub fn sum_streams_avx2(bytes: &[u8], quarter: usize) -> u64 {
        assert!(quarter * STREAMS <= bytes.len());
        let mut sums = [_mm256_setzero_si256(); TOGETHER];
        for at in (0..quarter / LINE * LINE).step_by(LINE) {
            for (stream, sums) in sums.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                let start = bytes.as_ptr().wrapping_add(stream * quarter + at);
                _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(AHEAD_BYTES).cast());
                // SAFETY: a line from `at` on ends inside the stream, and all streams inside `bytes`.
                let (a, b) = unsafe {
                    (
                        _mm256_loadu_si256(start.cast()),
                        _mm256_loadu_si256(start.wrapping_add(LINE / 2).cast()),
                    )
                };
                sums[0] = _mm256_add_epi64(sums[0], a);
                sums[1] = _mm256_add_epi64(sums[1], b);
            }
        }
        total_avx2(sums)
    }

    #[target_feature(enable = "avx2")]
    fn total_avx2(sums: [__m256i; TOGETHER]) -> u64 {
        let mut total = _mm256_setzero_si256();
        for sum in sums {
            total = _mm256_add_epi64(total, sum);
        }
        let mut lanes = [0u64; 4];
        // SAFETY: four lanes of eight bytes.
        unsafe { _mm256_storeu_si256(lanes.as_mut_ptr().cast(), total) };
        lanes.into_iter().fold(0, u64::wrapping_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_adds_up_every_byte_once() {
        let bytes: Vec<u8> = (0..1 << 16).map(|i: u32| (i % 251) as u8).collect();
        let words = bytes.as_chunks::<8>().0.iter().map(|b| u64::from_ne_bytes(*b));
        let expected = words.fold(0, u64::wrapping_add);
        assert_eq!(sum(&bytes), expected);
        assert_eq!(sum_streams(&bytes), expected);
        assert_eq!(plain(&bytes), expected);
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the feature was asked for just now.
            let both =
                unsafe { (x86::sum_avx2(&bytes), x86::sum_streams_avx2(&bytes, bytes.len() / STREAMS)) };
            assert_eq!(both, (expected, expected));
        }
    }
}
