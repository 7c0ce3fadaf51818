//! The worker as a process: its pipes, its hello, and how it ends, with engines that misbehave.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use engine_protocol::{
    Constraint, LogLevel, Open, PROTOCOL_VERSION, Prompt, Sampling, Settings, StatusCode, Submit, Task,
    ToNode, ToWorker,
};
use engine_testkit::build::{compile_c_engine_with, engine_dir, worker_binary, workspace_root};
use engine_testkit::model::{describe, write_echo_model};
use engine_testkit::worker::Worker;
use engine_worker::exit_code;

/// A copy of `echo-c` with changes of (file, from, to), and a model for it.
fn changed_echo(dir: &Path, changes: &[(&str, &str, &str)]) -> PathBuf {
    write_echo_model(dir, 4096).expect("a model");
    let source = workspace_root().join("engines").join("echo-c");
    let engine = dir.join("engine");
    std::fs::create_dir_all(&engine).expect("a folder");
    let library = compile_c_engine_with(&source, &dir.join("build"), &mut |name, mut text| {
        for (_, from, to) in changes.iter().filter(|(file, ..)| *file == name) {
            assert_eq!(text.matches(from).count(), 1, "{from}");
            text = text.replace(from, to);
        }
        Ok(text)
    });
    std::fs::rename(library.expect("it compiles"), engine.join("echo-c.plugin")).expect("put in place");
    std::fs::copy(source.join("manifest.json"), engine.join("manifest.json")).expect("a manifest");
    engine
}

fn loaded(engine: &Path, model: &Path) -> Worker {
    let mut worker = Worker::start(&worker_binary(), &[]).expect("hello");
    worker.open(engine).expect("an answer").expect("it opens");
    let model = describe(model, "echo-c").expect("a model");
    worker.load(&model, &Settings::default(), &[]).expect("an answer").expect("it loads");
    worker
}

fn submit(sequence: u64) -> Submit {
    Submit {
        sequence,
        request_id: "request".to_owned(),
        prompt: Prompt::Text { text: "hello".to_owned(), literal: Vec::new() },
        task: Task::Generate(Box::new(Sampling { temperature: 0.0, ..Sampling::default() })),
        cache_salt: 0,
    }
}

fn exits_with(worker: &mut Worker, code: u8) {
    let status = worker.wait_exit().expect("it ends");
    assert_eq!(status.code(), Some(i32::from(code)), "{status}; stderr: {:?}", worker.stderr_lines());
}

#[test]
fn what_a_plugin_prints_is_on_stderr_and_what_it_reads_is_nothing() {
    let dir = tempfile::tempdir().expect("a folder");
    let print = r#"static uint32_t marks; if (marks++ == 0) { int c = getchar(); printf("read %d from stdin\n", c);
        puts("LLMRWRK not a frame"); fprintf(stderr, "on stderr\n"); }
        if (engine->count == 0) return LLMR_OK;"#;
    let changes = [
        ("step.c", "  if (engine->count == 0) return LLMR_OK;", print),
        ("step.c", "#include <stdlib.h>", "#include <stdlib.h>\n#include <stdio.h>"),
    ];
    let engine = changed_echo(dir.path(), &changes);
    let mut worker = loaded(&engine, dir.path());
    let reply = worker.run(submit(1)).expect("the pipe has frames only");
    assert_eq!(reply.text(), b"hello");
    assert!(worker.shut_down().expect("it ends").success());
    let lines = worker.stderr_lines();
    for expected in ["read -1 from stdin", "LLMRWRK not a frame", "on stderr"] {
        assert!(lines.iter().any(|line| line == expected), "{expected:?} in {lines:?}");
    }
}

#[test]
fn it_ends_with_its_node_while_the_engine_hangs_in_a_step() {
    let dir = tempfile::tempdir().expect("a folder");
    let hang = r#"engine->host->log(engine->host->context, 0, str("hanging"), 0); for (;;) {} "#;
    let changes = [("step.c", "  if (engine->count == 0) return LLMR_OK;", hang)];
    let engine = changed_echo(dir.path(), &changes);
    let mut worker = loaded(&engine, dir.path());
    worker.send(&ToWorker::Submit(Box::new(submit(1)))).expect("sent");
    let hangs =
        |m| if matches!(&m, ToNode::Log { message, .. } if message == "hanging") { Ok(()) } else { Err(m) };
    worker.wait_for(hangs).expect("it hangs");
    worker.close_input();
    exits_with(&mut worker, exit_code::NODE_GONE);
}

#[test]
fn a_device_that_fails_ends_the_process_with_the_cause() {
    let dir = tempfile::tempdir().expect("a folder");
    let fail = r#"if (engine->count == 0) return LLMR_OK;
        return fail(status, LLMR_INTERNAL, LLMR_REASON_DEVICE_FAILED, 0, 0, "an illegal address in embed");"#;
    let changes = [("step.c", "  if (engine->count == 0) return LLMR_OK;", fail)];
    let engine = changed_echo(dir.path(), &changes);
    let mut worker = loaded(&engine, dir.path());
    worker.send(&ToWorker::Submit(Box::new(submit(1)))).expect("sent");
    exits_with(&mut worker, exit_code::DEVICE);
    let lines = worker.stderr_lines();
    assert!(lines.iter().any(|line| line.contains("an illegal address in embed")), "{lines:?}");
}

#[test]
fn an_engine_that_hangs_in_unload_is_ended_after_shutdown() {
    let dir = tempfile::tempdir().expect("a folder");
    let changes = [(
        "model.c",
        "  drop_sequences(engine);\n  free(engine->ids);",
        "  for (;;) {}\n  free(engine->ids);",
    )];
    let engine = changed_echo(dir.path(), &changes);
    let mut worker = loaded(&engine, dir.path());
    worker.send(&ToWorker::Shutdown).expect("sent");
    worker.close_input();
    exits_with(&mut worker, exit_code::SHUTDOWN_HANGS);
}

#[test]
fn a_crash_of_the_engine_is_the_end_of_the_process_only() {
    let dir = tempfile::tempdir().expect("a folder");
    let crash = r#"fputs("last words\n", stderr); abort();"#;
    let changes = [
        ("step.c", "  if (engine->count == 0) return LLMR_OK;", crash),
        ("step.c", "#include <stdlib.h>", "#include <stdlib.h>\n#include <stdio.h>"),
    ];
    let engine = changed_echo(dir.path(), &changes);
    let mut worker = loaded(&engine, dir.path());
    worker.send(&ToWorker::Submit(Box::new(submit(1)))).expect("sent");
    let status = worker.wait_exit().expect("it ends");
    assert!(!status.success(), "{status}");
    assert!(worker.stderr_lines().iter().any(|l| l == "last words"), "{:?}", worker.stderr_lines());
}

#[test]
fn a_step_that_fails_ends_every_sequence_and_the_engine_goes_on() {
    let dir = tempfile::tempdir().expect("a folder");
    let fail_once = r#"static int failed; if (engine->count == 2 && !failed) { failed = 1; drop_sequences(engine);
        return fail(status, LLMR_INTERNAL, "planted", 3, 4, "the step was told to fail"); }
        if (engine->count == 0) return LLMR_OK;"#;
    let changes = [("step.c", "  if (engine->count == 0) return LLMR_OK;", fail_once)];
    let engine = changed_echo(dir.path(), &changes);
    let mut worker = loaded(&engine, dir.path());
    let both = [1, 2].map(|n| ToWorker::Submit(Box::new(submit(n))));
    worker.send_all(&both).expect("sent");
    let status = worker
        .wait_for(|m| if let ToNode::StepFailed { status } = m { Ok(status) } else { Err(m) })
        .expect("an answer");
    assert_eq!((status.reason.as_str(), status.needed, status.available), ("planted", 3, 4));
    assert_eq!(worker.run(submit(3)).expect("it goes on").text(), b"hello");
}

#[test]
fn sequences_that_the_engine_forgets_are_failed_by_the_worker() {
    let dir = tempfile::tempdir().expect("a folder");
    let forget = "  drop_sequences(engine);\n  if (engine->count == 0) return LLMR_OK;";
    let changes = [("step.c", "  if (engine->count == 0) return LLMR_OK;", forget)];
    let engine = changed_echo(dir.path(), &changes);
    let mut worker = loaded(&engine, dir.path());
    let reply = worker.run(submit(1)).expect("an answer");
    let status = reply.failure().expect("a failure");
    assert_eq!((status.code, status.reason.as_str()), (StatusCode::Internal, "broken_engine"));
}

#[test]
fn a_sequence_number_in_use_is_refused_and_the_first_goes_on() {
    let dir = tempfile::tempdir().expect("a folder");
    write_echo_model(dir.path(), 4096).expect("a model");
    let mut worker = loaded(&engine_dir("echo-c"), dir.path());
    let both = [1, 1].map(|n| ToWorker::Submit(Box::new(submit(n))));
    worker.send_all(&both).expect("sent");
    let refused = worker.collect(1).expect("an answer");
    assert_eq!(refused.failure().map(|s| s.reason.as_str()), Some("sequence_exists"));
    assert_eq!(worker.collect(1).expect("the first").text(), b"hello");
}

fn refused_library(library: &Path) -> engine_protocol::Status {
    let mut worker = Worker::start(&worker_binary(), &[]).expect("hello");
    let open = Open {
        library: library.to_str().expect("UTF-8").to_owned(),
        engine_id: "x".to_owned(),
        engine_version: "1.0.0".to_owned(),
        log_level: LogLevel::Info,
    };
    worker.open_as(open).expect("an answer").expect_err("it cannot be opened")
}

#[test]
fn a_library_that_is_none_is_named() {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("text.plugin");
    let status = refused_library(&file);
    assert_eq!((status.code, status.reason.as_str()), (StatusCode::LoadFailed, "library_not_opened"));
    std::fs::write(&file, "not a library").expect("a file");
    let status = refused_library(&file);
    assert_eq!((status.code, status.reason.as_str()), (StatusCode::LoadFailed, "library_not_opened"));
    assert!(status.message.contains("text.plugin"), "{status}");
    assert_eq!(refused_library(Path::new("relative.so")).reason, "library_not_opened");
}

#[test]
fn calls_before_open_are_refused() {
    let mut worker = Worker::start(&worker_binary(), &[]).expect("hello");
    let status = worker.stats().expect("an answer").expect_err("no engine yet");
    assert_eq!(status.reason, "engine_not_opened");
    let reply = worker.run(submit(1)).expect("an answer");
    assert_eq!(reply.failure().map(|s| s.reason.as_str()), Some("engine_not_opened"));
}

#[test]
fn another_protocol_version_ends_with_a_message() {
    let mut worker =
        Worker::start_as(&worker_binary(), &[], PROTOCOL_VERSION + 1).expect("it says hello first");
    exits_with(&mut worker, exit_code::PROTOCOL);
    let lines = worker.stderr_lines().join("\n");
    assert!(lines.contains(&format!("protocol {PROTOCOL_VERSION}")) && lines.contains("hint:"), "{lines}");
}

#[test]
fn bytes_that_are_no_frame_end_with_a_message() {
    let mut worker = Worker::start(&worker_binary(), &[]).expect("hello");
    worker.write(&[0xFF; 64]).expect("written");
    exits_with(&mut worker, exit_code::PROTOCOL);
    assert!(worker.stderr_lines().join("\n").contains("over the limit"), "{:?}", worker.stderr_lines());
}

#[test]
fn started_by_hand_it_says_what_is_wrong() {
    let out = Command::new(worker_binary()).stdin(Stdio::null()).output().expect("it starts");
    assert_eq!(out.status.code(), Some(i32::from(exit_code::PROTOCOL)));
    let words = String::from_utf8_lossy(&out.stderr);
    assert!(words.contains("is this process started by a node?"), "{words}");
}

/// A hello with another process id than the parent's: the node died, and something else has adopted the worker.
#[cfg(unix)]
#[test]
fn a_worker_whose_parent_is_not_its_node_ends() {
    use engine_protocol::Hello;
    use std::io::{Read as _, Write as _};

    let mut child = Command::new(worker_binary())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it starts");
    let hello = Hello { protocol_version: PROTOCOL_VERSION, process_id: u32::MAX };
    let mut input = child.stdin.take().expect("a pipe");
    input.write_all(&hello.to_bytes()).expect("written");
    let mut words = String::new();
    child.stderr.take().expect("a pipe").read_to_string(&mut words).expect("its last words");
    assert_eq!(child.wait().expect("it ends").code(), Some(i32::from(exit_code::NODE_GONE)));
    assert!(words.contains("is gone"), "{words}");
}

/// The node is killed with no chance to close anything, while the engine hangs: the kernel ends the worker.
#[cfg(target_os = "linux")]
#[test]
fn the_worker_dies_with_a_node_that_is_killed() {
    // A shell stands for the node: it starts a worker whose pipes others hold open, prints its id and is killed.
    let dir = tempfile::tempdir().expect("a folder");
    let fifo = dir.path().join("input");
    assert!(Command::new("mkfifo").arg(&fifo).status().expect("mkfifo").success());
    let script = format!(
        "exec 3<>{fifo}; {worker} <&3 >/dev/null & echo $!; read wait",
        fifo = fifo.display(),
        worker = worker_binary().display()
    );
    let mut shell = Command::new("sh")
        .args(["-c", &script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("a shell");
    // Keeps the pipe open when the shell is gone, so that the worker sees no end of input.
    let keep = std::fs::OpenOptions::new().read(true).write(true).open(&fifo).expect("the pipe");
    let mut line = String::new();
    let mut reader = std::io::BufReader::new(shell.stdout.take().expect("a pipe"));
    std::io::BufRead::read_line(&mut reader, &mut line).expect("the worker's id");
    let worker: u32 = line.trim().parse().expect("a number");
    let children = |id: u32| PathBuf::from(format!("/proc/{id}/stat"));
    // It has asked to die with its parent once it waits for hello on its private handle.
    wait_until("the worker has moved its pipes", || {
        std::fs::read_link(format!("/proc/{worker}/fd/0")).is_ok_and(|to| to == Path::new("/dev/null"))
    });
    wait_until("the worker waits for its node", || {
        std::fs::read_to_string(children(worker)).is_ok_and(|stat| stat.contains(") S "))
    });
    shell.kill().expect("killed");
    shell.wait().expect("ended");
    wait_until("the worker is gone", || {
        std::fs::read_to_string(children(worker)).map_or(true, |stat| stat.contains(") Z "))
    });
    drop(keep);
}

#[cfg(target_os = "linux")]
fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = std::time::Instant::now() + engine_testkit::worker::ANSWER_TIMEOUT;
    while !holds() {
        assert!(std::time::Instant::now() < deadline, "{what}: not in time");
        std::thread::park_timeout(std::time::Duration::from_millis(10));
    }
}

#[test]
fn an_engine_of_before_is_opened_and_never_asked_for_what_it_does_not_know() {
    let dir = tempfile::tempdir().expect("a folder");
    // It knows neither the field nor what it would have to refuse.
    let old = [
        ("table.c", "LLMR_ABI_MAJOR, LLMR_ABI_MINOR, 0, info", "LLMR_ABI_MAJOR, 0, 0, info"),
        ("submit.c", "submit->struct_size < sizeof *submit", "1"),
        ("model.c", "out->struct_size >= sizeof *out", "0"),
    ];
    let engine = changed_echo(dir.path(), &old);
    let mut worker = loaded(&engine, dir.path());
    let embed = Submit { task: Task::Embed, ..submit(1) };
    let refused = worker.run(embed).expect("an answer");
    let status = refused.failure().expect("it is refused");
    assert_eq!((status.code, status.reason.as_str()), (StatusCode::Unsupported, "no_embeddings"), "{status}");
    assert!(status.message.contains("1.0"), "{status}");
    let constraint = Some(Constraint::JsonSchema("{}".to_owned()));
    let sampling = Sampling { constraint, ..Sampling::default() };
    let constrained = Submit { task: Task::Generate(Box::new(sampling)), ..submit(3) };
    let refused = worker.run(constrained).expect("an answer");
    let status = refused.failure().expect("it is refused");
    assert_eq!((status.reason.as_str(), status.param.as_deref()), ("invalid_sampling", Some("constraint")));
    let reply = worker.run(submit(2)).expect("an answer");
    assert_eq!(reply.text(), b"hello");
}
