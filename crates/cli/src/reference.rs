//! The reference documents, written from what the program really accepts.

use std::fmt::Write as _;

use clap::{Args, CommandFactory as _};

use crate::arguments::{Arguments, ReferenceDocument};
use crate::settings::{
    ClientSettings, CommonSettings, ConfigPlace, HubSettings, JoinSettings, NodeSettings, RouterSettings,
};

pub fn document(which: ReferenceDocument) -> String {
    match which {
        ReferenceDocument::Configuration => configuration(),
        ReferenceDocument::Commands => commands(),
    }
}

fn configuration() -> String {
    let mut text = String::from(
        "# Configuration\n\n\
         Written by `cargo xtask docs` from the program; do not edit.\n\n\
         Every setting can be a flag, an environment variable, or a key of the TOML file. A flag is stronger than the \
         variable, the variable is stronger than the file. The file is `config.toml` in the system's place for \
         configuration (`~/.config/llm-router/` on Linux, `~/Library/Preferences/org.llm-router.llm-router/` on macOS, \
         `%APPDATA%\\llm-router\\llm-router\\config\\` on Windows), or the one that `--config` or `LLM_ROUTER_CONFIG` names. A key that \
         is not in this list is an error.\n\n\
         ```toml\n[router]\nlisten = \"127.0.0.1:8411\"\nallow_cpu = true\n\n[node]\ndevices = [\"cpu\"]\n```\n",
    );
    section::<ConfigPlace>(&mut text, "The file itself", None, "every command");
    section::<CommonSettings>(&mut text, "Every command", Some(""), "every command");
    section::<RouterSettings>(&mut text, "Router", Some("router"), "`serve`, `up`");
    section::<NodeSettings>(&mut text, "Node", Some("node"), "`node`, `up`");
    section::<JoinSettings>(&mut text, "Joining", Some("join"), "`serve`, `node`, `up`");
    section::<HubSettings>(&mut text, "Hub", Some("hub"), "`serve`, `node`, `up`, `doctor`");
    text.push_str(
        "\nThese variables are those of the hub's own tools. `HF_TOKEN` holds a token itself; it has no flag and no key, \
         because others can read those. `HF_HOME` moves cache and token together. The token goes to the hub's own \
         origin only.\n",
    );
    section::<ClientSettings>(&mut text, "Clients", Some("client"), "`models`, `nodes`, `engines`, `chat`");
    text.push_str("\n`node --router URL` reads `LLM_ROUTER_URL` and the key `url` of `[client]` too.\n");
    text
}

/// `table`: the table of the file, empty for its top level, `None` for what the file cannot say.
fn section<A: Args>(text: &mut String, title: &str, table: Option<&str>, commands: &str) {
    let key_head = match table {
        None => "Key",
        Some("") => "Key (top level)",
        Some(_) => "Key",
    };
    let place = table.filter(|t| !t.is_empty()).map(|t| format!(" Table `[{t}]`.")).unwrap_or_default();
    let _ = write!(
        text,
        "\n## {title}\n\nFor {commands}.{place}\n\n| {key_head} | Flag | Variable | Meaning |\n|---|---|---|---|\n"
    );
    let command = A::augment_args(clap::Command::new("reference"));
    for argument in command.get_arguments().filter(|argument| !argument.is_hide_set()) {
        let Some(flag) = argument.get_long() else { continue };
        let key = table.map_or("–".to_owned(), |_| format!("`{}`", argument.get_id()));
        let variable = argument.get_env().map(|v| v.to_string_lossy().into_owned()).unwrap_or_default();
        let value = argument
            .get_value_names()
            .and_then(|names| names.first())
            .map(|n| n.as_str())
            .unwrap_or_default();
        let help = argument.get_help().map(ToString::to_string).unwrap_or_default().replace('|', "\\|");
        let _ = writeln!(text, "| {key} | `--{flag} {value}` | `{variable}` | {help} |");
    }
}

fn commands() -> String {
    let mut text =
        String::from("# Commands\n\nWritten by `cargo xtask docs` from the program; do not edit.\n");
    let mut root = Arguments::command().term_width(100);
    root.build();
    describe(&mut text, &root);
    text
}

fn describe(text: &mut String, command: &clap::Command) {
    // The environment of whoever writes the document must not end up in it.
    let mut shown = command.clone().mut_args(|a| a.hide_env_values(true)).term_width(100);
    let name = command.get_bin_name().unwrap_or(command.get_name());
    let _ = write!(text, "\n## {name}\n\n```text\n{}\n```\n", shown.render_help().to_string().trim_end());
    for sub in command.get_subcommands().filter(|s| !s.is_hide_set() && s.get_name() != "help") {
        describe(text, sub);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn every_setting_has_all_three_ways() {
        let text = configuration();
        let rows = text.lines().filter(|l| l.starts_with("| `"));
        let mut count = 0;
        for row in rows {
            let cells: Vec<_> = row.split(" | ").collect();
            assert!(cells.len() >= 4 && cells[1].starts_with("`--") && cells[2].len() > 2, "{row}");
            count += 1;
        }
        assert!(count > 20, "only {count} settings are listed");
    }
}
