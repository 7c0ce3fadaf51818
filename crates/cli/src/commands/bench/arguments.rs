//! What `llm-router bench` can be told.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::settings::ClientSettings;

#[derive(Args, Debug, Clone)]
pub struct BenchArguments {
    /// Id of the model [default: the only one that the address lists]
    pub model: Option<String>,
    /// Which API is asked
    #[arg(long, value_enum, default_value_t = Api::Chat)]
    pub api: Api,
    /// Name of the environment variable with the API key; without it no key is sent
    #[arg(long, value_name = "VARIABLE")]
    pub key_env: Option<String>,
    /// Closed loop: so many connections, each sending its next request when it has its answer; one case for each
    #[arg(long, value_delimiter = ',', value_name = "COUNT", default_values_t = [1, 4, 16])]
    pub concurrency: Vec<u32>,
    /// Open loop instead: so many requests a second arriving by chance (Poisson), whether or not earlier ones are done; one
    /// case for each
    #[arg(long, value_delimiter = ',', value_name = "PER_SECOND", conflicts_with = "concurrency")]
    pub rate: Vec<f64>,
    /// Words of a prompt, each about one token; what the server counts is shown; one case for each
    #[arg(long, value_delimiter = ',', value_name = "COUNT", default_values_t = [128])]
    pub prompt_words: Vec<u32>,
    /// Tokens of an answer at most
    #[arg(long, value_name = "TOKENS", default_value_t = 128)]
    pub max_tokens: u32,
    /// Ask for answers of just that length, where the server knows `ignore_eos` and `min_tokens`
    #[arg(long)]
    pub ignore_eos: bool,
    /// How long requests are sent in each case, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 20.0)]
    pub seconds: f64,
    /// Requests before each case that do not count; one after another
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    pub warm_up: u32,
    /// A request that takes longer is an error, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 120.0)]
    pub deadline: f64,
    /// Of prompts and arrivals: the same seed sends the same
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Draw the percentiles of every case into this file
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    #[command(flatten)]
    pub client: ClientSettings,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Api {
    /// /v1/chat/completions
    Chat,
    /// /v1/completions, without a template
    Completions,
}
