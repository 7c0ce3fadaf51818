use super::*;

fn layer(window: Option<usize>) -> LayerKv {
    LayerKv { blocks: VecDeque::new(), first_block: 0, window, kv_heads: 2, head_dim: 3 }
}

fn key(position: usize, i: usize) -> f32 {
    (position * 10 + i) as f32
}

fn store(layer: &mut LayerKv, position: usize) {
    layer.grow(position + 1);
    let keys: Vec<f32> = (0..6).map(|i| key(position, i)).collect();
    let values: Vec<f32> = keys.iter().map(|k| -k).collect();
    layer.store(position, &keys, &values);
}

#[test]
fn what_is_stored_is_found_piece_by_piece() {
    let mut layer = layer(None);
    (0..200).for_each(|p| store(&mut layer, p));
    for range in [0..200, 0..1, 63..65, 64..128, 5..130] {
        for head in 0..2 {
            let (mut keys, mut values) = (Vec::new(), Vec::new());
            for (k, v) in layer.pieces(head, range.clone()) {
                keys.extend_from_slice(k);
                values.extend_from_slice(v);
            }
            let expected: Vec<f32> =
                range.clone().flat_map(|p| (0..3).map(move |i| key(p, head * 3 + i))).collect();
            assert_eq!(keys, expected, "{range:?}");
            assert!(values.iter().zip(&expected).all(|(v, k)| *v == -k));
        }
    }
}

#[test]
fn a_window_sees_its_own_position_and_those_before() {
    let sliding = layer(Some(4));
    assert_eq!(sliding.visible(0), 0..1);
    assert_eq!(sliding.visible(3), 0..4);
    assert_eq!(sliding.visible(4), 1..5);
    assert_eq!(layer(None).visible(9), 0..10);
}

#[test]
fn a_window_keeps_a_bounded_number_of_blocks() {
    let mut layer = layer(Some(100));
    for position in 0..1000 {
        store(&mut layer, position);
        let seen = layer.visible(position);
        assert_eq!(layer.pieces(0, seen.clone()).map(|(k, _)| k.len() / 3).sum::<usize>(), seen.len());
        layer.trim(position + 1);
        assert!(layer.blocks.len() <= 100usize.div_ceil(BLOCK_TOKENS) + 1);
    }
    assert!(layer.first_block >= (1000 - 100) / BLOCK_TOKENS - 1);
}
