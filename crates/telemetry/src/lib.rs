//! Log format and places, the same for every process of ours.
//!
//! Lines go to stderr, for whoever started the process, and to a file in the log folder, for whoever asks later; a file that
//! is full or a day old is moved aside, and a few are kept.
//! A panic is a log line like any other.
//!
//! **Invariant:** stdout stays free: it belongs to the answer of a command, or to the protocol of a worker.
#![forbid(unsafe_code)]

mod rotating;

pub use rotating::{Bounds, Rotating};

use std::io::IsTerminal as _;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer, Registry};

/// What is logged unless told otherwise. `sqlx` reports every statement at INFO.
pub const DEFAULT_FILTER: &str = "info,sqlx=warn,hyper=warn,rustls=warn";

/// How lines look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Format {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

#[derive(Debug, Clone, Default)]
pub struct Config {
    /// Levels by target, as `tracing_subscriber`'s `EnvFilter` reads them; `None`: [`DEFAULT_FILTER`].
    pub filter: Option<String>,
    pub format: Format,
    /// The log folder and the first part of the file names; made when missing. `None`: stderr only.
    pub files: Option<(PathBuf, String)>,
    pub bounds: Bounds,
}

#[derive(Debug, thiserror::Error)]
pub enum InitError {
    #[error("`{filter}` is no log filter; write levels like `info` or `info,node=debug`")]
    Filter { filter: String, source: tracing_subscriber::filter::ParseError },
    #[error("cannot make the log folder {}; name another with --log-dir", dir.display())]
    Folder { dir: PathBuf, source: std::io::Error },
    #[error("cannot write log files in {}; name another folder with --log-dir", dir.display())]
    Files { dir: PathBuf, source: std::io::Error },
    #[error("logging is already set up in this process")]
    Twice { source: tracing_subscriber::util::TryInitError },
}

/// Sets up logging for the whole process, once.
pub fn init(config: &Config) -> Result<(), InitError> {
    let mut layers: Vec<Box<dyn Layer<Registry> + Send + Sync>> =
        vec![lines(config.format, std::io::stderr().is_terminal(), std::io::stderr)];
    if let Some((dir, prefix)) = &config.files {
        std::fs::create_dir_all(dir).map_err(|source| InitError::Folder { dir: dir.clone(), source })?;
        let files = Rotating::open(dir, prefix, config.bounds)
            .map_err(|source| InitError::Files { dir: dir.clone(), source })?;
        layers.push(lines(config.format, false, Mutex::new(files)));
    }
    let filter = config.filter.as_deref().unwrap_or(DEFAULT_FILTER);
    let filter = EnvFilter::try_new(filter)
        .map_err(|source| InitError::Filter { filter: filter.to_owned(), source })?;
    Registry::default()
        .with(layers.with_filter(filter))
        .try_init()
        .map_err(|source| InitError::Twice { source })?;
    log_panics();
    Ok(())
}

fn lines<W>(format: Format, colour: bool, writer: W) -> Box<dyn Layer<Registry> + Send + Sync>
where
    W: for<'w> tracing_subscriber::fmt::MakeWriter<'w> + Send + Sync + 'static,
{
    let layer = tracing_subscriber::fmt::layer().with_writer(writer).with_ansi(colour);
    match format {
        Format::Text => layer.boxed(),
        Format::Json => layer.json().flatten_event(true).boxed(),
    }
}

/// The files get it too, with the place; what the default hook prints to stderr stays.
fn log_panics() {
    static ONCE: Mutex<bool> = Mutex::new(false);
    let mut done = ONCE.lock().unwrap_or_else(PoisonError::into_inner);
    if std::mem::replace(&mut *done, true) {
        return;
    }
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        let message = info.payload_as_str().unwrap_or("a panic whose message is no text");
        tracing::error!(place, "panic: {message}");
        before(info);
    }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_is_none_is_refused_by_name() {
        let config = Config { filter: Some("info,=".into()), ..Config::default() };
        let error = init(&config).expect_err("the filter has no target");
        assert!(error.to_string().contains("info,="), "{error}");
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let file = dir.path().join("file");
        std::fs::write(&file, "").expect("writable");
        let config = Config { files: Some((file.join("logs"), "test".into())), ..Config::default() };
        let error = init(&config).expect_err("a file is no folder");
        assert!(matches!(&error, InitError::Folder { .. }) && error.to_string().contains("logs"), "{error}");
    }

    #[test]
    fn lines_reach_the_file() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let config = Config {
            filter: Some("info".into()),
            format: Format::Json,
            files: Some((dir.path().join("a/new/folder"), "test".into())),
            bounds: Bounds::default(),
        };
        init(&config).expect("logging starts");
        tracing::info!(answer = 42, "hello file");
        let file = std::fs::read_dir(dir.path().join("a/new/folder"))
            .expect("the folder")
            .next()
            .expect("a file")
            .expect("its entry");
        let text = std::fs::read_to_string(file.path()).expect("the log file");
        assert!(text.contains("hello file") && text.contains("\"answer\":42"), "{text}");
        assert!(matches!(init(&config), Err(InitError::Twice { .. })));
    }
}
