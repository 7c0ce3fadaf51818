//! The figures, the arrivals, and a run against a server that answers when the test says so.

mod figures;
mod server;
mod target;

use clap::Parser as _;

use super::BenchArguments;

/// As a person would write them. No client can be made before the program's main has chosen who does TLS.
fn arguments(words: &[&str]) -> BenchArguments {
    model_store::install_tls_provider();
    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        bench: BenchArguments,
    }
    Line::parse_from(std::iter::once(&"bench").chain(words)).bench
}
