//! When the tokens of several sequences arrived, and what that says.

/// One list for each sequence, in nanoseconds since 1970, rising.
#[derive(Debug, Default)]
pub struct Arrivals {
    pub sequences: Vec<Vec<u64>>,
}

/// The time in which all sequences ran.
#[derive(Debug, PartialEq, Eq)]
pub struct Span {
    pub nanoseconds: u64,
    /// Of all sequences together, the one at the beginning of the span not counted.
    pub tokens: usize,
}

impl Arrivals {
    /// From the first token of the sequence that began last to the last one of the sequence that ended first; `None` when
    /// there is no such time.
    pub fn common_span(&self) -> Option<Span> {
        let from = self.sequences.iter().map(|s| s.first().copied()).max()??;
        let to = self.sequences.iter().map(|s| s.last().copied()).min()??;
        let tokens = self.sequences.iter().flatten().filter(|at| **at > from && **at <= to).count();
        (to > from && tokens > 0).then(|| Span { nanoseconds: to - from, tokens })
    }

    /// All arrivals but the first `skipped` of each sequence.
    pub fn after(&self, skipped: usize) -> impl Iterator<Item = u64> {
        self.sequences.iter().flat_map(move |s| s.iter().skip(skipped)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_time_counts_in_which_all_run() {
        let arrivals = Arrivals { sequences: vec![vec![10, 20, 30, 40], vec![20, 25, 30, 35, 60]] };
        // From 20 to 40: 30, 40 of the first and 25, 30, 35 of the second.
        assert_eq!(arrivals.common_span(), Some(Span { nanoseconds: 20, tokens: 5 }));
        assert_eq!(arrivals.after(3).collect::<Vec<_>>(), [40, 35, 60]);
    }

    #[test]
    fn sequences_one_after_another_have_no_common_time() {
        assert_eq!(Arrivals { sequences: vec![vec![1, 2], vec![3, 4]] }.common_span(), None);
        assert_eq!(Arrivals { sequences: vec![vec![1, 2], vec![]] }.common_span(), None);
        assert_eq!(Arrivals::default().common_span(), None);
    }
}
