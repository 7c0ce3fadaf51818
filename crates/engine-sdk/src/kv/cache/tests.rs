use super::*;
use crate::kv::{KvGroup, KvMemory, prefix::Chain};

const BLOCK: u32 = 4;

fn cache(blocks: u32, windows: &[Option<u32>]) -> KvCache {
    let groups = windows.iter().map(|&window| KvGroup { window }).collect();
    KvCache::new(KvLayout { block_tokens: BLOCK, block_bytes: 1, blocks, groups, memory: KvMemory::Ram })
}

fn hashes(tokens: u32) -> Vec<BlockHash> {
    let tokens: Vec<u32> = (0..tokens).collect();
    Chain::new(0).up_to(usize::MAX, &tokens, BLOCK).to_vec()
}

/// Reads `tokens` positions one by one.
fn read(cache: &mut KvCache, kv: &mut SequenceKv, from: u32, to: u32) {
    let chain = hashes(to);
    for tokens in from + 1..=to {
        assert!(cache.grow(kv, tokens));
        cache.commit(kv, &chain, tokens);
    }
}

fn numbers(kv: &SequenceKv) -> Vec<(u32, usize)> {
    kv.tables().map(|t| (t.first, t.blocks.len())).collect()
}

#[test]
fn a_window_moves_and_lets_go_of_what_is_behind_it() {
    let mut cache = cache(40, &[None, Some(6)]);
    let mut kv = cache.adopt(&[], 0);
    read(&mut cache, &mut kv, 0, 30);
    // The row at 30 sees 25 to 30: blocks 6 and 7.
    assert_eq!(numbers(&kv), [(0, 8), (6, 2)]);
    assert_eq!((cache.pool().used(), cache.pool().kept()), (10, 6), "what was let go can still be found");
    cache.release(kv);
    assert_eq!(cache.pool().available(), 40);
}

#[test]
fn a_prefix_needs_all_full_blocks_and_the_last_window() {
    let mut cache = cache(40, &[None, Some(6)]);
    let mut kv = cache.adopt(&[], 0);
    read(&mut cache, &mut kv, 0, 30);
    cache.release(kv);
    let chain = hashes(30);
    assert_eq!(cache.prefix(&chain), 7);
    let kv = cache.adopt(&chain, 7);
    assert_eq!(numbers(&kv), [(0, 7), (5, 2)], "the row at 28 sees from 23 on");
    cache.release(kv);
    // Without the window's block 5, the prefix of 7 and that of 6 are lost, though all full blocks are there.
    let lost = cache.prefixes.find(1, chain[5]).unwrap();
    cache.prefixes.forget(lost);
    assert_eq!(cache.prefix(&chain), 5);
    let lost = cache.prefixes.find(0, chain[2]).unwrap();
    cache.prefixes.forget(lost);
    assert_eq!(cache.prefix(&chain), 2);
}

#[test]
fn growing_is_all_or_nothing() {
    let mut cache = cache(3, &[None, None]);
    let mut kv = cache.adopt(&[], 0);
    assert!(cache.grow(&mut kv, 4));
    assert!(!cache.grow(&mut kv, 5), "two are missing, one is there");
    assert_eq!((numbers(&kv), cache.pool().available()), (vec![(0, 1), (0, 1)], 1));
    cache.release(kv);
}

#[test]
fn the_end_of_a_sequence_is_colder_than_its_beginning() {
    let mut cache = cache(6, &[None]);
    let mut kv = cache.adopt(&[], 0);
    read(&mut cache, &mut kv, 0, 24);
    cache.release(kv);
    let mut other = cache.adopt(&[], 0);
    assert!(cache.grow(&mut other, 8));
    assert_eq!(cache.prefix(&hashes(24)), 4, "the last two were taken");
    assert_eq!(cache.evicted(), 2);
    cache.release(other);
    assert_eq!(cache.pool().free(), 2, "what was never read is not kept");
}

#[test]
fn nothing_is_found_of_what_is_not_trusted() {
    let mut cache = cache(6, &[None]);
    let mut kv = cache.adopt(&[], 0);
    read(&mut cache, &mut kv, 0, 8);
    cache.forget();
    assert_eq!(cache.prefix(&hashes(8)), 0);
    cache.release(kv);
    assert_eq!((cache.pool().free(), cache.pool().kept()), (6, 0));
}
