//! What is to go wrong, where and when: the rules of a model's `config.json` and options.

use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use engine_sdk::{Progress, Status, StatusCode, reason};
use serde::Deserialize;

use crate::act::{self, Act};
use crate::version;

/// A function of the engine, and the moment at which a rule may strike in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Point {
    Estimate,
    /// Before anything of the model is taken.
    Load,
    /// After all of it is taken: what fails here has to give everything back.
    Loaded,
    Tokenize,
    Submit,
    /// A sequence enters the batch; a failure ends that sequence alone.
    Start,
    /// A failure ends every sequence.
    Step,
    Stats,
    Unload,
}

/// One rule. Every condition that is given has to hold.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    pub at: Point,
    #[serde(rename = "do")]
    pub act: Act,
    /// Only at this call of the point in this process, from 1.
    #[serde(default)]
    pub call: Option<u64>,
    /// Only when a sequence that is concerned has this text in its prompt.
    #[serde(default)]
    pub prompt: Option<String>,
    /// In a step: only when that sequence's prompt is complete and it has had so many tokens.
    #[serde(default)]
    pub token: Option<u32>,
    /// Only in these versions of the engine; none: in all.
    #[serde(default)]
    pub versions: Vec<String>,
    #[serde(default)]
    pub times: Option<Times>,
}

/// Strikes so many times, in whatever process: each one is a byte in the file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Times {
    pub file: PathBuf,
    pub at_most: u64,
}

/// A sequence that is concerned: its prompt, and its tokens so far; `None` while the prompt is not complete.
#[derive(Debug, Clone, Copy)]
pub struct Concerned<'a> {
    pub prompt: &'a [u8],
    pub tokens: Option<u32>,
}

#[derive(Debug, Clone, Default)]
pub struct Plan {
    pub faults: Vec<Fault>,
    /// Device ids that leaks and overruns are on.
    pub devices: Vec<String>,
}

impl Plan {
    /// Does what the rules say of this point.
    pub fn strike(
        &self,
        point: Point,
        concerned: &[Concerned<'_>],
        mut progress: Option<&mut Progress<'_>>,
    ) -> Result<(), Status> {
        let call = count(point);
        for fault in &self.faults {
            if fault.at == point && fault.holds(call, concerned) && fault.may_strike()? {
                act::perform(&fault.act, &self.devices, progress.as_deref_mut())?;
            }
        }
        Ok(())
    }

    /// By how much the estimate lies.
    pub fn factor(&self) -> f64 {
        let lies = self.faults.iter().filter(|f| f.at == Point::Estimate && f.in_this_version());
        lies.filter_map(|f| if let Act::Scale { factor } = f.act { Some(factor) } else { None }).product()
    }
}

impl Fault {
    fn holds(&self, call: u64, concerned: &[Concerned<'_>]) -> bool {
        let of_sequence = self.prompt.is_some() || self.token.is_some();
        self.in_this_version()
            && self.call.is_none_or(|wanted| wanted == call)
            && (!of_sequence || concerned.iter().any(|c| self.concerns(c)))
    }

    fn concerns(&self, concerned: &Concerned<'_>) -> bool {
        let text = self.prompt.as_ref().is_none_or(|text| contains(concerned.prompt, text.as_bytes()));
        text && self.token.is_none_or(|wanted| concerned.tokens == Some(wanted))
    }

    fn in_this_version(&self) -> bool {
        self.versions.is_empty() || self.versions.iter().any(|v| v == version::version())
    }

    /// Counts this time, if there is a count.
    fn may_strike(&self) -> Result<bool, Status> {
        let Some(times) = &self.times else { return Ok(true) };
        let unusable = |error: std::io::Error| {
            let message = format!("times.file {} cannot be used: {error}", times.file.display());
            Status::new(StatusCode::Internal, reason::INTERNAL, message)
        };
        let mut file = OpenOptions::new().append(true).create(true).open(&times.file).map_err(unusable)?;
        if file.metadata().map_err(unusable)?.len() >= times.at_most {
            return Ok(false);
        }
        file.write_all(b"x").map_err(unusable)?;
        Ok(true)
    }
}

/// How often this process has come to the point, this time included.
fn count(point: Point) -> u64 {
    const POINTS: usize = Point::Unload as usize + 1;
    static COUNTS: [AtomicU64; POINTS] = [const { AtomicU64::new(0) }; POINTS];
    COUNTS[point as usize].fetch_add(1, Ordering::Relaxed) + 1
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    part.is_empty() || text.windows(part.len()).any(|window| window == part)
}

#[cfg(test)]
mod tests;
