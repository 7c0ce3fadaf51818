//! Serves local folders as repositories of a model hub: `fixture-hub --repo org/name=DIR`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use fixture_hub::{FixtureHub, Options, Repo};
use tokio::io::AsyncReadExt as _;

/// A model hub on this machine, for demonstrations and tests.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Where the hub listens; port 0 takes a free one
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Where the origin listens to which large files are redirected
    #[arg(long, default_value = "127.0.0.1:0")]
    cdn_listen: SocketAddr,
    /// A repository and the folder with its files; may be given several times
    #[arg(long = "repo", value_name = "ORG/NAME=DIR", required = true, value_parser = parse_repo)]
    repos: Vec<(String, PathBuf)>,
    /// End when standard input ends, so that the hub cannot outlive who started it
    #[arg(long)]
    exit_with_stdin: bool,
}

fn parse_repo(text: &str) -> Result<(String, PathBuf), String> {
    let (id, dir) = text.split_once('=').ok_or("expected ORG/NAME=DIR")?;
    if id.split('/').count() != 2 || id.split('/').any(str::is_empty) {
        return Err(format!("`{id}` is not of the form ORG/NAME"));
    }
    Ok((id.to_owned(), PathBuf::from(dir)))
}

#[tokio::main]
async fn main() -> ExitCode {
    match serve(Arguments::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("fixture-hub: {message}");
            ExitCode::FAILURE
        }
    }
}

async fn serve(arguments: Arguments) -> Result<(), String> {
    let options =
        Options { listen: arguments.listen, cdn_listen: arguments.cdn_listen, ..Options::default() };
    let mut repos = Vec::new();
    for (id, dir) in arguments.repos {
        repos.push(read_repo(id, &dir)?);
    }
    let hub = FixtureHub::start_with(options, repos)
        .await
        .map_err(|e| format!("cannot listen on {}: {e}", arguments.listen))?;
    // The one line on standard output: whoever started the hub reads the address from it.
    println!("{}", hub.url());
    tokio::select! {
        ended = tokio::signal::ctrl_c() => ended.map_err(|e| format!("cannot wait for the interrupt signal: {e}")),
        () = stdin_ends(), if arguments.exit_with_stdin => Ok(()),
    }
}

fn read_repo(id: String, dir: &Path) -> Result<Repo, String> {
    Repo::from_dir(id, dir).map_err(|e| match std::error::Error::source(&e) {
        Some(cause) => format!("{e}: {cause}"),
        None => e.to_string(),
    })
}

async fn stdin_ends() {
    let mut stdin = tokio::io::stdin();
    let mut buffer = [0; 1024];
    // An error is an end too: nobody can write to it any more.
    while stdin.read(&mut buffer).await.is_ok_and(|n| n > 0) {}
}
