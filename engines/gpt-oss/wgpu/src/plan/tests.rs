use super::*;

fn config(change: impl Fn(&mut GptOssConfig)) -> GptOssConfig {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../assets/demo-model/config.json");
    let bytes = std::fs::read(path).expect("the demo model is in the tree");
    let mut config = GptOssConfig::parse(&bytes).expect("it is sound");
    change(&mut config);
    config
}

#[test]
fn a_model_without_kernels_is_refused_with_both_numbers() {
    assert_eq!(unsupported(&config(|_| {})), None);
    // What is changed, and the two numbers.
    type Case = (fn(&mut GptOssConfig), &'static str, &'static str);
    let cases: [Case; 4] = [
        (|c| c.head_dim = 128, "128", "64"),
        (|c| (c.heads, c.kv_heads) = (28, 2), "14", "13"),
        (|c| c.experts_per_token = 9, "9", "8"),
        (|c| c.hidden = 200, "200", "32"),
    ];
    for (change, has, limit) in cases {
        let why = unsupported(&config(change)).expect("there are no kernels for it");
        assert!(why.contains(has) && why.contains(limit), "{why}");
    }
}

#[test]
fn sliding_and_full_layers_share_blocks_of_one_size() {
    let groups = KvGroups::of(&config(|_| {}));
    assert_eq!(groups.windows, [Some(64), None]);
    assert_eq!(groups.layers, [(0, 0), (1, 0), (0, 1), (1, 1)]);
    // 2 layers, 2 heads of 64 numbers, keys and values of 64 positions, f32.
    assert_eq!(groups.block_bytes(&config(|_| {})), 2 * 2 * 64 * 2 * 64 * 4);
}

#[test]
fn the_largest_buffer_of_the_published_shape_is_the_embedding() {
    let config = config(|c| {
        (c.hidden, c.intermediate, c.vocabulary) = (2880, 2880, 201_088);
        (c.heads, c.kv_heads, c.experts, c.experts_per_token) = (64, 8, 32, 4);
        c.layers = c.layers.iter().copied().cycle().take(24).collect();
    });
    let bounds = Bounds { context_length: 4096, sequences_max: 1, batch_tokens_max: 512, blocks: 80 };
    let needs = Needs::of(&config, bounds);
    assert_eq!(needs.largest.0, 201_088 * 2880 * 2);
    // Every byte of the published checkpoint, and what makes whole words of them.
    assert!((13_761_264_768..13_761_265_768).contains(&needs.weights), "{}", needs.weights);
}
