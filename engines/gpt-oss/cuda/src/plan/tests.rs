use super::*;

fn published() -> GptOssConfig {
    let config = r#"{"model_type": "gpt_oss", "num_hidden_layers": 24, "hidden_size": 2880, "intermediate_size": 2880,
        "num_local_experts": 32, "num_experts_per_tok": 4, "num_attention_heads": 64, "num_key_value_heads": 8,
        "head_dim": 64, "vocab_size": 201088, "sliding_window": 128, "eos_token_id": 200002,
        "hidden_act": "silu", "rope_theta": 150000, "attention_bias": true, "quantization_config": {"quant_method": "mxfp4"}}"#;
    GptOssConfig::parse(config.as_bytes()).expect("the published fields")
}

fn bounds() -> Bounds {
    Bounds { context_length: 32_768, sequences_max: 100, batch_tokens_max: 512, blocks: 1000 }
}

#[test]
fn the_published_weights_take_their_own_size() {
    let needs = Needs::of(&published(), bounds(), 132);
    let published = 13_761_264_768.0;
    let more = needs.weights as f64 / published - 1.0;
    assert!((0.0..0.02).contains(&more), "{needs:?}: {more}");
    assert_eq!(needs.total(), needs.weights + needs.kv + needs.workspace);
}

#[test]
fn layers_of_two_kinds_are_two_groups() {
    let groups = KvGroups::of(&published());
    assert_eq!(groups.windows, [Some(128), None]);
    assert_eq!((groups.layers_a_group, groups.layers[0], groups.layers[3]), (12, (0, 0), (1, 1)));
    // 12 layers of 8 heads with 64 keys and values of 64 bf16 numbers.
    assert_eq!(groups.block_bytes(&published()), 12 * 8 * 2 * 64 * 64 * 2);
}

#[test]
fn places_do_not_overlap() {
    let workspace = Workspace::of(&published(), bounds(), 132);
    assert!(workspace.logits + 4 * 128 * 201_088 <= workspace.next_tokens, "rows of the largest class");
    assert!(workspace.bytes.is_multiple_of(4));
    assert_eq!(bounds().classes().collect::<Vec<_>>(), [1, 2, 4, 8, 16, 32, 64, 128]);
}

/// Of single tokens beside a prompt there is any number, on any GPU.
#[test]
fn parts_of_attention_have_room_however_many_tokens_attend() {
    let config = published();
    for processors in 1..=256 {
        for sequences_max in [1, 3, 16, 32, 100] {
            let bounds = Bounds { sequences_max, ..bounds() };
            let workspace = Workspace::of(&config, bounds, processors);
            for entries in 1..=sequences_max {
                let parts = entries * attention_decode::parts(entries, config.kv_heads, processors);
                assert!(parts <= workspace.parts, "{processors} processors, {entries} of {sequences_max}");
            }
            let values = workspace.part_sums - workspace.part_values;
            assert!(values as usize >= 4 * workspace.parts * config.heads * HEAD_DIM);
        }
    }
}

#[test]
fn what_has_no_kernels_is_said() {
    assert_eq!(unsupported(&published()), None);
    let narrow = GptOssConfig { head_dim: 32, ..published() };
    assert!(unsupported(&narrow).is_some_and(|why| why.contains("32")));
}
