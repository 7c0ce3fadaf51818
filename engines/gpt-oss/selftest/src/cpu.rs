//! The processor: matrix products of every kind it has instructions for against f64, and how fast they read weights.

use std::time::Instant;

use gpt_oss_cpu::kernel::Rows;
use gpt_oss_cpu::{Activations, Isa, Pool, product};
use model_formats::mxfp4;
use serde_json::{Value, json};

use crate::report::Report;

/// Rows, columns, tokens: a row alone, ragged ends, several tokens at once.
const SIZES: [(usize, usize, usize); 4] = [(1, 32, 1), (37, 96, 1), (64, 2880, 3), (130, 192, 17)];
/// One step in the size of f32, and of what activations are rounded to, relative.
const F32_STEP: f64 = 1.0 / 8_388_608.0;
const BF16_STEP: f64 = 1.0 / 128.0;
/// Bytes that are read to see what memory gives: far more than caches hold.
const READ_BYTES: usize = 256 << 20;
/// The matrix that is measured, about the largest of gpt-oss-20b but for the output: (rows, columns).
const MATRIX: (usize, usize) = (46_080, 2880);
const REPEATS: usize = 5;

pub fn kernels(report: &mut Report) {
    let pool = match pool() {
        Ok(pool) => pool,
        Err(why) => return report.check("kernel product", || Err(why)),
    };
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        for activations in Activations::ALL {
            let name = format!("kernel product {} {}", isa.as_str(), activations.as_str());
            report.check(&name, || {
                for (rows, columns, tokens) in SIZES {
                    check(&pool, isa, activations, rows, columns, tokens)?;
                }
                Ok((format!("{} sizes of bf16 and MXFP4 as f64 has them", SIZES.len()), Value::Null))
            });
        }
    }
}

fn pool() -> Result<Pool, String> {
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    Pool::new(threads).map_err(|error| format!("cannot start {threads} threads: {error}"))
}

/// Numbers by chance, the same on every machine.
struct Chance(u64);

impl Chance {
    /// SplitMix64.
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn float(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    fn bf16(&mut self, count: usize) -> Vec<u8> {
        (0..count).flat_map(|_| ((self.float().to_bits() >> 16) as u16).to_le_bytes()).collect()
    }
}

fn check(
    pool: &Pool,
    isa: Isa,
    activations: Activations,
    rows: usize,
    columns: usize,
    tokens: usize,
) -> Result<(), String> {
    let mut chance = Chance((rows * columns * tokens) as u64);
    let inputs: Vec<f32> = (0..tokens * columns).map(|_| chance.float()).collect();
    let bf16 = chance.bf16(rows * columns);
    let blocks: Vec<u8> = (0..rows * columns / 2).map(|_| chance.bits() as u8).collect();
    let scales: Vec<u8> =
        (0..rows * columns / mxfp4::BLOCK).map(|_| 118 + (chance.bits() % 5) as u8).collect();
    let wide: Vec<f32> =
        bf16.as_chunks::<2>().0.iter().map(|b| mxfp4::bf16_to_f32(u16::from_le_bytes(*b))).collect();
    let mut decoded = vec![0.0; rows * columns];
    mxfp4::decode_row(&blocks, &scales, &mut decoded);
    let forms = [
        ("bf16", Rows::Bf16 { bytes: &bf16, columns }, &wide),
        ("mxfp4", Rows::Mxfp4 { blocks: &blocks, scales: &scales, columns }, &decoded),
    ];
    for (form, stored, plain) in forms {
        let mut out = vec![0.0; tokens * rows];
        product(pool, isa, activations, stored, &inputs, &mut out);
        for (n, got) in out.iter().enumerate() {
            let (token, row) = (n / rows, n % rows);
            let input = &inputs[token * columns..][..columns];
            let weights = &plain[row * columns..][..columns];
            let (want, bound) = expected(weights, input, activations);
            let is_near = (f64::from(*got) - want).abs() <= bound;
            if !is_near {
                return Err(format!(
                    "{form}, {rows} rows of {columns}, {tokens} tokens: row {row} of token {token} is {got}, not {want}, \
                     and may be off by {bound}"
                ));
            }
        }
    }
    Ok(())
}

/// The sum of products in f64, and how far off it may be: each activation by half a step of what it is rounded to, at most.
fn expected(weights: &[f32], input: &[f32], activations: Activations) -> (f64, f64) {
    let (mut sum, mut size, mut rounded) = (0.0, 0.0, 0.0);
    for (weights, input) in weights.chunks(mxfp4::BLOCK).zip(input.chunks(mxfp4::BLOCK)) {
        let largest = input.iter().fold(0.0f64, |most, x| most.max(f64::from(x.abs())));
        for (w, x) in weights.iter().zip(input) {
            let (w, x) = (f64::from(*w), f64::from(*x));
            sum += w * x;
            size += (w * x).abs();
            rounded += match activations {
                Activations::F32 => 0.0,
                Activations::Bf16 => (w * x).abs() * BF16_STEP,
                // Where they meet bf16 they are rounded to bf16.
                Activations::Int8 => w.abs() * largest / 127.0 + (w * x).abs() * BF16_STEP,
            };
        }
    }
    (sum, rounded + size * F32_STEP * 64.0 + 1e-30)
}

pub fn speed(report: &mut Report) {
    report.check("speed", || {
        let pool = pool()?;
        let memory = read_gigabytes(&pool);
        let (rows, columns) = MATRIX;
        // Zeros are as far away as other numbers, once their pages are there.
        let bytes = vec![1u8; 2 * rows * columns];
        let input = vec![0.5; columns];
        let mut out = vec![0.0; rows];
        let isa = Isa::detect();
        let weights = Rows::Bf16 { bytes: &bytes, columns };
        let seconds = median(|| product(&pool, isa, Activations::Int8, weights, &input, &mut out));
        let kernel = bytes.len() as f64 / seconds / 1e9;
        let share = kernel / memory;
        let found = format!(
            "memory gives {memory:.1} GB/s to {} threads; a matrix of bf16 is read with {kernel:.1} GB/s ({:.0} %), {}",
            pool.threads(),
            share * 100.0,
            isa.as_str()
        );
        let figures = json!({
            "threads": pool.threads(), "isa": isa.as_str(), "read_gigabytes_a_second": memory,
            "kernels": [{ "kernel": "product bf16", "tokens": 1, "microseconds": seconds * 1e6,
                          "gigabytes_a_second": kernel, "share": share }],
        });
        Ok((found, figures))
    });
}

/// What all threads together read from memory.
fn read_gigabytes(pool: &Pool) -> f64 {
    const PIECE: usize = 1 << 20;
    let words = vec![1u64; READ_BYTES / 8];
    let pieces: Vec<&[u64]> = words.chunks(PIECE / 8).collect();
    let seconds = median(|| {
        pool.run(pieces.len(), |n| {
            let sum = pieces[n].iter().fold(0u64, |sum, word| sum.wrapping_add(*word));
            std::hint::black_box(sum);
        });
    });
    READ_BYTES as f64 / seconds / 1e9
}

/// The median of a few runs, in seconds, after one that does not count.
fn median(mut work: impl FnMut()) -> f64 {
    work();
    let mut seconds: Vec<f64> = (0..REPEATS)
        .map(|_| {
            let start = Instant::now();
            work();
            start.elapsed().as_secs_f64()
        })
        .collect();
    seconds.sort_by(f64::total_cmp);
    seconds[REPEATS / 2]
}
