//! Products of the same MXFP4 rows with a few tokens: from the second cache, or from memory where there are many rows.
//!
//! `cargo run --release -p gpt-oss-cpu --example few_tokens -- [--tokens 1,2,3] [--rows 480] [--threads 1] [--turns 40]`.
//! 480 rows are 0.7 MB, 115,200 are 166 MB. Preparing the tokens counts, which few rows make much of. The best turn is told:
//! what is asked here is what a kernel can do, not how busy the machine is.

use std::error::Error;
use std::time::{Duration, Instant};

use gpt_oss_cpu::kernel::Rows;
use gpt_oss_cpu::{Activations, Isa, Pool, product};

const COLUMNS: usize = 2880;
/// Numbers that 64 bytes of codes are.
const LINE_NUMBERS: usize = 128;
const TURN: Duration = Duration::from_millis(10);

fn main() -> Result<(), Box<dyn Error>> {
    let (mut tokens, mut rows, mut threads, mut turns) =
        (vec![1usize, 2, 3, 4, 5, 6, 7, 8, 12, 16, 64], 480, 1, 40);
    let mut arguments = std::env::args().skip(1);
    while let Some(key) = arguments.next() {
        let value = arguments.next().ok_or("a value is missing")?;
        match key.as_str() {
            "--tokens" => tokens = value.split(',').map(str::parse).collect::<Result<_, _>>()?,
            "--rows" => rows = value.parse()?,
            "--threads" => threads = value.parse()?,
            "--turns" => turns = value.parse()?,
            _ => return Err(format!("{key} is not an option").into()),
        }
    }
    let pool = Pool::new(threads)?;
    let mut state = 1u32;
    let mut byte = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_le_bytes()[3]
    };
    let blocks: Vec<u8> = (0..rows * COLUMNS / 2).map(|_| byte()).collect();
    let scales: Vec<u8> = (0..rows * COLUMNS / 32).map(|_| 120 + byte() % 8).collect();
    let weights = Rows::Mxfp4 { blocks: &blocks, scales: &scales, columns: COLUMNS };
    for count in tokens {
        let plain: Vec<f32> =
            (0..count * COLUMNS).map(|i| ((i * 7919) % 1024) as f32 / 512.0 - 1.0).collect();
        let mut out = vec![0.0; count * rows];
        let mut best = f64::INFINITY;
        for _ in 0..turns {
            let (start, mut calls) = (Instant::now(), 0.0);
            while start.elapsed() < TURN {
                product(&pool, Isa::detect(), Activations::Int8, weights, &plain, &mut out);
                calls += 1.0;
            }
            best = best.min(start.elapsed().as_secs_f64() / calls);
        }
        let lines = (rows * COLUMNS / LINE_NUMBERS) as f64;
        println!(
            "{count:3} tokens: {:6.2} ns for 64 bytes, {:6.1} Gop/s",
            best / lines * 1e9,
            lines * (2 * LINE_NUMBERS * count) as f64 / best / 1e9
        );
    }
    Ok(())
}
