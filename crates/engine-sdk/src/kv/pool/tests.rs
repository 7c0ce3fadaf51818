use super::*;

#[test]
fn free_blocks_go_first_then_the_coldest() {
    let mut pool = BlockPool::new(3);
    let taken: Vec<BlockId> = std::iter::from_fn(|| pool.take()).map(|t| t.block).collect();
    assert_eq!(taken, [BlockId(0), BlockId(1), BlockId(2)]);
    pool.release(BlockId(2), true);
    pool.release(BlockId(0), true);
    pool.release(BlockId(1), false);
    assert_eq!((pool.free(), pool.kept(), pool.used(), pool.available()), (1, 2, 0, 3));
    assert_eq!(pool.take(), Some(Taken { block: BlockId(1), was_kept: false }));
    assert_eq!(pool.take(), Some(Taken { block: BlockId(2), was_kept: true }));
    assert_eq!(pool.take(), Some(Taken { block: BlockId(0), was_kept: true }));
    assert_eq!(pool.take(), None);
}

#[test]
fn a_shared_block_stays_until_its_last_user_goes() {
    let mut pool = BlockPool::new(1);
    let block = pool.take().unwrap().block;
    pool.share(block);
    pool.release(block, true);
    assert_eq!(pool.take(), None);
    pool.release(block, true);
    pool.share(block);
    assert_eq!((pool.kept(), pool.used()), (0, 1));
    pool.release(block, true);
    assert_eq!(pool.take().map(|t| t.block), Some(block));
}

#[test]
fn what_is_used_again_is_warm_again() {
    let mut pool = BlockPool::new(2);
    let [a, b] = [pool.take().unwrap().block, pool.take().unwrap().block];
    pool.release(a, true);
    pool.release(b, true);
    pool.share(a);
    pool.release(a, true);
    assert_eq!(pool.take().map(|t| t.block), Some(b));
}

#[test]
fn kept_blocks_can_be_dropped() {
    let mut pool = BlockPool::new(2);
    let [a, _] = [pool.take().unwrap().block, pool.take().unwrap().block];
    pool.release(a, true);
    pool.drop_kept();
    assert_eq!((pool.free(), pool.kept(), pool.used()), (1, 0, 1));
    assert_eq!(pool.take(), Some(Taken { block: a, was_kept: false }));
}

#[test]
#[should_panic(expected = "is let go and nobody has it")]
fn a_block_is_let_go_once_by_each_user() {
    let mut pool = BlockPool::new(1);
    let block = pool.take().unwrap().block;
    pool.release(block, true);
    pool.release(block, true);
}

#[test]
#[should_panic(expected = "is free and shared")]
fn a_free_block_is_not_shared() {
    BlockPool::new(1).share(BlockId(0));
}
