//! The header and its Rust mirror agree: every struct, field, type size, offset and constant, none left out.
//!
//! The header is read for names, a C program made of them prints what the C compiler says, and the result is compared
//! with the tables below. A name that only one side has is a failure too.

#[path = "layout/header.rs"]
mod header;
#[path = "layout/mirror.rs"]
mod mirror;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// `struct.field offset` or `CONSTANT`, and what a side says about it.
type Facts = BTreeMap<String, String>;

fn header_path() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../include/engine/llmr_engine.h")
}

/// Compiles `source` as C or C++ and returns what the program prints.
fn compile_and_run(source: &str, cpp: bool) -> String {
    let dir = tempfile::tempdir().expect("a temporary folder");
    let file = dir.path().join(if cpp { "facts.cc" } else { "facts.c" });
    std::fs::write(&file, source).expect("the program is written");
    let program = dir.path().join(format!("facts{}", std::env::consts::EXE_SUFFIX));
    let target = env!("LAYOUT_TEST_TARGET");
    let compiler = cc::Build::new()
        .cpp(cpp)
        .target(target)
        .host(target)
        .opt_level(0)
        .out_dir(dir.path())
        .cargo_metadata(false)
        .try_get_compiler()
        .expect("a C compiler");
    let mut command: Command = compiler.to_command();
    let include = header_path().parent().expect("the header lies in a folder").to_path_buf();
    if compiler.is_like_msvc() {
        command.arg("/W4").arg("/WX").arg("/I").arg(include).arg(&file);
        command.arg(format!("/Fe:{}", program.display())).current_dir(dir.path());
    } else {
        command.arg(if cpp { "-std=c++11" } else { "-std=c99" });
        command.args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-I"]).arg(include).arg(&file);
        command.arg("-o").arg(&program);
    }
    let out = command.output().expect("the C compiler starts");
    let words = format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert!(out.status.success(), "the header does not compile without a warning:\n{words}");
    let out = Command::new(&program).output().expect("the program starts");
    assert!(out.status.success());
    String::from_utf8(out.stdout).expect("plain text")
}

fn facts_of_c(cpp: bool) -> Facts {
    let header = std::fs::read_to_string(header_path()).expect("the header is there");
    let printed = compile_and_run(&header::program(&header::parse(&header)), cpp);
    printed
        .lines()
        .map(|line| line.split_once('\t').expect("name, tab, value"))
        .map(|(name, value)| (name.to_owned(), value.trim_end().to_owned()))
        .collect()
}

fn check(c: &Facts) {
    let rust = mirror::facts();
    let names: std::collections::BTreeSet<_> = c.keys().chain(rust.keys()).collect();
    let wrong: Vec<String> = names
        .into_iter()
        .filter(|name| c.get(*name) != rust.get(*name))
        .map(|name| format!("{name}: header {:?}, mirror {:?}", c.get(name), rust.get(name)))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn header_and_mirror_agree_in_c() {
    check(&facts_of_c(false));
}

#[test]
fn header_and_mirror_agree_in_cpp() {
    check(&facts_of_c(true));
}

#[test]
fn the_reader_of_the_header_misses_nothing() {
    let header = std::fs::read_to_string(header_path()).expect("the header is there");
    let parsed = header::parse(&header);
    let count = |word: &str| header.matches(word).count();
    assert_eq!(parsed.structs.len(), count("typedef struct llmr_") - 1, "all but the opaque llmr_engine");
    assert!(parsed.structs.iter().all(|s| !s.fields.is_empty()));
    let text = header::without_comments(&header);
    let mut names: std::collections::BTreeSet<&str> = text
        .split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'))
        .filter(|word| word.starts_with("LLMR_"))
        .collect();
    for no_value in ["LLMR_ENGINE_H", "LLMR_EXPORT"] {
        assert!(names.remove(no_value));
    }
    assert_eq!(names.len(), parsed.numbers.len() + parsed.strings.len());
}
