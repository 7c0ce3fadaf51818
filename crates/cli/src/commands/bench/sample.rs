//! What was seen of one request.

use std::time::Duration;

/// Times count from the beginning of the case.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sample {
    /// When it was to be sent: in a closed loop when it was.
    pub due: Duration,
    /// When each part of the answer's text arrived; usually one token each.
    pub parts: Vec<Duration>,
    /// The last byte, or the failure.
    pub ended: Duration,
    /// As the server counts them, where it does.
    pub prompt_tokens: Option<u64>,
    pub completion_tokens: Option<u64>,
    /// Why it is not a whole answer.
    pub error: Option<String>,
}

impl Sample {
    /// Tokens of the answer; parts where the server counts none.
    pub fn tokens(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        self.completion_tokens.map_or(self.parts.len() as f64, |tokens| tokens as f64)
    }

    /// From when it was due to the first part.
    pub fn to_first(&self) -> Option<Duration> {
        Some(self.parts.first()?.saturating_sub(self.due))
    }

    /// Between parts that follow each other.
    pub fn gaps(&self) -> impl Iterator<Item = Duration> {
        self.parts.windows(2).map(|pair| pair[1].saturating_sub(pair[0]))
    }

    /// From when it was due to its end.
    pub fn whole(&self) -> Duration {
        self.ended.saturating_sub(self.due)
    }
}

/// All requests of a case.
#[derive(Debug, Default)]
pub struct Taken {
    pub samples: Vec<Sample>,
    /// How long requests were sent.
    pub length: Duration,
}
