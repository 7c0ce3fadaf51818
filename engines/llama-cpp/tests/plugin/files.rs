//! Files that cannot be run, and what they need in memory.

use engine_protocol::StatusCode;
use engine_testkit::suite::Bench;
use gpt_oss_synth::{Family, write_split_gguf};
use model_formats::gguf::HeadWriter;

use crate::{SEED, family, greedy, llama_cpp_is_missing, load, settings, subject};

#[test]
fn an_architecture_that_llama_cpp_does_not_know_is_unsupported_by_name() {
    if llama_cpp_is_missing() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let head = HeadWriter::default()
        .text("general.architecture", "nonesuch")
        .number("nonesuch.block_count", 1)
        .number("nonesuch.context_length", 64)
        .number("nonesuch.embedding_length", 32);
    std::fs::write(dir.path().join("model.gguf"), head.finish(&[])).unwrap();
    let mut bench = Bench::open(&subject(dir.path())).unwrap();
    let status = bench.worker.load(&bench.model, &settings(64, 1), &[]).unwrap().unwrap_err();
    assert_eq!((status.code, &*status.reason), (StatusCode::Unsupported, "unsupported_model"));
    assert!(status.message.contains("nonesuch"), "{status}");
    bench.finish().unwrap();
}

#[test]
fn a_file_that_is_cut_short_is_corrupt() {
    if llama_cpp_is_missing() {
        return;
    }
    let dir = family(Family::Llama);
    let path = dir.path().join("model.gguf");
    let bytes = std::fs::read(&path).unwrap();
    let mut bench = Bench::open(&subject(dir.path())).unwrap();
    // In the middle of the weights, of the table of tensors, and of the metadata.
    for part in [bytes.len() / 2, 18_000, 900] {
        std::fs::write(&path, &bytes[..part]).unwrap();
        let status = bench.worker.load(&bench.model, &settings(64, 1), &[]).unwrap().unwrap_err();
        assert_eq!(status.code, StatusCode::ModelCorrupt, "{part} bytes: {status}");
    }
    std::fs::write(&path, &bytes).unwrap();
    bench.worker.load(&bench.model, &settings(64, 1), &[]).unwrap().unwrap();
    bench.finish().unwrap();
}

#[test]
fn a_model_in_parts_is_the_same_as_in_one_file_and_needs_all_of_them() {
    if llama_cpp_is_missing() {
        return;
    }
    let whole = family(Family::Qwen3);
    let dir = tempfile::tempdir().unwrap();
    let parts = [1, 2, 3].map(|part| dir.path().join(format!("m-{part:05}-of-00003.gguf")));
    write_split_gguf(Family::Qwen3, SEED, &parts).unwrap();
    let answers = [whole.path(), dir.path()].map(|dir| {
        let (mut bench, _) = load(dir, 256);
        let reply = bench.run_text(1, "in one piece or in three", greedy(24)).unwrap();
        bench.finish().unwrap();
        reply.ids()
    });
    assert_eq!(answers[0], answers[1]);
    assert_eq!(answers[0].len(), 24);
    std::fs::remove_file(&parts[1]).unwrap();
    let mut bench = Bench::open(&subject(dir.path())).unwrap();
    let status = bench.worker.load(&bench.model, &settings(64, 1), &[]).unwrap().unwrap_err();
    assert!(status.message.contains("m-00002-of-00003.gguf"), "{status}");
    bench.finish().unwrap();
}
