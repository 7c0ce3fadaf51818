use super::*;

fn shape(windows: &[Option<usize>]) -> KvShape {
    KvShape {
        windows: windows.to_vec(),
        layers: (0..windows.len()).map(|group| (group, 0)).collect(),
        layers_a_group: 1,
        kv_heads: 2,
        head_dim: 3,
    }
}

fn config(kinds: &str) -> GptOssConfig {
    let types: Vec<String> = kinds
        .chars()
        .map(|c| format!("\"{}_attention\"", if c == 's' { "sliding" } else { "full" }))
        .collect();
    let json = format!(
        r#"{{"num_hidden_layers":{},"layer_types":[{}],"hidden_size":96,"intermediate_size":96,"num_local_experts":4,
        "num_experts_per_tok":2,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":32,"sliding_window":7,
        "vocab_size":1024,"quantization_config":{{"quant_method":"mxfp4"}}}}"#,
        types.len(),
        types.join(",")
    );
    GptOssConfig::parse(json.as_bytes()).unwrap()
}

fn key(position: usize, i: usize) -> f32 {
    (position * 10 + i) as f32
}

fn store(kv: &mut Kv, tables: &[Table<'_>], layer: usize, position: usize) {
    kv.provide(tables, position..position + 1);
    let keys: Vec<f32> = (0..6).map(|i| key(position, i)).collect();
    let values: Vec<f32> = keys.iter().map(|k| -k).collect();
    kv.store(layer, tables, position, &keys, &values);
}

#[test]
fn groups_are_of_one_kind_and_one_size() {
    let shape = KvShape::of(&config("sfsf"));
    assert_eq!(shape.windows(), [Some(7), None]);
    assert_eq!(shape.layers, [(0, 0), (1, 0), (0, 1), (1, 1)]);
    assert_eq!(shape.block_bytes(), (2 * 2 * 2 * 64 * 32 * 4) as u64);
    let shape = KvShape::of(&config("sfs"));
    assert_eq!((shape.windows(), shape.layers_a_group), (&[Some(7), None, Some(7)][..], 1));
    let shape = KvShape::of(&config("ff"));
    assert_eq!((shape.windows(), shape.layers_a_group), (&[None][..], 2));
}

#[test]
fn what_is_stored_is_found_piece_by_piece_wherever_its_blocks_are() {
    let mut kv = Kv::new(shape(&[None]), 9);
    let tables = [Table { first: 0, blocks: &[7, 2, 5, 0] }];
    (0..200).for_each(|p| store(&mut kv, &tables, 0, p));
    for range in [0..200, 0..1, 63..65, 64..128, 5..130] {
        for head in 0..2 {
            let (mut keys, mut values) = (Vec::new(), Vec::new());
            for (k, v) in kv.layer(0, &tables).pieces(head, range.clone()) {
                keys.extend_from_slice(k);
                values.extend_from_slice(v);
            }
            let expected: Vec<f32> =
                range.clone().flat_map(|p| (0..3).map(move |i| key(p, head * 3 + i))).collect();
            assert_eq!(keys, expected, "{range:?}");
            assert!(values.iter().zip(&expected).all(|(v, k)| *v == -k));
        }
    }
    assert_eq!(kv.bytes(), 4 * kv.shape().block_bytes(), "only what was used takes memory");
}

#[test]
fn layers_of_a_group_share_a_block_and_nothing_in_it() {
    let mut shape = shape(&[None]);
    (shape.layers, shape.layers_a_group) = (vec![(0, 0), (0, 1)], 2);
    let mut kv = Kv::new(shape, 1);
    let tables = [Table { first: 0, blocks: &[0] }];
    kv.provide(&tables, 0..64);
    for layer in 0..2 {
        for position in 0..64 {
            let keys = [(layer * 1000 + position) as f32; 6];
            kv.store(layer, &tables, position, &keys, &keys);
        }
    }
    for layer in 0..2 {
        let (keys, values) = kv.layer(layer, &tables).pieces(1, 0..64).next().unwrap();
        for position in 0..64 {
            let expected = [(layer * 1000 + position) as f32; 3];
            assert_eq!(
                (&keys[position * 3..][..3], &values[position * 3..][..3]),
                (&expected[..], &expected[..])
            );
        }
    }
}

#[test]
fn a_window_sees_its_own_position_and_those_before() {
    let kv = Kv::new(shape(&[Some(4), None]), 1);
    let tables = [Table { first: 0, blocks: &[] }; 2];
    let sliding = kv.layer(0, &tables);
    assert_eq!(sliding.visible(0), 0..1);
    assert_eq!(sliding.visible(3), 0..4);
    assert_eq!(sliding.visible(4), 1..5);
    assert_eq!(kv.layer(1, &tables).visible(9), 0..10);
}

#[test]
fn a_table_that_begins_later_finds_its_positions() {
    let mut kv = Kv::new(shape(&[Some(100)]), 4);
    let tables = [Table { first: 3, blocks: &[1, 3] }];
    store(&mut kv, &tables, 0, 200);
    store(&mut kv, &tables, 0, 256);
    let keys: Vec<f32> = kv.layer(0, &tables).pieces(0, 200..201).flat_map(|(k, _)| k).copied().collect();
    assert_eq!(keys, [2000.0, 2001.0, 2002.0]);
}
