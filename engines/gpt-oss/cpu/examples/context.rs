//! What a long context costs: time of a step at several positions, for each form of keys and values.
//!
//! `cargo run --release -p gpt-oss-cpu --example context -- DIR [--name 20b] [--threads N] [--isa NAME] [--date D]
//! [--commit C] [--positions 64,8192,32768] [--rows 1,512] [--format f32,bf16] [--times 5]`. What was read before is pretended
//! (zeros), which costs the same to look at. The output is one JSON object a row, in the form of `bench/results`.

use std::convert::Infallible;
use std::error::Error;
use std::path::PathBuf;
use std::time::Instant;

use gpt_oss_cpu::{CpuModel, Isa, KvFormat, Mapped, Pool, Sequences};
use gpt_oss_model::Store;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let dir = PathBuf::from(arguments.next().ok_or("name the folder of a checkpoint")?);
    let (mut name, mut date, mut commit) = ("20b".to_owned(), String::new(), String::new());
    let mut threads = std::thread::available_parallelism()?.get();
    let (mut isa, mut times) = (Isa::detect(), 5);
    let (mut positions, mut rows) = (vec![64usize, 8192, 32_768], vec![1usize, 512]);
    let mut formats = vec![KvFormat::F32, KvFormat::Bf16];
    let numbers = |value: &str| value.split(',').map(str::parse).collect::<Result<Vec<usize>, _>>();
    while let Some(key) = arguments.next() {
        let value = arguments.next().ok_or("a value is missing")?;
        match key.as_str() {
            "--name" => name = value,
            "--date" => date = value,
            "--commit" => commit = value,
            "--threads" => threads = value.parse()?,
            "--times" => times = value.parse()?,
            "--positions" => positions = numbers(&value)?,
            "--rows" => rows = numbers(&value)?,
            "--format" => formats.retain(|f| value.split(',').any(|v| v == f.as_str())),
            "--isa" => {
                isa = Isa::named(&value).ok_or("isa is scalar, avx2, avx512, avx512bf16, amx or neon")?;
            }
            _ => return Err(format!("{key} is not an option").into()),
        }
    }
    for format in formats {
        let store = Store::open(
            "model.safetensors.index.json",
            |name| std::fs::read(dir.join(name)),
            |name| Mapped::open(&dir.join(name)),
        )?;
        let model = CpuModel::new(store, Pool::pinned(threads)?, isa).with_kv_format(format);
        let vocabulary = model.config().vocabulary;
        for &rows in &rows {
            let tokens: Vec<u32> = (0..rows as u32).map(|i| (i * 7919 + 13) % vocabulary as u32).collect();
            for &position in &positions {
                let mut sequences = Sequences::new(model.kv_shape(), 1, position + rows);
                let mut logits = vec![0.0; vocabulary];
                let mut seconds: Vec<f64> = (0..times)
                    .map(|_| {
                        sequences.pretend(0, position);
                        let start = Instant::now();
                        let done: Result<(), Infallible> =
                            sequences.forward(&model, &[(0, &tokens, true)], &mut logits, |_, _| Ok(()));
                        match done {
                            Ok(()) => start.elapsed().as_secs_f64(),
                        }
                    })
                    .collect();
                seconds.sort_by(f64::total_cmp);
                println!(
                    "{{\"date\":\"{date}\",\"commit\":\"{commit}\",\"row\":\"{name} {} {threads}t {} kv, {rows} rows at \
                     {position}\",\"unit\":\"ms\",\"ours\":{:.3},\"peer\":null,\"peer_name\":null,\"limit\":null,\
                     \"n\":{times}}}",
                    isa.as_str(),
                    format.as_str(),
                    1e3 * seconds[times / 2]
                );
            }
        }
    }
    Ok(())
}
