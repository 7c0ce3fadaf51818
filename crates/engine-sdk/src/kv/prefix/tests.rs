use super::*;

#[test]
fn a_hash_tells_salt_text_and_place() {
    let root = BlockHash::root(0);
    let first = root.then(&[1, 2]);
    let others = [
        BlockHash::root(1).then(&[1, 2]),
        root.then(&[2, 1]),
        root.then(&[1]).then(&[2]),
        root.then(&[1, 2]).then(&[1, 2]),
        root.then(&[1, 258]),
    ];
    assert!(others.iter().all(|other| *other != first));
    assert_eq!(first, BlockHash::root(0).then(&[1, 2]));
}

#[test]
fn a_chain_grows_with_its_tokens() {
    let tokens: Vec<u32> = (0..10).collect();
    let mut grown = Chain::new(3);
    assert_eq!(grown.up_to(5, &tokens[..3], 4).len(), 0, "no whole block yet");
    let first = grown.up_to(1, &tokens[..4], 4).to_vec();
    let both = grown.up_to(2, &tokens, 4).to_vec();
    assert_eq!(both[..1], first);
    assert_eq!(Chain::new(3).up_to(9, &tokens, 4), both, "at once or bit by bit");
    assert_eq!(grown.up_to(1, &tokens, 4), first, "asked for less");
}

#[test]
fn the_first_block_with_a_text_stays() {
    let hash = BlockHash::root(0).then(&[1]);
    let mut index = PrefixIndex::default();
    index.insert(0, hash, BlockId(4));
    index.insert(0, hash, BlockId(5));
    index.insert(1, hash, BlockId(6));
    assert_eq!((index.find(0, hash), index.find(1, hash)), (Some(BlockId(4)), Some(BlockId(6))));
    assert!(!index.contains(BlockId(5)));
    index.forget(BlockId(5));
    index.forget(BlockId(4));
    assert_eq!((index.find(0, hash), index.find(1, hash)), (None, Some(BlockId(6))));
    index.clear();
    assert!(!index.contains(BlockId(6)));
}
