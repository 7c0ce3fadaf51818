//! Medians and percentiles, by rank: every figure that is reported was measured.

/// The smallest value that at least `share` (0 to 1) of all values do not exceed. 0 of no values.
pub fn percentile(values: &mut [f64], share: f64) -> f64 {
    if values.is_empty() {
        return 0.0;
    }
    values.sort_unstable_by(f64::total_cmp);
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rank is far below 2^52 and not negative"
    )]
    let rank = (share.clamp(0.0, 1.0) * values.len() as f64).ceil() as usize;
    values[rank.clamp(1, values.len()) - 1]
}

pub fn median(values: &mut [f64]) -> f64 {
    percentile(values, 0.5)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(values: &[f64], share: f64, expected: f64) {
        assert_eq!(percentile(&mut values.to_vec(), share), expected, "{values:?} {share}");
    }

    #[test]
    fn ranks_are_the_nearest_above() {
        check(&[], 0.5, 0.0);
        check(&[7.0], 0.0, 7.0);
        check(&[7.0], 1.0, 7.0);
        check(&[4.0, 1.0, 3.0, 2.0], 0.5, 2.0);
        check(&[4.0, 1.0, 3.0, 2.0], 0.51, 3.0);
        let hundred: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        check(&hundred, 0.5, 50.0);
        check(&hundred, 0.99, 99.0);
        check(&hundred, 1.0, 100.0);
        check(&hundred, 2.0, 100.0);
    }
}
