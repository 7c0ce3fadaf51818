use super::*;

#[test]
fn names_of_real_repositories_pass() {
    for name in [
        "config.json",
        "model-00000-of-00002.safetensors",
        "metal/model.bin",
        "original/dtypes.json",
        "モデル.safetensors",
        ".gitattributes",
        "a..b.txt",
    ] {
        assert_eq!(check_file_name(name), Ok(()), "{name}");
    }
}

#[test]
fn names_that_leave_the_folder_are_refused() {
    for name in ["../x", "a/../../x", "/etc/passwd", "a//b", "./a", "a/", "..", "."] {
        assert!(matches!(check_file_name(name), Err(FileNameError::NotRelative { .. })), "{name}");
    }
}

#[test]
fn characters_that_windows_reads_differently_are_refused() {
    for name in ["a\\b", "c:x", "a\0b", "a\nb", "a*b", "a?b", "a|b", "\u{7f}"] {
        assert!(matches!(check_file_name(name), Err(FileNameError::Character { .. })), "{name:?}");
    }
}

#[test]
fn windows_device_names_are_refused() {
    for name in ["CON", "con.json", "a/nul", "Com1.safetensors", "LPT9", "aux.tar.gz", "COM¹"] {
        assert!(matches!(check_file_name(name), Err(FileNameError::Reserved { .. })), "{name}");
    }
    for name in ["CONFIG", "com.txt", "com10", "null"] {
        assert_eq!(check_file_name(name), Ok(()), "{name}");
    }
}

#[test]
fn trailing_dots_and_spaces_are_refused() {
    for name in ["a.", "a ", "a./b", " a"] {
        assert!(matches!(check_file_name(name), Err(FileNameError::Ending { .. })), "{name:?}");
    }
}

#[test]
fn long_deep_and_empty_names_are_refused() {
    assert_eq!(check_file_name(""), Err(FileNameError::Empty));
    let long = "é".repeat(FILE_NAME_BYTES_MAX);
    assert!(matches!(check_file_name(&long), Err(FileNameError::TooLong { .. })));
    let deep = "a/".repeat(FILE_NAME_DEPTH_MAX + 1) + "b";
    assert!(matches!(check_file_name(&deep), Err(FileNameError::TooDeep { .. })));
}

#[test]
fn names_that_differ_only_in_case_collide() {
    assert_eq!(check_file_names(["a.bin", "b.bin", "a.bin"]), Ok(()));
    let error = check_file_names(["a.bin", "A.bin"]).unwrap_err();
    assert_eq!(error.to_string(), r#"file names "a.bin" and "A.bin" differ only in case"#);
}
