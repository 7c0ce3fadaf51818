//! `engine-check <engine folder> <model folder>`: runs the conformance suite and prints a verdict for each case.

use std::path::PathBuf;
use std::process::ExitCode;

use engine_testkit::suite::{Outcome, Subject, cases, run_case};

const USAGE: &str = "\
usage: engine-check <engine folder> <model folder> [--worker <llm-router>] [--only <case>] [--list]

Runs an engine through a worker process and says which promises of llmr_engine.h it keeps.
The engine folder holds manifest.json and the library it names; the model is one it can run.
--worker: the llm-router binary to use; otherwise the worker is built from this source tree.";

struct Arguments {
    engine: PathBuf,
    model: PathBuf,
    worker: Option<PathBuf>,
    only: Option<String>,
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if words.iter().any(|w| w == "--list") {
        for case in cases() {
            println!("{:36} {}", case.name, case.promise);
        }
        return ExitCode::SUCCESS;
    }
    let Some(arguments) = parse(words) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let subject = match arguments.worker {
        None => Subject::new(arguments.engine, arguments.model),
        Some(worker) => Subject {
            worker,
            worker_arguments: vec!["engine-worker".to_owned()],
            engine_dir: arguments.engine,
            model_dir: arguments.model,
        },
    };
    let mut failed = 0;
    let selected =
        cases().into_iter().filter(|c| arguments.only.as_deref().is_none_or(|only| only == c.name));
    let mut count = 0;
    for case in selected {
        count += 1;
        match run_case(&case, &subject).result {
            Ok(Outcome::Passed) => println!("passed   {}", case.name),
            Ok(Outcome::NotApplicable(why)) => println!("no case  {}: {why}", case.name),
            Err(error) => {
                failed += 1;
                println!("FAILED   {}: {}\n         {error:#}", case.name, case.promise);
            }
        }
    }
    println!("{count} cases, {failed} failed");
    if count == 0 || failed > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn parse(words: Vec<String>) -> Option<Arguments> {
    let (mut folders, mut worker, mut only) = (Vec::new(), None, None);
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--worker" => worker = Some(PathBuf::from(words.next()?)),
            "--only" => only = Some(words.next()?),
            option if option.starts_with('-') => return None,
            _ => folders.push(PathBuf::from(word)),
        }
    }
    let [engine, model] = <[PathBuf; 2]>::try_from(folders).ok()?;
    Some(Arguments { engine, model, worker, only })
}
