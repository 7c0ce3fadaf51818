//! A reader finds everything of an operator under its one name: kernel, argument structs and their twins, check, benchmark, test,
//! registers, and a line of the README.

#![expect(clippy::unwrap_used, reason = "a test stops where it is surprised")]

use std::collections::BTreeSet;
use std::path::Path;

use gpt_oss_cuda::ops::OPERATORS;

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Names of the files of a kind in a folder.
fn files(folder: &str, kind: &str) -> BTreeSet<String> {
    let entries = std::fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(folder)).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.filter_map(|name| name.strip_suffix(kind).map(str::to_owned)).collect()
}

/// What follows `keyword` wherever it is in a text, up to the end of the name.
fn named<'t>(text: &'t str, keyword: &'t str) -> impl Iterator<Item = &'t str> {
    let end =
        |rest: &'t str| rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
    text.split(keyword).skip(1).map(move |rest| &rest[..end(rest)])
}

/// `linear_gemv` is `LinearGemv`.
fn of_a_type(name: &str) -> String {
    let word = |word: &str| word[..1].to_uppercase() + &word[1..];
    name.split('_').map(word).collect()
}

#[test]
fn of_every_operator_everything_has_its_name() {
    let (readme, registers, tests) =
        (read("README.md"), read("kernels/registers.txt"), read("tests/operators.rs"));
    for operator in OPERATORS {
        let name = operator.name;
        let (kernel, host) = (read(&format!("kernels/{name}.cu")), read(&format!("src/ops/{name}.rs")));
        let of_arguments = |text: &str| -> BTreeSet<String> {
            named(text, "struct ").filter(|s| s.ends_with("Args")).map(str::to_owned).collect()
        };
        let structs = of_arguments(&kernel);
        assert_eq!(structs, of_arguments(&host), "{name}: the same argument structs on both sides");
        assert!(!structs.is_empty(), "{name} has no argument struct");
        for arguments in &structs {
            assert!(arguments.starts_with(&of_a_type(name)), "{name} has {arguments}");
            assert!(readme.contains(&format!("`{arguments}`")), "the README does not name {arguments}");
        }
        for part in ["fn check(", "fn bench("] {
            assert!(host.contains(part), "src/ops/{name}.rs has no {part}");
        }
        let with_registers = |line: &str| {
            let kernel = line.split(' ').next().unwrap_or_default();
            kernel == name || kernel.strip_prefix(name).is_some_and(|rest| rest.starts_with('_'))
        };
        assert!(registers.lines().any(with_registers), "{name} is not in registers.txt");
        assert!(tests.split_whitespace().any(|word| word == name), "{name} has no test");
    }
}

#[test]
fn every_file_of_a_kernel_is_an_operators() {
    let operators: BTreeSet<String> = OPERATORS.iter().map(|operator| operator.name.to_owned()).collect();
    let mut kernels = files("kernels", ".cu");
    assert!(kernels.remove("all"), "the program of all kernels");
    assert_eq!(kernels, operators);
    let mut hosts = files("src/ops", ".rs");
    hosts.remove("tests");
    assert_eq!(hosts, operators);
}
