//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::settings::{
    ClientSettings, CommonSettings, ConfigPlace, HubSettings, JoinSettings, NodeSettings, RouterSettings,
};

/// Serve open-weight language models on the machines a team already has, behind one OpenAI-compatible endpoint.
#[derive(Parser, Debug)]
#[command(name = "llm-router", version, max_term_width = 110)]
pub struct Arguments {
    #[command(flatten)]
    pub config: ConfigPlace,
    #[command(flatten)]
    pub common: CommonSettings,
    /// Answer in JSON, for scripts
    #[arg(long, global = true)]
    pub json: bool,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run a router and a node in one process, for one machine
    Up(Box<UpArguments>),
    /// Run a router
    Serve(ServeArguments),
    /// Run a node that joins a router
    Node(NodeArguments),
    /// Register, list, show, change, load and remove models
    #[command(subcommand)]
    Models(Box<ModelsCommand>),
    /// Connected nodes
    #[command(subcommand)]
    Nodes(ListCommand),
    /// Engine plugins on the connected nodes: show, reload, disable and enable them
    #[command(subcommand)]
    Engines(EnginesCommand),
    /// Talk to a model
    Chat(ChatArguments),
    /// Measure an OpenAI-compatible address: tokens per second, time to the first token, time between tokens
    Bench(Box<crate::commands::bench::BenchArguments>),
    /// Look at this machine: devices, memory, engines, folders, port; each with a verdict and what to do
    Doctor(DoctorArguments),
    /// Try the gpt-oss engine on this machine: kernels, demo model and speed on each device, in one report for a bug report
    Selftest(SelftestArguments),
    /// Print the completions for a shell
    Completions { shell: clap_complete::Shell },
    /// Print a reference document
    #[command(hide = true)]
    Reference { document: ReferenceDocument },
    /// Hold one engine plugin for a node
    #[command(hide = true)]
    EngineWorker,
    /// Render chat templates for a router
    #[command(hide = true)]
    TemplateWorker,
}

#[derive(Args, Debug)]
pub struct UpArguments {
    #[command(flatten)]
    pub router: RouterSettings,
    #[command(flatten)]
    pub node: NodeSettings,
    #[command(flatten)]
    pub hub: HubSettings,
    #[command(flatten)]
    pub join: JoinSettings,
    #[command(flatten)]
    pub service: ServiceArguments,
}

#[derive(Args, Debug)]
pub struct ServeArguments {
    #[command(flatten)]
    pub router: RouterSettings,
    #[command(flatten)]
    pub hub: HubSettings,
    #[command(flatten)]
    pub join: JoinSettings,
    #[command(flatten)]
    pub service: ServiceArguments,
}

#[derive(Args, Debug)]
pub struct NodeArguments {
    /// Address of the router to join [default: the one running here, else http://127.0.0.1:8411]
    #[arg(long = "router", env = "LLM_ROUTER_URL", value_name = "URL")]
    pub url: Option<String>,
    #[command(flatten)]
    pub node: NodeSettings,
    #[command(flatten)]
    pub hub: HubSettings,
    #[command(flatten)]
    pub join: JoinSettings,
    #[command(flatten)]
    pub service: ServiceArguments,
}

#[derive(Args, Debug)]
pub struct ServiceArguments {
    /// End when standard input ends, so that this process cannot outlive the program that started it
    #[arg(long)]
    pub exit_with_stdin: bool,
}

#[derive(Subcommand, Debug)]
pub enum ModelsCommand {
    /// Register a model and follow it until it is ready
    Add(AddArguments),
    /// List registered models
    Ls(ModelsLsArguments),
    /// Show one model: its source, its files, its state on every node
    Show {
        id: String,
        #[command(flatten)]
        client: ClientSettings,
    },
    /// Change settings of a model; those that are not named stay
    Set(SetArguments),
    /// What is in memory where: engine, device, memory, last use
    Ps {
        #[command(flatten)]
        client: ClientSettings,
    },
    /// Load a model into memory before its first request
    Load(PlaceArguments),
    /// Take a model out of memory once it is idle; it stays ready
    Unload(PlaceArguments),
    /// Remove a model from catalog and memory; files that others put in the cache stay
    Rm {
        id: String,
        #[command(flatten)]
        client: ClientSettings,
    },
}

#[derive(Args, Debug)]
pub struct AddArguments {
    /// A repository `org/name` (or `org/name:Q4_K_M` for one of its gguf files), its page or a file's address on the hub, a
    /// folder or a gguf file (`./model`, `/models/m.gguf`)
    pub source: String,
    /// Which weights to take, when the source has both
    #[arg(long)]
    pub format: Option<FormatArgument>,
    /// Which gguf file to take, when the source has several
    #[arg(long)]
    pub file: Option<String>,
    /// Branch, tag or commit; pinned to the commit it means now
    #[arg(long)]
    pub revision: Option<String>,
    /// The id clients use [default: the name of repository, folder or file]
    #[arg(long)]
    pub id: Option<String>,
    /// Refuse the model when no connected node has an engine for it
    #[arg(long)]
    pub require_engine: bool,
    #[command(flatten)]
    pub settings: ModelSettingFlags,
    /// Follow download and verification until the model is ready [default: on a terminal]
    #[arg(long, overrides_with = "no_wait")]
    pub wait: bool,
    /// Return when the model is registered
    #[arg(long)]
    pub no_wait: bool,
    #[command(flatten)]
    pub client: ClientSettings,
}

/// What an operator can set for one model.
#[derive(Args, Debug, Clone, Default)]
pub struct ModelSettingFlags {
    /// Longest sequence, prompt and answer, in tokens
    #[arg(long, value_name = "TOKENS")]
    pub context_length: Option<u32>,
    /// Sequences that run at once
    #[arg(long, value_name = "COUNT")]
    pub sequences_max: Option<u32>,
    /// Engine to use where several can, or one version of it, as `llama-cpp@1.2.0`
    #[arg(long, value_name = "ENGINE")]
    pub engine: Option<String>,
    /// Devices to use, of those a node serves with, such as `cuda:0`
    #[arg(long = "device", value_delimiter = ',', value_name = "DEVICE")]
    pub devices: Option<Vec<String>>,
    /// Workers on each node, where memory allows
    #[arg(long, value_name = "COUNT")]
    pub replicas: Option<u32>,
    /// How long it stays in memory without a request: `90s`, `10m`, `2h`, or `forever`; 0: not at all
    #[arg(long, value_name = "TIME", value_parser = crate::commands::keep_alive, allow_hyphen_values = true)]
    pub keep_alive: Option<i64>,
}

#[derive(Args, Debug)]
pub struct SetArguments {
    pub id: String,
    #[command(flatten)]
    pub settings: ModelSettingFlags,
    /// Settings that get their default again
    #[arg(long, value_delimiter = ',', value_name = "NAME")]
    pub unset: Vec<SettingName>,
    #[command(flatten)]
    pub client: ClientSettings,
}

#[derive(clap::ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettingName {
    ContextLength,
    SequencesMax,
    Engine,
    Device,
    Replicas,
    KeepAlive,
}

#[derive(Args, Debug)]
pub struct PlaceArguments {
    pub id: String,
    /// Id or name of a node [default: to load, the one with the most free memory; to unload, all]
    #[arg(long, value_name = "NODE")]
    pub node: Option<String>,
    #[command(flatten)]
    pub client: ClientSettings,
}

#[derive(Subcommand, Debug)]
pub enum EnginesCommand {
    /// List them
    Ls {
        #[command(flatten)]
        client: ClientSettings,
    },
    /// Show one engine: its versions, where they are, why one is refused or failed, and what runs in it
    Show {
        id: String,
        #[command(flatten)]
        client: ClientSettings,
    },
    /// Look for new versions in the nodes' engine folders and hand models over to them, without losing a request
    Reload {
        /// Give the models of this engine new workers, also where its version is the same
        id: Option<String>,
        /// Id or name of a node [default: all]
        #[arg(long, value_name = "NODE")]
        node: Option<String>,
        #[command(flatten)]
        client: ClientSettings,
    },
    /// Take an engine, or one version of it, out of use
    Disable(SwitchArguments),
    /// Take a disabled engine, or one version of it, back into use
    Enable(SwitchArguments),
}

#[derive(Args, Debug)]
pub struct SwitchArguments {
    /// An engine, or one version of it, as `llama-cpp@1.2.0`
    pub engine: String,
    /// Id or name of a node [default: all that have it]
    #[arg(long, value_name = "NODE")]
    pub node: Option<String>,
    #[command(flatten)]
    pub client: ClientSettings,
}

#[derive(clap::ValueEnum, Debug, Clone, Copy)]
pub enum FormatArgument {
    Safetensors,
    Gguf,
}

#[derive(Args, Debug)]
pub struct ModelsLsArguments {
    /// Models known to work, registered or not
    #[arg(long)]
    pub available: bool,
    #[command(flatten)]
    pub client: ClientSettings,
}

#[derive(Subcommand, Debug)]
pub enum ListCommand {
    /// List them
    Ls {
        #[command(flatten)]
        client: ClientSettings,
    },
}

#[derive(Args, Debug)]
pub struct ChatArguments {
    /// Id of a registered model
    pub model: String,
    /// One message: answer it and end
    pub message: Option<String>,
    /// The system message
    #[arg(long)]
    pub system: Option<String>,
    /// How much the model thinks first
    #[arg(long, value_name = "EFFORT")]
    pub reasoning_effort: Option<String>,
    /// 0 always takes the likeliest token
    #[arg(long, value_name = "NUMBER")]
    pub temperature: Option<f32>,
    /// Longest answer, in tokens, reasoning included
    #[arg(long, value_name = "TOKENS")]
    pub max_tokens: Option<u32>,
    /// Leave the reasoning out
    #[arg(long)]
    pub no_reasoning: bool,
    #[command(flatten)]
    pub client: ClientSettings,
}

#[derive(Args, Debug)]
pub struct DoctorArguments {
    /// Address whose port is looked at [default: 127.0.0.1:8411]
    #[arg(long, env = "LLM_ROUTER_LISTEN", value_name = "ADDRESS")]
    pub listen: Option<std::net::SocketAddr>,
    /// Folders with engine plugins [default: engines beside the program, and engines in the data folder]
    #[arg(long = "engines-dir", env = "LLM_ROUTER_ENGINES_DIR", value_delimiter = ',', value_name = "DIR")]
    pub engines_dirs: Option<Vec<PathBuf>>,
    #[command(flatten)]
    pub hub: HubSettings,
}

/// A day: nobody waits for longer.
const SILENCE_SECONDS_MAX: u64 = 24 * 60 * 60;

#[derive(Args, Debug)]
pub struct SelftestArguments {
    /// Devices to try, such as `cpu`, `cuda:0`, `vulkan:0`; software adapters are taken too [default: every usable one, and
    /// the CPU]
    #[arg(long = "device", value_delimiter = ',', value_name = "DEVICE", value_parser = crate::commands::selftest::device_name)]
    pub devices: Option<Vec<String>>,
    /// How long a device may be silent before it counts as hung, in seconds [default: 300]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u64).range(1..=SILENCE_SECONDS_MAX))]
    pub silence_seconds: Option<u64>,
    /// The program that tries things [default: gpt-oss-selftest beside this one]
    #[arg(long, value_name = "FILE", hide = true)]
    pub program: Option<PathBuf>,
}

#[derive(clap::ValueEnum, Debug, Clone, Copy)]
pub enum ReferenceDocument {
    /// Every setting
    Configuration,
    /// Every command
    Commands,
}
