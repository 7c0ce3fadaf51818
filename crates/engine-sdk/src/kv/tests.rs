use super::*;

fn group(window: Option<u32>) -> KvGroup {
    KvGroup { window }
}

fn layout(block_tokens: u32, blocks: u32, windows: &[Option<u32>]) -> KvLayout {
    let groups = windows.iter().map(|&w| group(w)).collect();
    KvLayout { block_tokens, block_bytes: 10, blocks, groups, memory: KvMemory::Vram }
}

#[test]
fn a_window_begins_at_the_first_position_that_is_seen() {
    assert_eq!(group(None).first_seen(1000, 16), 0);
    // Position 20 sees 17 to 20; position 19 sees 16.
    assert_eq!((group(Some(4)).first_seen(19, 16), group(Some(4)).first_seen(20, 17)), (1, 1));
    assert_eq!(group(Some(4)).first_seen(18, 16), 0);
    assert_eq!(group(Some(1)).first_seen(16, 16), 1);
}

#[test]
fn what_a_sequence_holds_bounds_every_place_of_its_window() {
    for (window, block) in [(1, 1), (1, 4), (4, 4), (5, 4), (9, 4), (128, 64), (127, 64), (64, 64)] {
        let group = group(Some(window));
        for tokens in 1..600 {
            let held = u64::from(tokens / block + 1 - group.first_seen(tokens - 1, block));
            let all = u64::from((tokens + 1).div_ceil(block));
            assert!(group.blocks_held(tokens + 1, block) >= held.min(all), "{window} {block} {tokens}");
            assert!(group.blocks_least(tokens, block) <= group.blocks_held(tokens, block));
        }
    }
}

#[test]
fn what_does_not_fit_says_both_numbers_in_bytes() {
    let status = layout(4, 3, &[None]).full(20);
    assert_eq!((status.code, &*status.reason), (StatusCode::OomVram, "kv_full"));
    assert_eq!((status.needed, status.available), (50, 30));
}

#[test]
fn layouts_that_cannot_be_are_refused() {
    assert!(layout(4, 2, &[None, Some(3)]).check().is_ok());
    for bad in
        [layout(0, 9, &[None]), layout(4, 9, &[]), layout(4, 9, &[Some(0)]), layout(4, 1, &[None, None])]
    {
        assert_eq!(bad.check().unwrap_err().code, StatusCode::Internal, "{bad:?}");
    }
}
