//! `docs/error-codes.md` has every code and every reason of the header, and every exit code of the worker.

use engine_testkit::build::workspace_root;

fn read(path: &str) -> String {
    std::fs::read_to_string(workspace_root().join(path)).expect("a file of the tree")
}

#[test]
fn every_reason_of_the_header_is_documented() {
    let (header, page) = (read("include/engine/llmr_engine.h"), read("docs/error-codes.md"));
    let reasons: Vec<&str> = header
        .lines()
        .filter(|line| line.starts_with("#define LLMR_REASON_") && line.contains('"'))
        .filter_map(|line| line.split('"').nth(1))
        .collect();
    assert!(reasons.len() > 15, "{reasons:?}");
    let missing: Vec<_> = reasons.iter().filter(|r| !page.contains(&format!("| `{r}` |"))).collect();
    assert!(missing.is_empty(), "not in docs/error-codes.md: {missing:?}");
}

#[test]
fn every_code_has_a_section() {
    let page = read("docs/error-codes.md");
    for code in engine_protocol::StatusCode::ALL {
        let heading = format!("### {} {}", code as i32, code.name());
        assert!(page.lines().any(|line| line == heading), "{heading}");
    }
}
