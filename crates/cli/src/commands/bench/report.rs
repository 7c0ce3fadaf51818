//! What a run found, as a table and as JSON.

use comfy_table::{CellAlignment, Table};
use serde::Serialize;

use super::BenchArguments;
use super::arguments::Api;
use super::summary::{Percentiles, Summary};
use super::target::Target;
use crate::output;

#[derive(Debug, Serialize)]
pub struct Report {
    pub url: String,
    pub model: String,
    pub api: Api,
    pub max_tokens: u32,
    pub seconds: f64,
    pub seed: u64,
    pub cases: Vec<Summary>,
}

impl Report {
    pub fn new(target: &Target, model: &str, arguments: &BenchArguments) -> Report {
        Report {
            url: target.url().to_owned(),
            model: model.to_owned(),
            api: arguments.api,
            max_tokens: arguments.max_tokens,
            seconds: arguments.seconds,
            seed: arguments.seed,
            cases: Vec::new(),
        }
    }

    /// Times are milliseconds: median / 90 % / 99 %.
    pub fn table(&self) -> Table {
        let mut table = output::table(&[
            "load",
            "prompt",
            "answers",
            "errors",
            "req/s",
            "tok/s",
            "first token ms",
            "between tokens ms",
            "whole ms",
        ]);
        for case in &self.cases {
            let prompt = case.prompt_tokens.map_or_else(
                || format!("{} words", case.case.prompt_words),
                |tokens| format!("{tokens:.0} tok"),
            );
            table.add_row([
                case.case.load.to_string(),
                prompt,
                case.answered.to_string(),
                case.failed.to_string(),
                format!("{:.1}", case.requests_per_second),
                format!("{:.1}", case.tokens_per_second),
                three(&case.first_token_ms),
                three(&case.between_tokens_ms),
                three(&case.whole_ms),
            ]);
        }
        for column in table.column_iter_mut().skip(2) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        table
    }

    /// Each kind once, with how often it came.
    pub fn errors(&self) -> Vec<String> {
        let lines = self.cases.iter().flat_map(|case| {
            case.errors.iter().map(|(error, count)| format!("{}: {count} × {error}", case.case))
        });
        lines.collect()
    }
}

fn three(p: &Percentiles) -> String {
    match (p.p50, p.p90, p.p99) {
        (Some(p50), Some(p90), Some(p99)) => format!("{p50:.1} / {p90:.1} / {p99:.1}"),
        _ => "-".to_owned(),
    }
}
