//! The program as it is shipped, on the processor: everything it tries is as it has to be.

#![expect(clippy::unwrap_used, reason = "a test stops where it is surprised")]

use std::process::{Command, Output};

use serde_json::Value;

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gpt-oss-selftest")).args(arguments).output().unwrap()
}

fn lines(output: &Output) -> Vec<Value> {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn everything_is_tried_and_told_as_it_begins_and_ends() {
    let output = run(&["run", "--device", "cpu"]);
    let lines = lines(&output);
    let begun: Vec<&str> = lines.iter().filter_map(|line| line["begin"].as_str()).collect();
    let checks: Vec<&Value> = lines.iter().filter(|line| line["check"].is_string()).collect();
    for check in &checks {
        assert_eq!(check["verdict"], "ok", "{check}");
    }
    let names: Vec<&str> = checks.iter().map(|check| check["check"].as_str().unwrap()).collect();
    assert_eq!(begun, names);
    for name in
        ["kernel product scalar f32", "demo model, load", "demo model, answers", "demo model, speed", "speed"]
    {
        assert!(names.contains(&name), "{name} is not in {names:?}");
    }
    let answers = checks.iter().find(|check| check["check"] == "demo model, answers").unwrap();
    assert_eq!(answers["figures"]["answers"], 25);
    let speed = checks.iter().find(|check| check["check"] == "speed").unwrap();
    assert!(speed["figures"]["read_gigabytes_a_second"].as_f64().unwrap() > 0.0);
    assert!(speed["figures"]["kernels"][0]["share"].as_f64().unwrap() > 0.0);
    assert!(output.status.success());
}

#[test]
fn adapters_are_listed_each_with_a_verdict() {
    let output = run(&["adapters"]);
    assert!(output.status.success());
    for line in lines(&output) {
        let adapter = &line["adapter"];
        assert!(adapter["id"].is_string() && adapter["verdict"].is_string(), "{line}");
        assert!(!(adapter["usable"] == true && adapter["software"] == true), "{line}");
    }
}

#[test]
fn a_device_that_cannot_be_is_refused_by_name() {
    let output = run(&["run", "--device", "opengl:0"]);
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("opengl:0"));
}
