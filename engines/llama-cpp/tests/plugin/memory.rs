//! What the estimate says beside what the process takes.
//!
//! `LLAMA_CPP_MEMORY_MODEL` names folders, with a `:` between them, each with a GGUF file to measure besides those that are made here.
//! `LLAMA_CPP_MEMORY_LARGE` names a folder in which files of several gigabytes may be made, without numbers, and are measured too.

use std::path::Path;

use engine_protocol::{Settings, ToNode};
use engine_testkit::suite::Bench;
use gpt_oss_synth::{Family, LargeKind, LargeShape, write_large_gguf};

use crate::{a_driver_takes_memory, demo, family, greedy, llama_cpp_is_missing, settings, subject};

const CONTEXT: u32 = 2048;
const SEQUENCES: u32 = 4;
/// What may be estimated too much: of everything, the mapped weights too, and besides for llama.cpp's tables.
const ABOVE_PERCENT: u64 = 5;
const ABOVE_BYTES: u64 = 8 << 20;

/// Bytes of its memory that are no pages of files; none where the system does not say.
fn private_bytes(process: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/smaps_rollup")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Anonymous:"))?;
    Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? << 10)
}

#[test]
fn no_model_takes_more_than_was_estimated() {
    if llama_cpp_is_missing() || a_driver_takes_memory() {
        return;
    }
    let (demo, llama) = (demo(), family(Family::Llama));
    let small = tempfile::tempdir().unwrap();
    write_large_gguf(&SMALL, &small.path().join("small.gguf")).unwrap();
    for dir in [demo.path(), llama.path(), small.path()] {
        for options in OPTIONS {
            measure(dir, options);
        }
    }
    if let Some(named) = std::env::var_os("LLAMA_CPP_MEMORY_MODEL") {
        std::env::split_paths(&named).for_each(|dir| measure(&dir, ""));
    }
}

/// Bytes of the largest part of a process's memory for which huge pages were asked; none where the system has not got them.
#[cfg(target_os = "linux")]
fn largest_in_huge_pages(process: u32) -> Option<u64> {
    let enabled = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").ok()?;
    if enabled.contains("[never]") {
        return None;
    }
    let maps = std::fs::read_to_string(format!("/proc/{process}/smaps")).ok()?;
    let (mut size, mut largest) = (0, 0);
    for line in maps.lines() {
        if let Some(kilobytes) = line.strip_prefix("Size:") {
            size = kilobytes.trim().trim_end_matches(" kB").parse::<u64>().ok()? << 10;
        } else if let Some(flags) = line.strip_prefix("VmFlags:")
            && flags.split_whitespace().any(|flag| flag == "hg")
        {
            largest = largest.max(size);
        }
    }
    Some(largest)
}

#[cfg(target_os = "linux")]
#[test]
fn a_large_kv_is_asked_for_in_huge_pages() {
    if llama_cpp_is_missing() || a_driver_takes_memory() {
        return;
    }
    // Of each token 1 KiB: 128 MiB in all.
    const SEQUENCES: u32 = 16;
    let small = tempfile::tempdir().unwrap();
    write_large_gguf(&SMALL, &small.path().join("small.gguf")).unwrap();
    let mut bench = Bench::open(&subject(small.path())).unwrap();
    let settings = settings(SMALL.context, SEQUENCES);
    bench.worker.load(&bench.model, &settings, &[]).unwrap().unwrap();
    if let Some(bytes) = largest_in_huge_pages(bench.worker.process_id()) {
        // But for what lies at its ends beside whole pages.
        let least = (u64::from(SMALL.context * SEQUENCES) << 10) - (1 << 20);
        assert!(bytes >= least, "of {least} bytes of KV {bytes} are asked for in huge pages");
    }
    bench.finish().unwrap();
}

/// What changes what attention takes.
const OPTIONS: [&str; 3] = ["", r#"{"flash_attention": false}"#, r#"{"kv_format": "f32"}"#];

/// With a vocabulary that weighs, and in a type that is copied; small enough for every run.
const SMALL: LargeShape = LargeShape {
    family: Family::Llama,
    kind: LargeKind::Q4_0,
    layers: 2,
    hidden: 256,
    intermediate: 1024,
    heads: 4,
    kv_heads: 2,
    head_size: 64,
    vocabulary: 50_000,
    context: 8192,
};

/// Llama's 8B with two of its layers, Qwen3's 4B with three, and Llama's 8B in a type that is copied, with four: more than a gigabyte each, and
/// few enough layers to be read through in minutes.
const LARGE: [LargeShape; 3] = [
    LargeShape {
        family: Family::Llama,
        kind: LargeKind::Q8_0,
        layers: 2,
        hidden: 4096,
        intermediate: 14_336,
        heads: 32,
        kv_heads: 8,
        head_size: 128,
        vocabulary: 128_256,
        context: 8192,
    },
    LargeShape {
        family: Family::Qwen3,
        kind: LargeKind::F16,
        layers: 3,
        hidden: 2560,
        intermediate: 9728,
        heads: 32,
        kv_heads: 8,
        head_size: 128,
        vocabulary: 151_936,
        context: 8192,
    },
    LargeShape {
        family: Family::Llama,
        kind: LargeKind::Q4_0,
        layers: 4,
        hidden: 4096,
        intermediate: 14_336,
        heads: 32,
        kv_heads: 8,
        head_size: 128,
        vocabulary: 128_256,
        context: 8192,
    },
];

#[test]
fn no_large_model_takes_more_than_was_estimated() {
    let Some(folder) = std::env::var_os("LLAMA_CPP_MEMORY_LARGE") else {
        println!("skipped: LLAMA_CPP_MEMORY_LARGE names no folder for files of several gigabytes");
        return;
    };
    if llama_cpp_is_missing() || a_driver_takes_memory() {
        return;
    }
    for shape in LARGE {
        let dir = tempfile::tempdir_in(&folder).unwrap();
        write_large_gguf(&shape, &dir.path().join("large.gguf")).unwrap();
        for options in OPTIONS {
            measure(dir.path(), options);
        }
    }
}

fn measure(dir: &Path, options: &str) {
    let mut bench = Bench::open(&subject(dir)).unwrap();
    let settings = Settings { options_json: options.to_owned(), ..settings(CONTEXT, SEQUENCES) };
    let estimate = bench.worker.estimate(&bench.model, &settings).unwrap().unwrap();
    let need = &estimate.devices[0];
    let each = need.per_sequence + need.kv_fixed + need.kv_per_token * u64::from(CONTEXT);
    let estimated = need.weights + need.workspace + u64::from(SEQUENCES) * each;
    let llama_cpp_says = |bench: &Bench| {
        let mut lines = Vec::new();
        bench.worker.find_kept(|message| {
            if let ToNode::Log { message, .. } = message
                && message.contains("buffer size")
            {
                lines.push(message.clone());
            }
            None::<()>
        });
        lines.join("\n    ")
    };
    let before = private_bytes(bench.worker.process_id());
    bench.worker.load(&bench.model, &settings, &[]).unwrap().unwrap();
    // As much as passes through the graph at once; and all of the KV is written, for its pages are not there before.
    for sequence in 1..=u64::from(SEQUENCES) {
        let prompt = format!("{sequence} ").repeat(900);
        bench.run_text(sequence, &prompt, greedy(4)).unwrap();
    }
    let after = private_bytes(bench.worker.process_id());
    if let (Some(before), Some(after)) = (before, after) {
        let taken = after - before;
        println!(
            "{} {options}: estimated {estimated} bytes (weights {}, workspace {}, KV {}) beside {} mapped, taken {taken}, {:.0} %\n    {}",
            dir.display(),
            need.weights,
            need.workspace,
            u64::from(SEQUENCES) * each,
            need.weights_mapped,
            100.0 * taken as f64 / estimated as f64,
            llama_cpp_says(&bench),
        );
        assert!(taken <= estimated, "{taken} bytes are taken and {estimated} estimated");
        let all = taken + need.weights_mapped;
        let above = estimated - taken;
        assert!(above <= ABOVE_BYTES + all * ABOVE_PERCENT / 100, "{above} bytes above the {taken} taken");
    }
    bench.finish().unwrap();
}
