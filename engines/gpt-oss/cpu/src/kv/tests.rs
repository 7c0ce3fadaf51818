use super::*;
use crate::math::to_bf16;
use crate::pool::Pool;

fn shape(windows: &[Option<usize>]) -> KvShape {
    KvShape {
        windows: windows.to_vec(),
        layers: (0..windows.len()).map(|group| (group, 0)).collect(),
        layers_a_group: 1,
        kv_heads: 2,
        head_dim: 4,
        format: KvFormat::F32,
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

/// A row of one sequence after the other.
fn stored<'a>(tables: &'a [Table<'a>], positions: std::ops::Range<usize>) -> [StoredRows<'a>; 1] {
    [StoredRows { tables, rows: 0..positions.len(), position: positions.start }]
}

fn store(kv: &mut Kv, tables: &[Table<'_>], layer: usize, positions: std::ops::Range<usize>) {
    kv.provide(tables, positions.clone());
    let keys: Vec<f32> = positions.clone().flat_map(|p| (0..8).map(move |i| key(p, i) / 2.0)).collect();
    let values: Vec<f32> = keys.iter().map(|k| -2.0 * k).collect();
    let pool = Pool::new(3).unwrap();
    kv.store(
        &pool,
        layer,
        &stored(tables, positions),
        RowParts::all(&keys, 8),
        RowParts::all(&values, 8),
        |_, keys| {
            keys.iter_mut().for_each(|k| *k *= 2.0);
        },
    );
}

#[test]
fn groups_are_of_one_kind_and_one_size() {
    let shape = KvShape::of(&config("sfsf"), KvFormat::F32);
    assert_eq!(shape.windows(), [Some(7), None]);
    assert_eq!(shape.layers, [(0, 0), (1, 0), (0, 1), (1, 1)]);
    assert_eq!(shape.block_bytes(), (2 * 2 * 2 * 64 * 32 * 4) as u64);
    assert_eq!(KvShape::of(&config("sfsf"), KvFormat::Bf16).block_bytes(), (2 * 2 * 2 * 64 * 32 * 2) as u64);
    let shape = KvShape::of(&config("sfs"), KvFormat::F32);
    assert_eq!((shape.windows(), shape.layers_a_group), (&[Some(7), None, Some(7)][..], 1));
    let shape = KvShape::of(&config("ff"), KvFormat::F32);
    assert_eq!((shape.windows(), shape.layers_a_group), (&[None][..], 2));
}

fn check_stored(format: KvFormat, chunk: usize) {
    let mut kv = Kv::new(KvShape { format, ..shape(&[None]) }, 9);
    let tables = [Table { first: 0, blocks: &[7, 2, 5, 0] }];
    for start in (0..200).step_by(chunk) {
        store(&mut kv, &tables, 0, start..(start + chunk).min(200));
    }
    let kept = |x: f32| match format {
        KvFormat::F32 => x,
        KvFormat::Bf16 => f32::from_bits(u32::from(to_bf16(x)) << 16),
    };
    for position in 0..200 {
        for head in 0..2 {
            let (keys, values) = kv.layer(0, &tables).at(head, position);
            let expected: Vec<f32> = (0..4).map(|i| key(position, head * 4 + i)).collect();
            assert_eq!(keys, expected.iter().map(|k| kept(*k)).collect::<Vec<_>>(), "{format:?} {position}");
            assert_eq!(
                values,
                expected.iter().map(|k| kept(-*k)).collect::<Vec<_>>(),
                "{format:?} {position}"
            );
        }
    }
    assert_eq!(kv.bytes(), 4 * kv.shape().block_bytes(), "only what was used takes memory");
}

#[test]
fn what_is_stored_is_found_wherever_its_blocks_are() {
    for format in [KvFormat::F32, KvFormat::Bf16] {
        for chunk in [1, 7, 64, 200] {
            check_stored(format, chunk);
        }
    }
}

#[test]
fn a_place_beside_the_last_value_is_a_number() {
    let mut kv = Kv::new(KvShape { format: KvFormat::Bf16, ..shape(&[None]) }, 1);
    let tables = [Table { first: 0, blocks: &[0] }];
    kv.provide(&tables, 0..1);
    kv.blocks[0].as_mut().unwrap().fill(u32::MAX);
    store(&mut kv, &tables, 0, 0..3);
    assert!(kv.layer(0, &tables).at(0, 3).1.iter().all(|v| *v == 0.0));
}

#[test]
#[should_panic(expected = "two sequences write to one block")]
fn two_sequences_do_not_write_to_one_block() {
    let mut kv = Kv::new(shape(&[None]), 1);
    let tables = [Table { first: 0, blocks: &[0] }];
    kv.provide(&tables, 0..1);
    let mut spans = [stored(&tables, 0..1), stored(&tables, 1..2)].concat();
    spans[1].rows = 1..2;
    kv.store(
        &Pool::new(1).unwrap(),
        0,
        &spans,
        RowParts::all(&[0.0; 16], 8),
        RowParts::all(&[0.0; 16], 8),
        |_, _| {},
    );
}

#[test]
fn layers_of_a_group_share_a_block_and_nothing_in_it() {
    let mut shape = shape(&[None]);
    (shape.layers, shape.layers_a_group) = (vec![(0, 0), (0, 1)], 2);
    let mut kv = Kv::new(shape, 1);
    let tables = [Table { first: 0, blocks: &[0] }];
    kv.provide(&tables, 0..64);
    let pool = Pool::new(1).unwrap();
    for layer in 0..2 {
        let keys: Vec<f32> = (0..64 * 8).map(|i| (layer * 1000 + i / 8) as f32).collect();
        kv.store(
            &pool,
            layer,
            &stored(&tables, 0..64),
            RowParts::all(&keys, 8),
            RowParts::all(&keys, 8),
            |_, _| {},
        );
    }
    for layer in 0..2 {
        for position in 0..64 {
            let expected = vec![(layer * 1000 + position) as f32; 4];
            assert_eq!(kv.layer(layer, &tables).at(1, position), (expected.clone(), expected));
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
    store(&mut kv, &tables, 0, 200..201);
    store(&mut kv, &tables, 0, 256..257);
    assert_eq!(kv.layer(0, &tables).at(0, 200).0, [2000.0, 2001.0, 2002.0, 2003.0]);
}
