use super::*;

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
