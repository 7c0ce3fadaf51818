//! Answers for people and for scripts.

use std::io::IsTerminal as _;

use comfy_table::{ContentArrangement, Table, presets};

/// What a failed request to the router said, kept apart from its words for `--json`.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct ApiFailure {
    pub status: u16,
    pub message: String,
    pub code: Option<String>,
    pub hint: Option<String>,
}

/// One JSON document on stdout.
pub fn print_json(value: &impl serde::Serialize) -> anyhow::Result<()> {
    println!("{}", serde_json::to_string(value)?);
    Ok(())
}

/// A table without lines inside: copied into a chat or cut by `awk`, it stays readable.
pub fn table(head: &[&str]) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(head.iter().map(|h| h.to_uppercase()));
    table
}

/// The whole chain of causes on one line, a hint on its own.
pub fn print_error(error: &anyhow::Error, json: bool) {
    let failure = error.downcast_ref::<ApiFailure>();
    let mut message = String::new();
    let mut hint = failure.and_then(|f| f.hint.clone());
    for link in error.chain() {
        let text = link.to_string();
        // House style: a hint is a line of its own at the end of the message it belongs to.
        let (words, own_hint) =
            text.split_once("\nhint: ").map_or((text.as_str(), None), |(w, h)| (w, Some(h)));
        if !message.is_empty() {
            message.push_str(": ");
        }
        message.push_str(words);
        hint = hint.or_else(|| own_hint.map(str::to_owned));
    }
    if json {
        let code = failure.and_then(|f| f.code.clone());
        let status = failure.map(|f| f.status);
        let body =
            serde_json::json!({"error": {"message": message, "code": code, "status": status, "hint": hint}});
        eprintln!("{body}");
        return;
    }
    eprintln!("error: {message}");
    if let Some(hint) = hint {
        eprintln!("hint: {hint}");
    }
}

/// What clap found wrong with the command line, in the form of every other failure.
pub fn print_usage_error(error: &clap::Error) {
    let text = error.render().to_string();
    let mut parts = text.trim().splitn(2, "\n\n");
    let message = parts.next().unwrap_or_default().trim_start_matches("error: ");
    let hint = parts.next().map(|rest| rest.split_whitespace().collect::<Vec<_>>().join(" "));
    let body =
        serde_json::json!({"error": {"message": message, "code": "usage", "status": null, "hint": hint}});
    eprintln!("{body}");
}

/// How long ago something was: `12 s`, `3 min`, `2 h`, `5 d`.
pub fn ago(then: i64, now: i64) -> String {
    let seconds = now.saturating_sub(then).max(0);
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} d", seconds / 86_400),
    }
}

/// Now, in seconds since 1970.
pub fn now() -> i64 {
    time::OffsetDateTime::now_utc().unix_timestamp()
}

/// `13.8 GB`: decimal, as disks and the hub count.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 5] = ["B", "kB", "MB", "GB", "TB"];
    let mut value = count as f64;
    let mut unit = 0;
    while value >= 999.95 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 { format!("{count} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// Escapes are for terminals, and not for those who asked to be spared.
pub fn stdout_has_style() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_ago_takes_the_unit_that_fits() {
        let cases = [
            (0, "0 s"),
            (119, "119 s"),
            (120, "2 min"),
            (7_199, "119 min"),
            (7_200, "2 h"),
            (200_000, "2 d"),
        ];
        for (seconds, expected) in cases {
            assert_eq!(ago(1_000, 1_000 + seconds), expected);
        }
        assert_eq!(ago(50, 10), "0 s");
    }

    #[test]
    fn bytes_take_the_unit_that_fits() {
        let cases = [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.0 kB"),
            (999_949, "999.9 kB"),
            (999_950, "1.0 MB"),
            (13_761_264_768, "13.8 GB"),
        ];
        for (count, expected) in cases {
            assert_eq!(bytes(count), expected);
        }
    }
}
