//! Every kernel of gpt-oss on the cpu at the shapes of the published model, beside the limit that binds it.
//!
//! Weights are far larger than the caches and every call takes the next ones, as a step of the model does. One vector
//! waits for memory and many wait for arithmetic; the limit of a row is the smaller of the two, as [`Limits`] has measured
//! them just before. A matrix goes through the same function as in the model, so that preparing the activations and
//! sharing the work among threads count too.

use anyhow::{Context as _, Result, ensure};
use clap::Args;
use comfy_table::{Table, presets};
use gpt_oss_cpu::kernel::Rows;
use gpt_oss_cpu::{Activations, Isa, Pool, product};
use std::time::{Duration, Instant};

use crate::affinity::pin;
use crate::limits::{self, Limits, Pages, Unit, bandwidth, median_of};
use crate::record::Row;
use crate::{Common, ROUNDS};

/// Of one round; a call is never cut.
const ROUND: Duration = Duration::from_millis(30);
/// Bytes of weights that calls go round in: the largest matrix, the output layer of 20b in bf16.
const WEIGHTS_BYTES: usize = 201_088 * 2880 * 2;
/// Operations of a call at most; beyond them fewer rows are taken. Some milliseconds of the fastest kernel.
const CALL_OPERATIONS_MAX: usize = 2_000_000_000;
/// Vectors at once. 512 is a chunk of a long prompt.
const VECTORS: [usize; 7] = [1, 2, 4, 8, 16, 64, 512];
/// The scalar kernel is what is left without vectors; how slow it is with many is known.
const SCALAR_VECTORS_MAX: usize = 16;

#[derive(Args)]
pub struct KernelsArguments {
    /// Only rows whose names contain this
    #[arg(long, default_value = "")]
    only: String,
    /// A large file to map for the limits [default: one that is made for this]
    #[arg(long)]
    file: Option<std::path::PathBuf>,
}

/// How weights are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Bf16,
    Mxfp4,
    Int8,
}

/// A matrix of gpt-oss-20b.
#[derive(Debug, Clone, Copy)]
struct Matrix {
    kind: Kind,
    rows: usize,
    columns: usize,
    /// More never meet it at once.
    vectors_max: usize,
}

const fn matrix(kind: Kind, rows: usize, columns: usize, vectors_max: usize) -> Matrix {
    Matrix { kind, rows, columns, vectors_max }
}

/// Queries, attention's output, one expert's gates and ups, the output layer. Experts of a prompt of 512 tokens meet 64 of
/// them on average; the output layer meets one token of each sequence.
const MATRICES: [Matrix; 6] = [
    matrix(Kind::Bf16, 4096, 2880, 512),
    matrix(Kind::Bf16, 2880, 4096, 512),
    matrix(Kind::Bf16, 201_088, 2880, 16),
    matrix(Kind::Mxfp4, 5760, 2880, 512),
    matrix(Kind::Int8, 4096, 2880, 512),
    matrix(Kind::Int8, 201_088, 2880, 16),
];

impl Kind {
    fn as_str(self) -> &'static str {
        match self {
            Kind::Bf16 => "bf16",
            Kind::Mxfp4 => "mxfp4",
            Kind::Int8 => "int8",
        }
    }

    /// Pages such weights lie in: published ones in the file, 8-bit ones in memory of ours.
    fn pages(self) -> Pages {
        match self {
            Kind::Bf16 | Kind::Mxfp4 => Pages::Small,
            Kind::Int8 => Pages::Huge,
        }
    }
}

/// The unit a kernel multiplies with; `None`: whatever the compiler took, or one that is not measured.
fn unit(isa: Isa, activations: Activations) -> Option<Unit> {
    match (activations, isa) {
        (_, Isa::Amx) => Some(Unit::AmxBf16),
        (Activations::Int8, Isa::Avx512 | Isa::Avx512Bf16) => Some(Unit::Avx512Vnni),
        (Activations::Int8, Isa::Neon) => {
            [Unit::NeonI8mm, Unit::NeonDot].into_iter().find(|unit| unit.is_available())
        }
        (Activations::Int8, _) | (_, Isa::Scalar) => None,
        (_, Isa::Avx2) => Some(Unit::Avx2Fma),
        (_, Isa::Avx512) => Some(Unit::Avx512Fma),
        (_, Isa::Avx512Bf16) => Some(Unit::Avx512Bf16),
        (_, Isa::Neon) => Some(Unit::NeonFma),
    }
}

/// What activations are measured as: of eight bits where there is a kernel, and `avx512bf16` has that of `avx512`.
fn activations(kind: Kind, isa: Isa) -> &'static [Activations] {
    match (kind, isa) {
        (Kind::Bf16, _) | (_, Isa::Avx512) => &[Activations::Bf16],
        _ => &[Activations::Bf16, Activations::Int8],
    }
}

/// Random weights of one kind.
struct Weights {
    kind: Kind,
    numbers: memmap2::MmapMut,
    scales: Vec<u8>,
}

impl Weights {
    fn new(kind: Kind) -> Result<Weights> {
        let pages = kind.pages();
        let numbers = match bandwidth::anonymous(pages, WEIGHTS_BYTES)? {
            Some(numbers) => Some(numbers),
            None => bandwidth::anonymous(Pages::Small, WEIGHTS_BYTES)?,
        };
        let mut numbers = numbers.context("this system has no memory of small pages")?;
        let mut state = 1u32;
        for pair in numbers.as_chunks_mut::<2>().0 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let [low, _, _, high] = state.to_le_bytes();
            // As bf16 from 0.0078 to 2 in magnitude, as codes and whole numbers anything.
            *pair = [low, high & 0x83 | 0x3c];
        }
        // Scales of e8m0 around 1; as bf16 pairs something small and normal.
        let scales = match kind {
            Kind::Bf16 => Vec::new(),
            Kind::Mxfp4 => [124, 126, 123, 125].repeat(WEIGHTS_BYTES / 16 / 4),
            Kind::Int8 => [0x12, 0x3c].repeat(WEIGHTS_BYTES / 64),
        };
        Ok(Weights { kind, numbers, scales })
    }

    /// How many matrices of this shape there are.
    fn count(&self, rows: usize, columns: usize) -> usize {
        WEIGHTS_BYTES / (rows * self.number_bytes(columns))
    }

    /// Bytes of the numbers of a row.
    fn number_bytes(&self, columns: usize) -> usize {
        match self.kind {
            Kind::Bf16 => 2 * columns,
            Kind::Mxfp4 => columns / 2,
            Kind::Int8 => columns.next_multiple_of(64),
        }
    }

    fn matrix(&self, index: usize, rows: usize, columns: usize) -> Rows<'_> {
        let bytes = rows * self.number_bytes(columns);
        let numbers = &self.numbers[index * bytes..][..bytes];
        let scales = |each: usize, scale_bytes: usize| {
            let bytes = rows * columns.div_ceil(each) * scale_bytes;
            &self.scales[index * bytes..][..bytes]
        };
        match self.kind {
            Kind::Bf16 => Rows::Bf16 { bytes: numbers, columns },
            Kind::Mxfp4 => Rows::Mxfp4 { blocks: numbers, scales: scales(32, 1), columns },
            Kind::Int8 => Rows::Int8 { numbers, scales: scales(64, 2), columns },
        }
    }
}

/// What is measured at once.
struct Case<'a> {
    weights: &'a Weights,
    matrix: Matrix,
    isa: Isa,
    activations: Activations,
    vectors: usize,
    pool: &'a Pool,
}

/// What came out, a second.
struct Measured {
    operations: f64,
    bytes: f64,
}

impl Case<'_> {
    fn name(&self) -> String {
        let Matrix { kind, rows, columns, .. } = self.matrix;
        let (isa, vectors, threads) = (self.isa.as_str(), self.vectors, self.pool.threads());
        let activations = if self.activations == Activations::Int8 { "-int8" } else { "" };
        format!("kernel-{}-{rows}x{columns}-{isa}{activations}-{vectors}v-{threads}t", kind.as_str())
    }

    /// Rows of a call, and the operations that are.
    fn size(&self) -> (usize, f64) {
        let row = 2 * self.matrix.columns * self.vectors;
        let rows = self.matrix.rows.min(CALL_OPERATIONS_MAX / row);
        (rows, (rows * row) as f64)
    }

    fn measure(&self, rounds: u32) -> Measured {
        let (columns, (rows, operations)) = (self.matrix.columns, self.size());
        let tokens: Vec<f32> =
            (0..self.vectors * columns).map(|i| ((i * 7919) % 1024) as f32 / 512.0 - 1.0).collect();
        let mut out = vec![0.0; self.vectors * rows];
        let matrices = self.weights.count(rows, columns);
        let mut next = 0;
        let mut call = || {
            let weights = self.weights.matrix(next % matrices, rows, columns);
            next += 1;
            product(self.pool, self.isa, self.activations, weights, &tokens, &mut out);
        };
        // Wakes threads and brings the activations near.
        call();
        let calls = median_of(rounds, |_| {
            let start = Instant::now();
            let mut calls = 0.0;
            while start.elapsed() < ROUND {
                call();
                calls += 1.0;
            }
            calls / start.elapsed().as_secs_f64()
        });
        let bytes = rows * self.weights.matrix(0, rows, columns).row_bytes();
        Measured { operations: calls * operations, bytes: calls * bytes as f64 }
    }

    /// Operations a second at best, and what it is that allows no more.
    fn limit(&self, limits: &Limits) -> Result<(f64, &'static str)> {
        let threads = self.pool.threads();
        let pages = self.matrix.kind.pages();
        let read =
            limits.read(pages).or_else(|| limits.read(Pages::Small)).context("no bandwidth is known")?;
        let (rows, operations) = self.size();
        let bytes = rows * self.weights.matrix(0, rows, self.matrix.columns).row_bytes();
        let by_memory = (read.of(threads) * operations / bytes as f64, "memory");
        let peak = unit(self.isa, self.activations)
            .and_then(|unit| Some((limits.unit(unit)?.of(threads), unit.as_str())));
        Ok(peak.filter(|peak| peak.0 < by_memory.0).unwrap_or(by_memory))
    }
}

pub fn run(arguments: &KernelsArguments, common: &Common) -> Result<Vec<Row>> {
    let cores = limits::cores()?;
    let mut sizes = vec![1, cores.len()];
    sizes.dedup();
    // Before this thread is pinned, which new threads would inherit.
    let pools = sizes.iter().map(|&threads| Pool::new(threads)).collect::<std::io::Result<Vec<Pool>>>()?;
    eprintln!("  limits of this machine");
    let limits = Limits::measure(arguments.file.as_deref(), common.rounds(ROUNDS))?;
    pin(cores[0]);
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(["KERNEL", "GB/s", "Gop/s", "LIMIT", "OF", "SHARE"]);
    let mut rows = Vec::new();
    for kind in [Kind::Bf16, Kind::Mxfp4, Kind::Int8] {
        eprintln!("  kernels of {} weights", kind.as_str());
        let weights = Weights::new(kind)?;
        for case in cases(&weights, &pools).filter(|case| case.name().contains(&arguments.only)) {
            let (limit, binding) = case.limit(&limits)?;
            let measured = case.measure(common.rounds(ROUNDS));
            table.add_row([
                case.name(),
                format!("{:.1}", measured.bytes / 1e9),
                format!("{:.0}", measured.operations / 1e9),
                format!("{:.0}", limit / 1e9),
                binding.to_owned(),
                format!("{:.0} %", 100.0 * measured.operations / limit),
            ]);
            let row = Row::new(case.name(), "Gop/s", measured.operations / 1e9, common.rounds(ROUNDS));
            rows.push(row.limit(limit / 1e9));
        }
    }
    ensure!(!rows.is_empty(), "no row's name contains {:?}", arguments.only);
    println!("{table}");
    rows.extend(limits.rows(common.rounds(ROUNDS)));
    Ok(rows)
}

fn cases<'a>(weights: &'a Weights, pools: &'a [Pool]) -> impl Iterator<Item = Case<'a>> {
    let isas = Isa::ALL.into_iter().filter(|isa| isa.is_available());
    let matrices = MATRICES.into_iter().filter(|matrix| matrix.kind == weights.kind);
    matrices.flat_map(move |matrix| {
        isas.clone().flat_map(move |isa| {
            let max = if isa == Isa::Scalar { SCALAR_VECTORS_MAX } else { usize::MAX };
            let vectors = VECTORS.into_iter().filter(move |&v| v <= matrix.vectors_max.min(max));
            let forms = activations(weights.kind, isa);
            let each = forms.iter().flat_map(move |form| vectors.clone().map(move |v| (*form, v)));
            each.flat_map(move |(activations, vectors)| {
                pools.iter().map(move |pool| Case { weights, matrix, isa, activations, vectors, pool })
            })
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_weights_fills_its_matrices_with_numbers() {
        let pool = Pool::new(1).unwrap();
        for kind in [Kind::Bf16, Kind::Mxfp4, Kind::Int8] {
            let weights = Weights::new(kind).unwrap();
            let (rows, columns) = (24, 2880);
            let last = weights.count(rows, columns) - 1;
            let mut out = vec![0.0; rows];
            let matrix = weights.matrix(last, rows, columns);
            assert_eq!((matrix.count(), matrix.columns()), (rows, columns));
            product(&pool, Isa::detect(), Activations::Bf16, matrix, &vec![1.0; columns], &mut out);
            assert!(out.iter().all(|x| x.is_finite() && *x != 0.0), "{kind:?}: {out:?}");
        }
    }

    #[test]
    fn the_limit_is_memory_for_one_vector_and_the_unit_for_many() {
        let rate = |figure| limits::Rate { one: figure, all: figure };
        let limits = Limits {
            threads: 1,
            read: vec![(Pages::Small, rate(40e9))],
            units: vec![(Unit::Avx2Fma, rate(200e9))],
        };
        let weights = Weights {
            kind: Kind::Bf16,
            numbers: memmap2::MmapMut::map_anon(WEIGHTS_BYTES).unwrap(),
            scales: vec![],
        };
        let pool = Pool::new(1).unwrap();
        let limit = |vectors| {
            let (matrix, isa, activations) = (MATRICES[0], Isa::Avx2, Activations::Bf16);
            let case = Case { weights: &weights, matrix, isa, activations, vectors, pool: &pool };
            case.limit(&limits).unwrap()
        };
        assert_eq!(limit(1), (40e9, "memory"));
        assert_eq!(limit(512), (200e9, "avx2-fma"));
    }
}
