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
fn the_published_shape_is_cut_for_adapters_with_small_buffers() {
    let config = config(|c| {
        (c.hidden, c.intermediate, c.vocabulary) = (2880, 2880, 201_088);
        (c.heads, c.kv_heads, c.experts, c.experts_per_token) = (64, 8, 32, 4);
        c.layers = c.layers.iter().copied().cycle().take(24).collect();
    });
    let bounds = Bounds { context_length: 4096, sequences_max: 1, batch_tokens_max: 512, blocks: 80 };
    let needs = Needs::of(&config, bounds);
    // What the experts of 512 tokens give: everything that is larger can be cut.
    assert_eq!(needs.largest.0, 512 * 4 * 2880 * 4);
    // Some adapters have a gigabyte, others no more than Vulkan asks for.
    let pieces = |extent: Extent, limit| extent.pieces(limit).collect::<Vec<_>>();
    let head = EndWeights::of(&config).head;
    assert_eq!(pieces(head, 1 << 31).len(), 1);
    assert_eq!(pieces(head, 1 << 30), [0..100_544, 100_544..201_088]);
    assert_eq!(pieces(head, 1 << 27).len(), 9);
    let layer = LayerWeights::of(&config);
    for (extent, count) in
        [(layer.up_blocks, 2), (layer.up_scales, 2), (layer.up_bias, 2), (layer.down_bias, 1)]
    {
        assert_eq!(pieces(extent, 200 << 20).len(), count);
        assert_eq!(pieces(extent, u64::MAX).len(), 1);
    }
    // Rows are never cut, and none is left out.
    assert_eq!(pieces(layer.up_scales, 1), (0..32).step_by(2).map(|n| n..n + 2).collect::<Vec<_>>());
    // Every byte of the published checkpoint, and what makes whole words of them.
    assert!((13_761_264_768..13_761_265_768).contains(&needs.weights), "{}", needs.weights);
}
