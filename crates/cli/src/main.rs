//! The one binary: router, node, their clients, and the workers they start.

#![forbid(unsafe_code)]

mod arguments;
mod client;
mod commands;
mod instance;
mod output;
mod places;
mod reference;
mod settings;
mod shutdown;

use std::process::ExitCode;

use anyhow::Result;
use clap::{CommandFactory as _, Parser as _};

use arguments::{Arguments, Command};
use commands::Context;

/// The system's, until a template worker gives it a limit.
#[global_allocator]
static ALLOCATOR: template_sandbox::CappedAllocator = template_sandbox::CappedAllocator;

/// As clap exits after wrong words, and many programs do.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    // Before anything else: an engine worker's pipes must not be touched.
    match std::env::args_os().nth(1) {
        Some(word) if word == "engine-worker" => return engine_worker::main(),
        Some(word) if word == "template-worker" => return template_worker(),
        _ => {}
    }
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return usage(error),
    };
    let json = arguments.json;
    match run(arguments) {
        Ok(code) => code,
        Err(error) => {
            output::print_error(&error, json);
            ExitCode::FAILURE
        }
    }
}

/// Words that are no command. Who asked for JSON gets the reason as JSON, here as everywhere.
fn usage(error: clap::Error) -> ExitCode {
    if error.use_stderr() && std::env::args_os().any(|word| word == "--json") {
        output::print_usage_error(&error);
        return ExitCode::from(USAGE);
    }
    error.exit()
}

fn template_worker() -> ExitCode {
    template_sandbox::worker_main(std::io::stdin().lock(), std::io::stdout().lock())
}

fn run(arguments: Arguments) -> Result<ExitCode> {
    match arguments.command {
        Command::Completions { shell } => {
            clap_complete::generate(shell, &mut Arguments::command(), "llm-router", &mut std::io::stdout());
            return Ok(ExitCode::SUCCESS);
        }
        Command::Reference { document } => {
            print!("{}", reference::document(document));
            return Ok(ExitCode::SUCCESS);
        }
        Command::EngineWorker => return Ok(engine_worker::main()),
        Command::TemplateWorker => return Ok(template_worker()),
        _ => {}
    }
    let context = Context::new(&arguments.config, &arguments.common, arguments.json)?;
    model_store::install_tls_provider();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    match arguments.command {
        Command::Up(up) => runtime.block_on(commands::up::run(&context, &up)),
        Command::Serve(serve) => runtime.block_on(commands::serve::run(&context, &serve)),
        Command::Node(node) => runtime.block_on(commands::node::run(&context, &node)),
        Command::Models(models) => runtime.block_on(commands::models::run(&context, *models)),
        Command::Nodes(nodes) => runtime.block_on(commands::nodes::run(&context, nodes)),
        Command::Engines(engines) => runtime.block_on(commands::engines::run(&context, engines)),
        // The prompt blocks its thread while it waits for a person; the runtime serves one reply at a time.
        Command::Chat(chat) => commands::chat::run(&context, &runtime, chat),
        Command::Bench(bench) => runtime.block_on(commands::bench::run(&context, &bench)),
        Command::Selftest(selftest) => runtime.block_on(commands::selftest::run(&context, &selftest)),
        Command::Doctor(doctor) => runtime.block_on(commands::doctor::run(&context, &doctor)),
        Command::Completions { .. }
        | Command::Reference { .. }
        | Command::EngineWorker
        | Command::TemplateWorker => unreachable!("served before the runtime starts"),
    }
}
