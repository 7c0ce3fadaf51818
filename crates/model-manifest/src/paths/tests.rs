//! What is let through, and each hostile name with the reason it is refused for.

use proptest::prelude::*;

use super::*;

#[test]
fn names_of_real_repositories_pass() {
    for path in [
        "config.json",
        "model-00000-of-00002.safetensors",
        "metal/model.bin",
        "a/b c/d-e_f.g",
        ".gitattributes",
    ] {
        assert_eq!(check_path(path), Ok(()), "{path}");
    }
}

fn refused(path: &str) -> PathError {
    check_path(path).expect_err(path)
}

#[test]
fn names_that_leave_the_folder_are_refused() {
    for path in ["../x", "a/../x", "/etc/passwd", "a//b", "./a", "a/.", "a/", "..", "."] {
        assert!(matches!(refused(path), PathError::Name(FileNameError::NotRelative { .. })), "{path}");
    }
    assert_eq!(refused(""), PathError::Name(FileNameError::Empty));
}

#[test]
fn backslash_colon_nul_and_control_characters_are_refused() {
    for path in ["..\\x", "c:x", "C:\\x", "a\0b", "a\nb", "a\x1b[31m", "a*b", "a?b", "a|b", "a\"b", "<a>"] {
        let error = refused(path);
        assert!(matches!(error, PathError::Name(FileNameError::Character { .. })), "{path:?}");
        assert!(!error.to_string().chars().any(char::is_control), "{path:?}");
    }
}

#[test]
fn letters_beyond_ascii_are_refused() {
    for path in ["ä", "a\u{202e}b", "\u{fb01}le", "\u{212a}"] {
        assert!(matches!(refused(path), PathError::NotAscii { .. }), "{path:?}");
    }
}

#[test]
fn names_that_windows_reserves_are_refused() {
    for path in [
        "nul",
        "NUL.json",
        "aux.tar.gz",
        "com1",
        "LPT9.txt",
        "a/CON/b",
        "con .txt",
        "name.",
        "name ",
        " name",
        "CONIN$",
    ] {
        let error = refused(path);
        let PathError::Name(error) = error else { panic!("{path:?}: {error}") };
        assert!(matches!(error, FileNameError::Reserved { .. } | FileNameError::Ending { .. }), "{path:?}");
    }
    for path in ["console.log", "com10", "nully", "auxiliary/x", "lpt"] {
        assert_eq!(check_path(path), Ok(()), "{path}");
    }
}

#[test]
fn names_too_long_or_too_deep_are_refused() {
    use model_formats::file_name::{FILE_NAME_BYTES_MAX, FILE_NAME_DEPTH_MAX};
    assert_eq!(check_path(&"x".repeat(FILE_NAME_BYTES_MAX)), Ok(()));
    let long = refused(&"x".repeat(FILE_NAME_BYTES_MAX + 1));
    assert!(matches!(long, PathError::Name(FileNameError::TooLong { .. })));
    let deep = refused(&["x"; FILE_NAME_DEPTH_MAX + 2].join("/"));
    assert!(matches!(deep, PathError::Name(FileNameError::TooDeep { .. })));
}

#[test]
fn two_names_of_one_file_are_refused() {
    assert_eq!(check_paths(["a", "b/a", "b/c"]), Ok(()));
    for pair in [
        ["Config.json", "config.json"],
        ["metal/model.bin", "Metal/model.bin"],
        ["a", "a"],
        ["a/b", "A"],
        ["A", "a/b"],
    ] {
        assert!(matches!(check_paths(pair), Err(PathError::Collision { .. })), "{pair:?}");
    }
}

#[test]
fn repository_ids_are_those_of_the_hub() {
    for id in ["openai/gpt-oss-20b", "gpt2", "a.b/c_d"] {
        assert_eq!(check_repo_id(id), Ok(()), "{id}");
    }
    let long = format!("a/{}", "b".repeat(REPO_ID_BYTES_MAX));
    for id in [
        "", "/", "a/", "/a", "a/b/c", "a/../b", "../a", "a/b--c", "a/-b", "a/b.", "a b/c", "a/b?c", "a\\b",
        &long,
    ] {
        assert!(check_repo_id(id).is_err(), "{id}");
    }
}

#[test]
fn revisions_may_be_references_but_not_escapes() {
    for revision in ["main", "v1.0", "refs/pr/1", "6cee5e81ee83917806bbde320786a8fb61efebee"] {
        assert_eq!(check_revision(revision), Ok(()), "{revision}");
    }
    for revision in ["", "../main", "/main", "a\0"] {
        assert!(check_revision(revision).is_err(), "{revision:?}");
    }
    assert!(is_commit("6cee5e81ee83917806bbde320786a8fb61efebee"));
    assert!(!is_commit("6CEE5E81EE83917806BBDE320786A8FB61EFEBEE"));
}

proptest! {
    #[test]
    fn whatever_passes_stays_below_its_folder(path in ".{0,40}|[a-zA-Z0-9./\\\\: -]{0,40}") {
        if check_path(&path).is_ok() {
            let joined = std::path::Path::new("base").join(&path);
            prop_assert!(joined.components().all(|c| matches!(c, std::path::Component::Normal(_))));
            prop_assert_eq!(joined.components().count(), 1 + path.split('/').count());
        }
    }

    #[test]
    fn no_input_panics(paths in proptest::collection::vec(any::<String>(), 0..5)) {
        let _ = check_paths(paths.iter().map(String::as_str));
        for path in &paths {
            let _ = (check_repo_id(path), check_revision(path));
        }
    }
}
