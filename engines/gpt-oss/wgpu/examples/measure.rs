//! Prints what an adapter does at most and how near each kernel comes to that: `measure [vulkan:0]`, software or not.

use std::process::ExitCode;

use gpt_oss_wgpu::measure::measure;
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
    let measured = measure(&adapter)?;
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
    println!(
        "a token of 24 layers: {} launches, brought on their way in {:.2} ms",
        measured.dispatches,
        measured.encode_seconds * 1e3
    );
    Ok(())
}
