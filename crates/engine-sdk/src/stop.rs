//! Finds stop strings in the text of an answer, across the borders of tokens and of characters.

/// The text is the bytes of all tokens that are not control tokens, one after the other.
#[derive(Debug, Clone, Default)]
pub(crate) struct StopMatcher {
    stops: Vec<Vec<u8>>,
    /// The end of the text so far: as much as a stop string that is not complete yet can reach back.
    tail: Vec<u8>,
    reach: usize,
}

impl StopMatcher {
    /// No string of `stops` is empty.
    pub fn new(stops: Vec<Vec<u8>>) -> StopMatcher {
        let reach = stops.iter().map(Vec::len).max().unwrap_or(0).saturating_sub(1);
        StopMatcher { stops, tail: Vec::new(), reach }
    }

    /// Whether these next bytes of the text complete a stop string.
    pub fn push(&mut self, bytes: &[u8]) -> bool {
        if self.stops.is_empty() {
            return false;
        }
        let before = self.tail.len();
        self.tail.extend_from_slice(bytes);
        // Only what ends in the new bytes: what ended before was found before.
        let found = self.stops.iter().any(|stop| {
            let from = (before + 1).saturating_sub(stop.len());
            self.tail[from..].windows(stop.len()).any(|window| window == stop)
        });
        let keep = self.tail.len().saturating_sub(self.reach);
        self.tail.drain(..keep);
        found
    }
}

#[cfg(test)]
mod tests;
