//! What the estimate says beside what the process takes.
//!
//! `LLAMA_CPP_MEMORY_MODEL` names folders, with a `:` between them, each with a GGUF file to measure besides those that are made here.

use std::path::Path;

use engine_protocol::ToNode;
use engine_testkit::suite::Bench;
use gpt_oss_synth::Family;

use crate::{demo, family, greedy, llama_cpp_is_missing, settings, subject};

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
    if llama_cpp_is_missing() {
        return;
    }
    let (demo, llama) = (demo(), family(Family::Llama));
    for dir in [demo.path(), llama.path()] {
        measure(dir);
    }
    if let Some(named) = std::env::var_os("LLAMA_CPP_MEMORY_MODEL") {
        std::env::split_paths(&named).for_each(|dir| measure(&dir));
    }
}

fn measure(dir: &Path) {
    let mut bench = Bench::open(&subject(dir)).unwrap();
    let settings = settings(CONTEXT, SEQUENCES);
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
            "{}: estimated {estimated} bytes (weights {}, workspace {}, KV {}) beside {} mapped, taken {taken}, {:.0} %\n    {}",
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
