//! Files that cannot be run, and what they need in memory.

use engine_protocol::StatusCode;
use engine_testkit::suite::Bench;
use gpt_oss_synth::Family;
use model_formats::gguf::HeadWriter;

use crate::{family, llama_cpp_is_missing, settings, subject};

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
