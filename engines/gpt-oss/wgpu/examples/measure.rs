//! Prints what an adapter does at most and how near each kernel comes to that: `measure [vulkan:0]`, software or not;
//! `measure vulkan:0 token` only what a token costs the processor.

use std::process::ExitCode;

use gpt_oss_wgpu::measure::{self, Token};
use gpt_oss_wgpu::{Adapter, DeviceError};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), DeviceError> {
    let id = std::env::args().nth(1).unwrap_or_else(|| "vulkan:0".to_owned());
    let adapter = Adapter::find(&id, true)?;
    println!("{id}: {} ({})", adapter.name, adapter.driver);
    let token = |token: Token| {
        println!(
            "a token of 24 layers: {} launches, recorded in {:.3} ms and handed over in {:.3} ms; {} bytes, {:.2} % beyond the least",
            token.dispatches,
            token.recording_seconds * 1e3,
            token.submitting_seconds * 1e3,
            token.bytes,
            100.0 * (token.bytes as f64 / token.bytes_min as f64 - 1.0)
        );
    };
    if std::env::args().nth(2).is_some_and(|what| what == "token") {
        token(measure::token(&adapter)?);
        return Ok(());
    }
    let measured = measure::measure(&adapter)?;
    println!("reads {:.1} GB/s, multiplies {:.1} GFLOP/s", measured.gigabytes_a_second, measured.gigaflops);
    println!("{:<28} {:>6} {:>10} {:>9} {:>9} {:>6}", "kernel", "tokens", "us", "GB/s", "GFLOP/s", "share");
    for row in &measured.rows {
        println!(
            "{:<28} {:>6} {:>10.1} {:>9.2} {:>9.1} {:>5.0}%",
            row.name,
            row.tokens,
            row.seconds * 1e6,
            row.gigabytes_a_second(),
            row.gigaflops(),
            100.0 * measured.share(row)
        );
    }
    token(measured.token);
    Ok(())
}
