//! `cargo xtask soak`: builds the soak, which builds what it serves with, and runs it. Its last line sums up; a broken promise fails it.

use std::ffi::OsString;

use anyhow::Result;
use clap::Args;

use crate::build::{self, binary_name};
use crate::{llama_cpp, shell};

#[derive(Args)]
#[command(disable_help_flag = true)]
pub struct SoakArguments {
    /// `--engine E`, `--minutes N`, `--seed S`, `--reloads N`, `--nodes N`, `--clients N`; `--help` tells more
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

pub fn run(arguments: &SoakArguments) -> Result<()> {
    llama_cpp::install()?;
    let program = build::build(true, &["system-tests"])?.join(binary_name("soak"));
    shell::run(shell::command(program).args(&arguments.arguments))
}
