//! The conformance suite: what the header promises, as named cases run through a real worker process.
//!
//! Every engine passes all of them, with any model. A case starts workers of its own, so that none disturbs another; it
//! fails with words for the author of the engine. Each has a defect planted in a copy of `echo-c` that it must catch
//! (`tests/defects.rs`).

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

mod batch;
mod bench;
mod embed;
mod generate;
mod life;
mod refuse;
mod tokens;

pub use bench::{Bench, sampling, submit};
pub use embed::{embed, vector};

/// What is tested.
#[derive(Debug, Clone)]
pub struct Subject {
    /// The program that is a worker, and how it is told to be one.
    pub worker: PathBuf,
    pub worker_arguments: Vec<String>,
    pub engine_dir: PathBuf,
    pub model_dir: PathBuf,
}

impl Subject {
    /// With the worker of [`crate::build::worker_binary`].
    pub fn new(engine_dir: impl Into<PathBuf>, model_dir: impl Into<PathBuf>) -> Subject {
        Subject {
            worker: crate::build::worker_binary(),
            worker_arguments: Vec::new(),
            engine_dir: engine_dir.into(),
            model_dir: model_dir.into(),
        }
    }

    fn check_paths(&self) -> Result<()> {
        for (what, path) in [("engine", &self.engine_dir), ("model", &self.model_dir)] {
            if !Path::is_dir(path) {
                bail!("the {what} folder {} is not there", path.display());
            }
        }
        Ok(())
    }
}

/// One promise of the header.
pub struct Case {
    pub name: &'static str,
    /// What must hold, in a sentence.
    pub promise: &'static str,
    run: fn(&Subject) -> Result<Outcome>,
}

/// How a case that did not fail ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Passed,
    /// This model or engine has no occasion for it; why.
    NotApplicable(String),
}

#[derive(Debug)]
pub struct Verdict {
    pub name: &'static str,
    pub promise: &'static str,
    pub result: Result<Outcome>,
}

/// All cases, in an order in which the first failure is the most telling.
pub fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    all.extend(life::CASES);
    all.extend(tokens::CASES);
    all.extend(generate::CASES);
    all.extend(batch::CASES);
    all.extend(refuse::CASES);
    all.extend(embed::CASES);
    all
}

/// Runs one case.
pub fn run_case(case: &Case, subject: &Subject) -> Verdict {
    let result = subject.check_paths().and_then(|()| (case.run)(subject));
    Verdict { name: case.name, promise: case.promise, result }
}

/// Runs the case of this name.
///
/// # Errors
/// When there is none; the case's own failure is in the verdict.
pub fn run_named(name: &str, subject: &Subject) -> Result<Verdict> {
    let case = cases().into_iter().find(|c| c.name == name).with_context(|| format!("no case {name}"))?;
    Ok(run_case(&case, subject))
}

/// Runs all cases.
///
/// # Panics
/// When one fails, with the names and words of all that did.
pub fn assert_conforms(subject: &Subject) {
    let failures: Vec<String> = cases()
        .iter()
        .map(|case| run_case(case, subject))
        .filter_map(|v| v.result.err().map(|error| format!("{} ({}): {error:#}", v.name, v.promise)))
        .collect();
    assert!(failures.is_empty(), "{} fails:\n{}", subject.engine_dir.display(), failures.join("\n"));
}
