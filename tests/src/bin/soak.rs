//! The soak as a program; `cargo xtask soak` builds and starts it. Its last line sums up; it fails on a broken promise.

#![forbid(unsafe_code)]

use std::process::ExitCode;

#[cfg(target_os = "linux")]
#[tokio::main]
async fn main() -> ExitCode {
    run::run().await
}

/// It stops processes with signals and reads what they hold from `/proc`.
#[cfg(not(target_os = "linux"))]
fn main() -> ExitCode {
    eprintln!("the soak runs on Linux only");
    ExitCode::FAILURE
}

#[cfg(target_os = "linux")]
mod run {
    use std::process::ExitCode;
    use std::time::Duration;

    use clap::Parser;
    use system_tests::soak::{Soak, SoakEngine, Trouble};

    /// A mixed streaming load while workers are killed, hung, starved and reloaded at random.
    #[derive(Parser)]
    struct Arguments {
        /// How long, in minutes
        #[arg(long, default_value_t = 10.0, conflicts_with = "reloads")]
        minutes: f64,
        /// Instead: so many reloads one after another under a steady load, in which no request may fail
        #[arg(long)]
        reloads: Option<u64>,
        /// Whose workers have the trouble
        #[arg(long, value_enum, default_value = "fault")]
        engine: SoakEngine,
        /// What is drawn; the same seed asks the same questions and makes the same troubles
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Nodes [default: 2; 1 with --reloads]
        #[arg(long)]
        nodes: Option<usize>,
        /// Requests at once
        #[arg(long, default_value_t = 12)]
        clients: u64,
    }

    pub async fn run() -> ExitCode {
        let arguments = Arguments::parse();
        let trouble = match arguments.reloads {
            Some(count) => Trouble::Reloads { count },
            None => Trouble::Everything { time: Duration::from_secs_f64(arguments.minutes * 60.0) },
        };
        let nodes = arguments.nodes.unwrap_or(if arguments.reloads.is_some() { 1 } else { 2 });
        println!("soak seed {}", arguments.seed);
        eprintln!("building what is not up to date");
        let Arguments { seed, engine, clients, .. } = arguments;
        let report = Soak { seed, engine, trouble, nodes, clients }.run().await;
        let complaints = report.complaints();
        if !complaints.is_empty() {
            eprintln!("{}", report.node_log_tail);
        }
        for complaint in &complaints {
            println!("broken: {complaint}");
        }
        for line in report.refusals() {
            println!("{line}");
        }
        println!("longest pause of a hand-over: {} ms", report.done.pause_max_ms);
        println!("{report}");
        if complaints.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }
}
