//! Rules about one file.

use super::File;

/// Where unsafe code may be. Every other crate forbids it in its first lines.
const UNSAFE_MAY_BE_IN: &[&str] = &[
    "crates/engine-sdk/",
    "crates/engine-worker/",
    "crates/engine-testkit/",
    "crates/model-formats/src/mapped.rs",
    "crates/node/src/platform/",
    "crates/template-sandbox/src/capped_allocator.rs",
    "engines/gpt-oss/cpu/src/",
    "engines/gpt-oss/cuda/src/",
    // What wgpu calls experimental has to be asked for with it.
    "engines/gpt-oss/wgpu/src/experimental.rs",
    // Mapped weights as buffers of Metal.
    "engines/gpt-oss/wgpu/src/metal.rs",
    "engines/gpt-oss/wgpu/src/model/mapped.rs",
    "engines/gpt-oss/wgpu/src/device.rs",
    // One line each: the macro that exports an engine's table expands to it.
    "engines/gpt-oss/plugin/src/lib.rs",
    // llama.cpp is behind C functions, all of them called here; the other is the line of the macro.
    "engines/llama-cpp/src/native.rs",
    "engines/llama-cpp/src/native/",
    "engines/llama-cpp/src/lib.rs",
    "engines/echo/",
    // It has to crash.
    "engines/fault/",
    // A unit's peak is that of its instructions, and memory of a chosen kind is a mapping.
    "bench/src/limits/",
];

const C_FUNCTION_TYPE: &str = "unsafe extern \"C\" fn(";

/// Comments and strings of these files talk about the rules themselves.
const ABOUT_RULES: &[&str] = &["xtask/src/tidy/", "Cargo.toml", "CONTRIBUTING.md", "clippy.toml"];

pub fn check(file: &File) -> Vec<String> {
    let mut complaints = Vec::new();
    let mut complain = |line: usize, what: &str| complaints.push(format!("{}:{line}: {what}", file.path));

    if file.path.rsplit('/').next() == Some("metadata.json") {
        complain(0, "no file of this name is read or written by this product");
    }
    if !file.path.ends_with(".rs") {
        return complaints;
    }
    if file.path.ends_with("/mod.rs") {
        complain(1, "name the file for its idea (foo.rs beside foo/), not mod.rs");
    }
    // The tests of a module are named by their place.
    if !file.text.starts_with("//! ") && !file.path.ends_with("/tests.rs") {
        complain(1, "the first line has to say what the file is for: `//! …`");
    }
    let crate_root = file.path.ends_with("/src/lib.rs") || file.path.ends_with("/src/main.rs");
    let may_be_unsafe = UNSAFE_MAY_BE_IN.iter().any(|place| file.path.starts_with(place));
    let crate_may = crate_root && {
        let crate_dir =
            file.path.trim_end_matches("lib.rs").trim_end_matches("main.rs").trim_end_matches("src/");
        UNSAFE_MAY_BE_IN.iter().any(|place| place.starts_with(crate_dir))
    };
    if crate_root && !crate_may && !file.text.contains("#![forbid(unsafe_code)]") {
        complain(1, "this crate has no reason for unsafe code: `#![forbid(unsafe_code)]`");
    }
    if ABOUT_RULES.iter().any(|place| file.path.starts_with(place)) {
        return complaints;
    }
    for (index, line) in file.text.lines().enumerate() {
        // The type of a C function is a type, not unsafe code.
        let code = line.split("//").next().unwrap_or_default().replace(C_FUNCTION_TYPE, "");
        let number = index + 1;
        if !may_be_unsafe && contains_word(&code, "unsafe") && !code.contains("unsafe_code") {
            complain(number, "unsafe code lives only where xtask/src/tidy/rules.rs lists it");
        }
        if code.contains("todo!(") || code.contains("unimplemented!(") {
            complain(number, "write it, or leave a seam; no todo!, no unimplemented!");
        }
    }
    complaints.extend(empty_branches(file));
    complaints
}

/// A `#[cfg(...)]` of a platform over a body that does nothing: on that platform the product would pretend.
fn empty_branches(file: &File) -> Vec<String> {
    let lines: Vec<&str> = file.text.lines().collect();
    let names_platform = |line: &str| {
        let line = line.trim_start();
        line.starts_with("#[cfg(")
            && ["unix", "windows", "target_os", "target_family"].iter().any(|name| line.contains(name))
    };
    let mut complaints = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        if !names_platform(line) {
            continue;
        }
        // The item: up to its first brace, over further attributes and a signature of several lines.
        let item: String = lines[index + 1..].iter().take(12).map(|l| l.trim()).collect::<Vec<_>>().join(" ");
        let Some(open) = item.find('{') else { continue };
        let head = &item[..open];
        if head.contains(';') {
            continue;
        }
        let body = item[open + 1..].trim_start();
        let does_nothing = body.starts_with('}') || body.starts_with("Ok(()) }");
        let is_code = head.contains("fn ") || head.trim().is_empty() || head.contains("=>");
        if does_nothing && is_code {
            complaints.push(format!(
                "{}:{}: a platform branch that does nothing; write it for this platform too",
                file.path,
                index + 1
            ));
        }
    }
    complaints
}

fn contains_word(text: &str, word: &str) -> bool {
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + word.len()..].chars().next();
        let inside = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
        !inside(before) && !inside(after)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(path: &str, text: &str) -> Vec<String> {
        check(&File { path: path.into(), text: text.into() })
    }

    #[test]
    fn a_plain_file_passes() {
        assert_eq!(complaints("crates/chat/src/a.rs", "//! For tests.\n\nfn f() {}\n"), Vec::<String>::new());
    }

    #[test]
    fn each_rule_finds_its_defect() {
        let cases = [
            ("crates/chat/src/a.rs", "fn f() {}\n", "first line"),
            ("crates/chat/src/a/mod.rs", "//! A.\n", "mod.rs"),
            ("crates/chat/src/lib.rs", "//! A.\n", "forbid(unsafe_code)"),
            ("crates/chat/src/a.rs", "//! A.\nfn f() { unsafe { g() } }\n", "unsafe code lives"),
            ("crates/chat/src/a.rs", "//! A.\nfn f() { todo!() }\n", "no todo!"),
            ("crates/chat/src/a.rs", "//! A.\n#[cfg(windows)]\nfn f() {}\n", "does nothing"),
            (
                "crates/chat/src/a.rs",
                "//! A.\n#[cfg(not(unix))]\npub fn f(\n    a: u8,\n) -> Result<()> {\n    Ok(())\n}\n",
                "does nothing",
            ),
            ("assets/metadata.json", "{}", "no file of this name"),
        ];
        for (path, text, part) in cases {
            let found = complaints(path, text);
            assert!(found.iter().any(|c| c.contains(part)), "{path}: {text:?} gave {found:?}");
        }
    }

    #[test]
    fn a_platform_branch_that_works_passes() {
        let text =
            "//! A.\n#[cfg(windows)]\nfn f() -> u32 {\n    1\n}\n#[cfg(unix)]\nuse std::os::unix::a::{B};\n";
        assert_eq!(complaints("crates/chat/src/a.rs", text), Vec::<String>::new());
    }

    #[test]
    fn unsafe_in_a_comment_or_a_longer_word_is_no_unsafe_code() {
        let text = "//! A.\n// unsafe\nfn is_unsafe_here() -> u8 { 1 }\n";
        assert_eq!(complaints("crates/chat/src/a.rs", text), Vec::<String>::new());
    }
}
