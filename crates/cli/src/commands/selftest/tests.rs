//! The report of programs that were made to behave and to misbehave.

use super::*;

fn adapter(id: &str, usable: bool) -> AdapterLine {
    AdapterLine {
        id: id.to_owned(),
        name: "test".to_owned(),
        driver: "driver 1".to_owned(),
        verdict: "a verdict".to_owned(),
        usable,
        software: !usable,
        limits: serde_json::json!({ "buffer_bytes": 7 }),
    }
}

#[test]
fn usable_devices_and_the_processor_are_tried() {
    let adapters = [adapter("cuda:0", true), adapter("vulkan:0", false), adapter("vulkan:1", true)];
    assert_eq!(usual(&adapters), ["cuda:0", "vulkan:1", "cpu"]);
}

#[test]
fn devices_are_understood_or_refused() {
    assert_eq!(device_name("vulkan").unwrap(), "vulkan:0");
    assert_eq!(device_name("cpu").unwrap(), "cpu");
    assert_eq!(device_name("cuda:3").unwrap(), "cuda:3");
    for wrong in ["gpu", "cuda:x", "directml", ""] {
        assert!(device_name(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn a_report_says_what_was_seen_and_what_failed() {
    let figures = serde_json::json!({ "kernels": [{ "kernel": "linear", "tokens": 1, "microseconds": 2.5,
        "gigabytes_a_second": 10.0, "share": 0.5 }] });
    let checks = vec![
        Check { figures, ..Check { verdict: OK.to_owned(), ..Check::failed("speed", "20 GB/s") } },
        Check::failed("kernel route", "number 3 is off"),
    ];
    let reports = [DeviceReport { device: "vulkan:0".to_owned(), checks }];
    let text =
        text(&[doctor::Finding::ok("system", "an os")], &Ok(vec![adapter("vulkan:0", false)]), &reports);
    for part in [
        "system: an os",
        "adapter vulkan:0: test, driver driver 1, buffer_bytes 7: a verdict",
        "ok    speed: 20 GB/s",
        "linear of 1 tokens: 2.5 µs, 10.0 GB/s, 50 %",
        "FAIL  kernel route: number 3 is off",
    ] {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
}

#[test]
fn a_program_that_is_not_there_is_named() {
    let error =
        Program::find(Some(std::path::Path::new("no-such-program")), SILENCE_MAX).err().unwrap().to_string();
    assert!(error.contains("no-such-program") && error.contains("hint: "), "{error}");
}

#[cfg(unix)]
mod programs {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn program(script: &str) -> (tempfile::TempDir, Program) {
        program_silent(script, SILENCE_MAX)
    }

    fn program_silent(script: &str, silence_max: Duration) -> (tempfile::TempDir, Program) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("program");
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let program = Program::find(Some(&path), silence_max).unwrap();
        (dir, program)
    }

    const GOOD: &str =
        r#"echo '{"begin":"a"}'; echo 'a driver talks'; echo '{"check":"a","verdict":"ok","found":"fine"}'"#;

    #[tokio::test]
    async fn what_it_says_is_read() {
        let (_dir, program) = program(GOOD);
        let checks = program.run("cpu").await;
        assert_eq!(checks.len(), 1);
        assert_eq!((checks[0].check.as_str(), checks[0].verdict.as_str()), ("a", OK));
    }

    #[tokio::test]
    async fn a_crash_is_a_verdict_on_what_was_at_work() {
        let (_dir, program) =
            program(&format!(r#"{GOOD}; echo '{{"begin":"b"}}'; echo "last words" >&2; kill -SEGV $$"#));
        let checks = program.run("vulkan:0").await;
        assert_eq!(checks.len(), 2, "{checks:?}");
        assert_eq!((checks[1].check.as_str(), checks[1].verdict.as_str()), ("b", FAIL));
        assert!(checks[1].found.contains("signal") && checks[1].found.contains("last words"), "{checks:?}");
    }

    /// `exec`: what is ended is what hangs, and nobody is left.
    #[tokio::test]
    async fn a_part_that_hangs_is_a_verdict_on_it_and_ends_the_program() {
        let script = format!(r#"{GOOD}; echo '{{"begin":"b"}}'; exec tail -f /dev/null"#);
        let (_dir, program) = program_silent(&script, Duration::from_secs(1));
        let started = std::time::Instant::now();
        let checks = program.run("vulkan:0").await;
        assert!(started.elapsed() >= Duration::from_secs(1), "it was given its time");
        let said: Vec<_> =
            checks.iter().map(|c| (c.check.as_str(), c.verdict.as_str(), c.found.as_str())).collect();
        assert_eq!(said, [("a", OK, "fine"), ("b", FAIL, "it hung: nothing was heard for 1 s")]);
    }

    #[tokio::test]
    async fn one_that_hangs_before_it_says_anything_is_told_too() {
        let (_dir, program) = program_silent("exec tail -f /dev/null", Duration::from_secs(1));
        let checks = program.run("vulkan:0").await;
        assert_eq!((checks.len(), checks[0].check.as_str(), checks[0].verdict.as_str()), (1, "start", FAIL));
    }

    #[tokio::test]
    async fn a_device_that_is_not_there_is_told_in_the_programs_words() {
        let (_dir, program) = program("echo 'no device vulkan:7' >&2; exit 1");
        let checks = program.run("vulkan:7").await;
        assert_eq!((checks.len(), checks[0].found.as_str()), (1, "no device vulkan:7"));
    }

    #[tokio::test]
    async fn adapters_are_listed_or_the_reason_is_told() {
        let line = r#"{"adapter":{"id":"vulkan:0","name":"n","driver":"d","verdict":"usable","usable":true,"software":false}}"#;
        let (_dir, good) = program(&format!("echo '{line}'"));
        assert_eq!(good.adapters().await.unwrap()[0].id, "vulkan:0");
        let (_dir, bad) = program("kill -ABRT $$");
        assert!(bad.adapters().await.unwrap_err().contains("signal"));
    }
}
