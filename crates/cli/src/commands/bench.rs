//! `llm-router bench`: how fast an OpenAI-compatible address answers, at given loads and prompt lengths.
//!
//! Each case is one load (so many connections, or so many arrivals a second) with one prompt length. A request's time
//! counts from when it is sent; in an open loop from when it was due, so that a server that falls behind cannot hide it by
//! slowing the load down. All answers are streamed.

mod arguments;
mod load;
mod plan;
mod plot;
mod prompt;
mod report;
mod sample;
mod summary;
mod target;

pub use arguments::BenchArguments;

use std::process::ExitCode;

use anyhow::{Context as _, Result};

use self::prompt::Prompts;
use self::report::Report;
use self::summary::Summary;
use self::target::Target;
use super::Context;
use crate::output;

pub async fn run(context: &Context, arguments: &BenchArguments) -> Result<ExitCode> {
    let target = Target::new(&context.router_url(&arguments.client)?, arguments)?;
    let model = match &arguments.model {
        Some(model) => model.clone(),
        None => target.only_model().await?,
    };
    let cases = plan::cases(arguments)?;
    let prompts = Prompts::new(arguments.seed);
    let mut report = Report::new(&target, &model, arguments);
    for case in &cases {
        if !context.json {
            eprintln!("{case} …");
        }
        let body = |number| target.body(&model, &prompts.text(case.prompt_words, number), arguments);
        let taken = load::run(&target, case, body, arguments).await;
        report.cases.push(Summary::of(case.clone(), &taken));
    }
    if context.json {
        output::print_json(&report)?;
    } else {
        println!("{}", report.table());
        for line in report.errors() {
            eprintln!("{line}");
        }
    }
    if let Some(file) = &arguments.svg {
        let svg = plot::svg(&report).context("cannot draw the plot")?;
        std::fs::write(file, svg).with_context(|| format!("cannot write {}", file.display()))?;
        eprintln!("plot in {}", file.display());
    }
    let answered = report.cases.iter().any(|case| case.answered > 0);
    Ok(if answered { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[cfg(test)]
mod tests;
