//! Which experts a token goes to, and how much each counts.

/// The `count` largest of the router's logits, largest first, of equals the one with the lower number, each with its
/// weight: the softmax over the chosen ones alone.
///
/// # Panics
/// When there are fewer logits than `count`: the caller's mistake.
pub fn choose_experts(logits: &[f32], count: usize) -> Vec<(usize, f32)> {
    assert!(count >= 1 && count <= logits.len(), "{count} of {} experts", logits.len());
    let mut order: Vec<usize> = (0..logits.len()).collect();
    // A NaN (broken weights) sorts somewhere; it must not panic.
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    order.truncate(count);
    let largest = logits[order[0]];
    let mut chosen: Vec<(usize, f32)> = order.iter().map(|&e| (e, (logits[e] - largest).exp())).collect();
    let sum: f32 = chosen.iter().map(|(_, w)| w).sum();
    for (_, weight) in &mut chosen {
        *weight /= sum;
    }
    chosen
}

#[cfg(test)]
mod tests;
