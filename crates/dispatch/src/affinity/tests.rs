use super::*;

fn best(affinity: u64, nodes: &[(&'static str, u32)]) -> &'static str {
    let ranked = |(name, weight): &(&'static str, u32)| (rank(affinity, name, *weight), *name);
    nodes.iter().map(ranked).max_by(|a, b| a.0.total_cmp(&b.0)).unwrap().1
}

#[test]
fn the_beginning_decides_and_nothing_after_it() {
    let text = |tail: &str| "x".repeat(PREFIX_BYTES) + tail;
    assert_eq!(of_text(7, &text("one")), of_text(7, &text("another")));
    assert_ne!(of_text(7, &text("")), of_text(7, &("y".to_owned() + &text(""))));
    assert_ne!(of_text(7, &text("")), of_text(8, &text("")), "callers do not share caches");
    assert_eq!(of_text(7, &"x".repeat(PREFIX_BYTES - 1)), 0);
    let ids: Vec<u32> = (0..1000).collect();
    assert_eq!(of_tokens(7, &ids), of_tokens(7, &ids[..500]));
    assert_eq!(of_tokens(7, &ids[..100]), 0);
}

#[test]
fn a_cut_inside_of_a_character_harms_nobody() {
    let text = "é".repeat(PREFIX_BYTES);
    assert_ne!(of_text(1, &format!("x{text}")), 0);
}

#[test]
fn beginnings_are_spread_in_proportion_to_the_weights() {
    let nodes = [("node-a", 1), ("node-b", 1), ("node-c", 2)];
    let mut counts = std::collections::BTreeMap::new();
    for affinity in 1..=4000 {
        *counts.entry(best(affinity, &nodes)).or_insert(0u32) += 1;
    }
    assert!((850..1150).contains(&counts["node-a"]), "{counts:?}");
    assert!((850..1150).contains(&counts["node-b"]), "{counts:?}");
    assert!((1800..2200).contains(&counts["node-c"]), "{counts:?}");
}

#[test]
fn a_node_that_goes_moves_only_its_own_share() {
    let all = [("a", 4), ("b", 4), ("c", 4)];
    for affinity in 1..=500 {
        let before = best(affinity, &all);
        if before != "c" {
            assert_eq!(best(affinity, &all[..2]), before);
        }
    }
}
