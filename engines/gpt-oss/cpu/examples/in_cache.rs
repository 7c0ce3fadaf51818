//! Products of MXFP4 rows that stay in the second cache with 1 to 16 vectors: what the kernels compute when nothing waits for memory.

use gpt_oss_cpu::kernel::Rows;
use gpt_oss_cpu::{Activations, Isa, Pool, product};
use std::time::{Duration, Instant};

const COLUMNS: usize = 2880;

fn main() {
    let number =
        |at: usize, usual: usize| std::env::args().nth(at).map_or(usual, |v| v.parse().expect("a number"));
    let (rows_all, threads) = (number(2, 480), number(3, 1));
    let pool = Pool::new(threads).expect("a pool");
    let mut state = 1u32;
    let mut byte = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state.to_le_bytes()[3]
    };
    let blocks: Vec<u8> = (0..rows_all * COLUMNS / 2).map(|_| byte()).collect();
    let scales: Vec<u8> = (0..rows_all * COLUMNS / 32).map(|_| 120 + byte() % 8).collect();
    for vectors in std::env::args()
        .nth(1)
        .map_or(vec![1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 64], |v| vec![v.parse().expect("a number")])
    {
        let tokens: Vec<f32> =
            (0..vectors * COLUMNS).map(|i| ((i * 7919) % 1024) as f32 / 512.0 - 1.0).collect();
        let mut out = vec![0.0; vectors * rows_all];
        let mut best = f64::INFINITY;
        for _ in 0..number(4, 40) {
            let (start, mut calls) = (Instant::now(), 0.0);
            while start.elapsed() < Duration::from_millis(10) {
                let rows = Rows::Mxfp4 { blocks: &blocks, scales: &scales, columns: COLUMNS };
                product(&pool, Isa::detect(), Activations::Int8, rows, &tokens, &mut out);
                calls += 1.0;
            }
            best = f64::min(best, start.elapsed().as_secs_f64() / calls);
        }
        let lines = (rows_all * COLUMNS / 128) as f64;
        println!(
            "{vectors:3} vectors: {:6.2} ns for 64 bytes, {:6.1} Gop/s",
            best / lines * 1e9,
            lines * 256.0 * vectors as f64 / best / 1e9
        );
    }
}
