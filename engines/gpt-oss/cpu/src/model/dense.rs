//! An eight-bit copy of the matrices that every token reads: attention and output.

use std::io;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use gpt_oss_model::GptOssConfig;

use super::{CpuModel, Matrix, Place};
use crate::int8::{encode_row, numbers_bytes, scales_bytes};
use crate::kernel::Rows;
use crate::linear::rows_a_task;
use crate::mapped::{Anonymous, TOUCH_BYTES};

/// Parts begin at lines of the cache.
const ALIGNMENT: usize = 64;
/// Matrices of a layer that are copied: queries, keys, values, output.
pub(super) const MATRICES_A_LAYER: usize = 4;

/// Bytes of the copy, and of the stored tensors that nobody reads once it is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DenseBytes {
    pub copy: u64,
    pub replaced: u64,
}

/// Why there is no copy.
#[derive(Debug)]
pub enum PrepareError<E> {
    /// No memory, or a file that cannot be read.
    Io(io::Error),
    /// What the caller's report gave.
    Stopped(E),
}

/// The copy: one piece of memory with all matrices, in the order in which a token reads them.
#[derive(Debug)]
pub struct DenseCopy {
    memory: Anonymous,
    parts: Vec<Part>,
    seconds: f64,
    huge_bytes: Option<u64>,
}

/// Where a matrix is; the scales lie behind the numbers.
#[derive(Debug, Clone)]
struct Part {
    numbers: Range<usize>,
    scales: Range<usize>,
}

impl DenseBytes {
    pub fn of(config: &GptOssConfig) -> DenseBytes {
        let matrices = matrices(config).into_iter();
        DenseBytes {
            copy: plan(config).1 as u64,
            replaced: matrices.map(|(rows, columns)| (2 * rows * columns) as u64).sum(),
        }
    }
}

impl DenseCopy {
    pub fn bytes(&self) -> u64 {
        self.memory.as_ref().len() as u64
    }

    /// Time it took to make, reading of the files included.
    pub fn seconds(&self) -> f64 {
        self.seconds
    }

    /// Bytes in huge pages when the copy was made, where the system tells.
    pub fn huge_bytes(&self) -> Option<u64> {
        self.huge_bytes
    }

    pub(super) fn rows(&self, matrix: &Matrix) -> Rows<'_> {
        let part = &self.parts[matrix.number];
        let memory = self.memory.as_ref();
        Rows::Int8 {
            numbers: &memory[part.numbers.clone()],
            scales: &memory[part.scales.clone()],
            columns: matrix.columns,
        }
    }
}

impl CpuModel {
    /// Makes an eight-bit copy of the matrices of attention and output, which is used from then on. `report(done)` is
    /// called with the bytes of weights that were read so far, a few times a second; with an error from it the copy is
    /// given up. Every result differs from that of the stored weights: see the README for by how much.
    ///
    /// # Errors
    /// See [`PrepareError`]; the model is as it was.
    pub fn prepare_int8<E>(
        &mut self,
        mut report: impl FnMut(u64) -> Result<(), E>,
    ) -> Result<(), PrepareError<E>> {
        let start = Instant::now();
        let (parts, bytes) = plan(self.config());
        let memory = Anonymous::new(bytes).map_err(PrepareError::Io)?;
        let mut copy = DenseCopy { memory, parts, seconds: 0.0, huge_bytes: None };
        let mut done = 0;
        for matrix in self.matrices() {
            let rows = (TOUCH_BYTES / (2 * matrix.columns)).max(1);
            let count = copy.parts[matrix.number].numbers.len() / numbers_bytes(matrix.columns);
            for first in (0..count).step_by(rows) {
                let piece = first..(first + rows).min(count);
                self.encode(matrix, piece.clone(), &mut copy).map_err(PrepareError::Io)?;
                done += (2 * piece.len() * matrix.columns) as u64;
                report(done).map_err(PrepareError::Stopped)?;
            }
        }
        copy.huge_bytes = copy.memory.huge_bytes();
        copy.seconds = start.elapsed().as_secs_f64();
        self.dense = Some(copy);
        Ok(())
    }

    /// The eight-bit copy, if there is one.
    pub fn dense_copy(&self) -> Option<&DenseCopy> {
        self.dense.as_ref()
    }

    /// The bytes of the shards that are read, (shard, bytes): all, or all but those that a copy stands for.
    pub fn parts_read(&self) -> Vec<(usize, Range<usize>)> {
        let mut parts = Vec::new();
        for (number, shard) in self.store.shards().iter().enumerate() {
            let mut replaced: Vec<Range<usize>> = Vec::new();
            if self.dense.is_some() {
                let here = self.matrices().filter(|m| m.stored.shard == number);
                replaced.extend(here.map(|m| m.stored.range.clone()));
            }
            replaced.sort_by_key(|r| r.start);
            let starts = std::iter::once(0).chain(replaced.iter().map(|r| r.end));
            let ends = replaced.iter().map(|r| r.start).chain([shard.as_ref().len()]);
            let gaps = starts.zip(ends).filter(|(start, end)| start < end);
            parts.extend(gaps.map(|(start, end)| (number, start..end)));
        }
        parts
    }

    fn matrices(&self) -> impl Iterator<Item = &Matrix> {
        let layers = self.layers.iter().flat_map(|l| [&l.q.0, &l.k.0, &l.v.0, &l.o.0]);
        layers.chain([&self.head])
    }

    /// Some rows of a matrix, by all threads. The pages they were read from are given back: they stay in the system's
    /// cache, but are the first to go when memory is short.
    fn encode(&self, matrix: &Matrix, rows: Range<usize>, copy: &mut DenseCopy) -> io::Result<()> {
        let Matrix { stored: Place { shard, range }, number, columns } = matrix;
        let (numbers_row, scales_row) = (numbers_bytes(*columns), scales_bytes(*columns));
        let shard = &self.store.shards()[*shard];
        let stored = range.start + 2 * rows.start * columns..range.start + 2 * rows.end * columns;
        shard.touch(stored.clone())?;

        let part = &copy.parts[*number];
        let (numbers, scales) = copy.memory.as_mut().split_at_mut(part.scales.start);
        let numbers =
            &mut numbers[part.numbers.start + rows.start * numbers_row..][..rows.len() * numbers_row];
        let scales = &mut scales[rows.start * scales_row..][..rows.len() * scales_row];
        let task_rows = rows_a_task(2 * columns, 1);
        let tasks: Vec<_> = shard.as_ref()[stored.clone()]
            .chunks(2 * columns * task_rows)
            .zip(numbers.chunks_mut(numbers_row * task_rows))
            .zip(scales.chunks_mut(scales_row * task_rows))
            .map(Mutex::new)
            .collect();
        self.pool.run(tasks.len(), |i| {
            // Every task has its lock for itself.
            let mut task = tasks[i].lock().unwrap_or_else(PoisonError::into_inner);
            let ((stored, numbers), scales) = &mut *task;
            let rows = stored.chunks_exact(2 * columns).zip(numbers.chunks_exact_mut(numbers_row));
            for ((stored, numbers), scales) in rows.zip(scales.chunks_exact_mut(scales_row)) {
                encode_row(stored, numbers, scales);
            }
        });
        shard.let_go(stored);
        Ok(())
    }
}

/// Rows and columns of every matrix that is copied, in order.
fn matrices(config: &GptOssConfig) -> Vec<(usize, usize)> {
    let (hidden, query, kv) = (config.hidden, config.query_width(), config.kv_width());
    let layer: [_; MATRICES_A_LAYER] = [(query, hidden), (kv, hidden), (kv, hidden), (hidden, query)];
    let mut all = layer.repeat(config.layers.len());
    all.push((config.vocabulary, hidden));
    all
}

/// Where they go, and how much memory that is.
fn plan(config: &GptOssConfig) -> (Vec<Part>, usize) {
    let mut end = 0;
    let mut place = |bytes: usize| {
        let start = usize::next_multiple_of(end, ALIGNMENT);
        end = start + bytes;
        start..end
    };
    let part = |(rows, columns): (usize, usize)| Part {
        numbers: place(rows * numbers_bytes(columns)),
        scales: place(rows * scales_bytes(columns)),
    };
    let parts = matrices(config).into_iter().map(part).collect();
    (parts, end)
}
