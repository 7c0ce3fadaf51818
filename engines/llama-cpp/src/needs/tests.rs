use super::*;
use crate::header::HeadSize;
use crate::options::KvFormat;

pub(crate) fn header() -> Header {
    let tensor = |name: &str, kind: &str, rows: u64, bytes: u64| Tensor {
        name: name.to_owned(),
        kind: kind.to_owned(),
        dimensions: [64, rows, 1, 1],
        bytes,
    };
    Header {
        architecture: "gpt-oss".to_owned(),
        primary: "a.gguf".to_owned(),
        paths: Vec::new(),
        file_bytes: 10_000,
        context_length: 4096,
        vocabulary: 1000,
        hidden: 64,
        intermediate: 256,
        queries: 128,
        heads: 4,
        head_sizes: vec![HeadSize { key: 32, value: 32 }],
        keeps_scores: false,
        kv_numbers: vec![32, 32],
        windows: vec![Some(128), None],
        state_bytes: 0,
        embedding: None,
        control_tokens: Vec::new(),
        vocabulary_bytes: 0,
        tensors: vec![
            tensor("token_embd.weight", "q4_0", 1000, 5000),
            tensor("blk.0.attn_q.weight", "q4_0", 128, 2000),
            tensor("blk.0.attn_norm.weight", "f32", 1, 256),
            tensor("blk.0.odd.weight", "q4_0", 12, 100),
        ],
    }
}

pub(crate) fn device(id: &str) -> Device {
    Device {
        id: id.to_owned(),
        kind: id.split(':').next().unwrap_or(id).to_owned(),
        name: id.to_owned(),
        memory_total: 1 << 34,
        memory_free: 1 << 34,
    }
}

#[test]
fn matrices_with_a_faster_layout_are_copied_and_the_rest_stays_mapped() {
    let header = header();
    let weights = |options: Options| Weights::of(&header, &options);
    assert_eq!(weights(Options::default()), Weights { copied: 2000, mapped: 5356 });
    let plain = Options { repack: false, ..Options::default() };
    assert_eq!(weights(plain), Weights { copied: 0, mapped: 7356 });
    assert_eq!(weights(Options { mmap: false, ..plain }), Weights { copied: 7356, mapped: 0 });
}

#[test]
fn layers_with_a_window_need_kv_for_the_window_alone() {
    let needs = Needs::of(&header(), &Options::default(), (4, 1024, 512), &[device(CPU)]);
    let [need] = needs.devices.as_slice() else { panic!("{needs:?}") };
    // 128 positions and a pass of 512, in pieces of 256.
    assert_eq!((need.kv_per_token, need.kv_fixed), (32 * 2, 32 * 2 * 768));
    let shared = Options { shared_kv: true, ..Options::default() };
    let needs = Needs::of(&header(), &shared, (4, 1024, 512), &[device(CPU)]);
    assert_eq!(needs.devices[0].kv_fixed, 32 * 2 * 128, "the pass is in the workspace");
    // A pass may look at the cells of all.
    let mask = 2 * 512 * 3 * 1024;
    assert_eq!(needs.devices[0].workspace - need.workspace, 32 * 2 * (512 + 256) + mask);
    assert!(need.workspace >= 4 * (512 * 64 + 4 * 1000), "{need:?}");
}

#[test]
fn scores_of_all_cells_are_counted_where_they_are_kept() {
    let workspace = |keeps_scores: bool, context: u32| {
        let header = Header { keeps_scores, ..header() };
        Needs::of(&header, &Options::default(), (4, context, 512), &[device(CPU)]).devices[0].workspace
    };
    // Of each of four heads one in f32, and the mask in f32 instead of f16.
    assert_eq!(workspace(true, 2048) - workspace(true, 1024), 1024 * 512 * (4 * 4 + 4));
    assert_eq!(workspace(false, 2048) - workspace(false, 1024), 1024 * 512 * 2);
    // Where a layer is at its widest they are gone already.
    let wide = |intermediate| {
        let header = Header { keeps_scores: true, intermediate, ..header() };
        Needs::of(&header, &Options::default(), (4, 1024, 512), &[device(CPU)]).devices[0].workspace
    };
    assert_eq!(wide(1000) - wide(900), 2 * 512 * 100, "what is multiplied, in another type");
    let mut needs = Needs::of(&header(), &Options::default(), (4, 1024, 512), &[device(CPU)]);
    let before = needs.devices[0].kv_per_token;
    let scores = Header { keeps_scores: true, ..header() };
    needs.let_context_grow(&scores, &Options::default(), (4, 1024, 512));
    assert_eq!(needs.devices[0].kv_per_token - before, 512 * (4 * 4 + 4) / 4);
}

#[test]
fn keys_and_values_in_f32_are_copied_for_attention() {
    let workspace = |kv_format| {
        let options = Options { kv_format, ..Options::default() };
        let narrow = Header { intermediate: 8, ..header() };
        Needs::of(&narrow, &options, (4, 1024, 512), &[device(CPU)]).devices[0].workspace
    };
    // Of the layer that has the most, of all sequences, in f16.
    assert_eq!(workspace(KvFormat::F32) - workspace(KvFormat::F16), 2 * 32 * 4 * 1024);
}

#[test]
fn an_accelerator_has_the_weights_and_the_processor_what_is_around_them() {
    let needs = Needs::of(&header(), &Options::default(), (1, 1024, 512), &[device("cuda:0"), device(CPU)]);
    let [cuda, cpu] = needs.devices.as_slice() else { panic!("{needs:?}") };
    assert_eq!((cuda.weights, cuda.weights_mapped), (7356, 0));
    assert_eq!((cpu.weights, cpu.kv_per_token), (0, 0));
    assert!(cpu.workspace >= CONTEXT_BYTES);
    let two =
        Needs::of(&header(), &Options::default(), (1, 1024, 512), &[device("cuda:0"), device("cuda:1")]);
    assert!(two.devices.iter().all(|need| need.weights == 7356 / 2));
}
