//! Ends a text before the first stop string, and holds back only what could become one.

use std::collections::VecDeque;
use std::ops::Range;

/// Looks for stop strings in a text that comes in pieces.
#[derive(Debug, Default)]
pub struct StopScanner {
    stops: Vec<String>,
    /// Text that is not released: it may be the beginning of a stop string.
    held: String,
    /// Bytes released so far.
    released: usize,
    /// (offset of the first byte, token) of what is held.
    tokens: VecDeque<(usize, u64)>,
    is_stopped: bool,
}

/// What is released.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scanned {
    pub text: String,
    /// The tokens whose text starts in it, as [`crate::Delta::tokens`] has them. Tokens that the stop string cut off
    /// are in no piece.
    pub tokens: Range<u64>,
    /// A stop string was found: nothing follows.
    pub is_stopped: bool,
}

impl StopScanner {
    /// Empty stop strings are never found.
    pub fn new(stops: Vec<String>) -> StopScanner {
        StopScanner { stops: stops.into_iter().filter(|s| !s.is_empty()).collect(), ..StopScanner::default() }
    }

    /// The next piece of text and the tokens that start in it.
    pub fn push(&mut self, text: &str, tokens: Range<u64>) -> Scanned {
        if self.is_stopped {
            return Scanned { text: String::new(), tokens: 0..0, is_stopped: true };
        }
        let at = self.released + self.held.len();
        // Only where several tokens make one character are there more than one: they start together.
        self.tokens.extend(tokens.map(|token| (at, token)));
        self.held.push_str(text);
        let found = self.stops.iter().filter_map(|stop| self.held.find(stop.as_str())).min();
        if let Some(at) = found {
            self.is_stopped = true;
            return self.release(at);
        }
        self.release(self.held.len() - self.possible_stop())
    }

    /// The end of the text: what was held back is no stop string.
    pub fn finish(&mut self) -> Scanned {
        if self.is_stopped {
            return Scanned { text: String::new(), tokens: 0..0, is_stopped: true };
        }
        self.release(self.held.len())
    }

    /// Length of the longest end of the held text that begins a stop string.
    fn possible_stop(&self) -> usize {
        let longest = self.stops.iter().map(String::len).max().unwrap_or(0);
        let from = self.held.len().saturating_sub(longest.saturating_sub(1));
        (from..self.held.len())
            .filter(|&at| self.held.is_char_boundary(at))
            .find(|&at| self.stops.iter().any(|stop| stop.starts_with(&self.held[at..])))
            .map_or(0, |at| self.held.len() - at)
    }

    fn release(&mut self, bytes: usize) -> Scanned {
        let text: String = self.held.drain(..bytes).collect();
        self.released += bytes;
        let mut tokens = 0..0;
        while let Some(&(at, token)) = self.tokens.front()
            && at < self.released
        {
            if tokens.is_empty() {
                tokens = token..token;
            }
            tokens.end = token + 1;
            self.tokens.pop_front();
        }
        Scanned { text, tokens, is_stopped: self.is_stopped }
    }
}

#[cfg(test)]
mod tests;
