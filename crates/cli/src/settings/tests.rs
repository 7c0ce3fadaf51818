//! Flag over environment over file, and files that are wrong.

use clap::{Args as _, FromArgMatches as _};

use super::*;

fn router(words: &[&str]) -> RouterSettings {
    let command = RouterSettings::augment_args(clap::Command::new("test").no_binary_name(true));
    let matches = command.try_get_matches_from(words).expect("the words are valid");
    RouterSettings::from_arg_matches(&matches).expect("the matches are complete")
}

#[test]
fn a_flag_is_stronger_than_the_file_and_the_file_fills_the_rest() {
    let file =
        ConfigFile::parse("[router]\nlisten = \"127.0.0.1:1\"\nqueue_length = 7\n").expect("a valid file");
    let merged = over(&router(&["--listen", "127.0.0.1:2"]), &file.router).expect("settings merge");
    assert_eq!(merged.listen, Some("127.0.0.1:2".parse().expect("an address")));
    assert_eq!(merged.queue_length, Some(7));
    assert_eq!(merged.drain_seconds, None);
}

#[test]
fn a_bare_switch_is_true_and_can_be_turned_off() {
    assert_eq!(router(&["--allow-cpu"]).allow_cpu, Some(true));
    assert_eq!(router(&["--allow-cpu=false"]).allow_cpu, Some(false));
    assert_eq!(router(&[]).allow_cpu, None);
}

#[test]
fn unknown_keys_are_named() {
    for (text, key) in [
        ("lisen = 1\n", "lisen"),
        ("[router]\nlisen = \"127.0.0.1:1\"\n", "lisen"),
        ("[nodes]\n", "nodes"),
        ("[hub]\ntoken = \"t\"\n", "token"),
    ] {
        let error = ConfigFile::parse(text).expect_err("an unknown key");
        assert!(format!("{error:#}").contains(key), "{text:?} gave {error:#}");
    }
}

#[test]
fn unknown_keys_of_the_top_level_are_found_by_their_line() {
    for (text, line) in [
        ("log = \"info\"\n\nlogg = \"info\"\n", "line 3"),
        ("log = \"info\"\n[nodes]\nname = \"n\"\n", "line 2"),
        ("log = 7\n", "line 1"),
    ] {
        let error = format!("{:#}", ConfigFile::parse(text).expect_err("an unknown key"));
        assert!(error.contains(line) && error.contains("[router]"), "{text:?} gave {error}");
    }
}

#[test]
fn wrong_types_are_named() {
    let error = ConfigFile::parse("[router]\nlisten = \"here\"\n").expect_err("no address");
    assert!(format!("{error:#}").contains("listen"), "{error:#}");
}

#[test]
fn a_named_file_has_to_be_there_and_the_usual_one_need_not() {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let absent = dir.path().join("config.toml");
    let read = |config: Option<PathBuf>| ConfigFile::read(&ConfigPlace { config }, &absent);
    assert_eq!(read(None).expect("nothing to read"), ConfigFile::default());
    let error = read(Some(absent.clone())).expect_err("the file is absent");
    assert!(error.to_string().contains("config.toml"), "{error:#}");
    std::fs::write(&absent, "log = \"debug\"\n[node]\nname = \"n\"\n").expect("writable");
    let file = read(None).expect("a valid file");
    assert_eq!(file.node.name.as_deref(), Some("n"));
    assert_eq!(file.common().expect("known keys").log.as_deref(), Some("debug"));
}
