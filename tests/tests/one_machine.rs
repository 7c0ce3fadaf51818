//! `up`, its second start, taken ports, and the commands a person uses.

use std::process::{Command, Output};
use std::time::{Duration, Instant};

use fixture_hub::{FixtureHub, Options};
use serde_json::Value;
use system_tests::reference::{DATE, MODEL};
use system_tests::{Process, repos};

struct Machine {
    dir: tempfile::TempDir,
    hub: FixtureHub,
}

impl Machine {
    async fn new() -> Machine {
        engine_testkit::build::engine_dir("gpt-oss");
        let hub = FixtureHub::start_with(Options::default(), [repos::demo()]).await.expect("the hub listens");
        Machine { dir: tempfile::tempdir().expect("a temporary folder"), hub }
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = system_tests::system::command(self.dir.path(), self.hub.url());
        command.arg("--data-dir").arg(self.dir.path().join("data")).args(words);
        command
    }

    fn up(&self) -> Command {
        let mut command = self.command(&["--json", "up", "--device", "cpu", "--listen", "127.0.0.1:0"]);
        command.args(["--template-clock", DATE, "--exit-with-stdin"]);
        command.arg("--engines-dir").arg(engine_testkit::build::engines_dir());
        command
    }

    /// Runs a command to its end, off the runtime: the hub lives on it.
    async fn run(&self, mut command: Command) -> Output {
        tokio::task::spawn_blocking(move || command.stdin(std::process::Stdio::null()).output())
            .await
            .expect("the wait is not called off")
            .expect("the program starts")
    }

    async fn json(&self, words: &[&str]) -> Value {
        let output = self.run(self.command(words)).await;
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).expect("JSON on stdout")
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn up_add_chat_and_a_second_up() {
    let machine = Machine::new().await;
    let mut first = Process::start(machine.up(), machine.dir.path(), "up");
    let said: Value = serde_json::from_str(&first.first_line().await).expect("JSON");
    let url = said["url"].as_str().expect("an address").to_owned();

    let second = machine.run(machine.up()).await;
    assert!(second.status.success(), "{}", stderr(&second));
    let found: Value = serde_json::from_slice(&second.stdout).expect("JSON");
    assert_eq!((found["url"].as_str(), &found["already_running"]), (Some(url.as_str()), &Value::Bool(true)));

    // The commands find the router through the data folder.
    let model = machine.json(&["--json", "models", "add", MODEL, "--format", "safetensors", "--wait"]).await;
    assert!(model["state"] == "ready", "{model}");
    let listed = machine.json(&["--json", "models", "ls"]).await;
    assert_eq!(listed["models"][0]["id"], MODEL);
    let nodes = machine.json(&["--json", "nodes", "ls"]).await;
    assert_eq!(nodes["nodes"][0]["cpu_only"], true);
    let engines = machine.json(&["--json", "engines", "ls"]).await;
    assert!(
        engines["engines"].as_array().is_some_and(|all| all.iter().any(|e| e["id"] == "gpt-oss")),
        "{engines}"
    );
    for words in [["models", "ls"], ["nodes", "ls"], ["engines", "ls"]] {
        let output = machine.run(machine.command(&words)).await;
        assert!(output.status.success() && !output.stdout.is_empty(), "{words:?}: {}", stderr(&output));
    }
    let show = machine.run(machine.command(&["models", "show", MODEL])).await;
    assert!(String::from_utf8_lossy(&show.stdout).contains("model.safetensors.index.json"));

    let question = ["--json", "chat", MODEL, "What is the capital of France?", "--temperature", "0"];
    let reply = machine.json(&question).await;
    assert_eq!(reply["content"], "The capital of France is Paris.", "{reply}");
    // Once it was loaded it is said which form of the weights runs; the router hears of it a moment later.
    let says = |show: &Output| String::from_utf8_lossy(&show.stdout).contains("runs from the safetensors");
    let mut show = machine.run(machine.command(&["models", "show", MODEL])).await;
    let deadline = Instant::now() + Duration::from_secs(20);
    while !says(&show) && Instant::now() < deadline {
        show = machine.run(machine.command(&["models", "show", MODEL])).await;
    }
    assert!(says(&show), "{}", String::from_utf8_lossy(&show.stdout));
    let unknown = machine.run(machine.command(&["chat", "acme/absent", "Hello!"])).await;
    assert!(!unknown.status.success() && stderr(&unknown).contains("acme/absent"), "{}", stderr(&unknown));

    let removed = machine.json(&["--json", "models", "rm", MODEL]).await;
    assert_eq!(removed["deleted"], true);
    assert!(first.end().await.success());
    // Whichever of the two is first to go: an end that was asked for is nothing to warn of.
    let log = std::fs::read_to_string(machine.dir.path().join("up.log")).expect("its log");
    assert!(log.contains("the node ends") && !log.contains("the router is lost"), "{log}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conversation_through_a_pipe() {
    use std::io::Write as _;
    let machine = Machine::new().await;
    let mut up = Process::start(machine.up(), machine.dir.path(), "up");
    up.first_line().await;
    machine.json(&["--json", "models", "add", MODEL, "--format", "safetensors", "--wait"]).await;
    let mut command = machine.command(&["chat", MODEL, "--temperature", "0"]);
    command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
    let output = tokio::task::spawn_blocking(move || {
        let mut child = command.spawn().expect("the program starts");
        let mut stdin = child.stdin.take().expect("stdin is a pipe");
        stdin
            .write_all(b"My name is Anna.\n/help\nWhat is my name?\n/reset\nHello!\n/quit\n")
            .expect("it reads");
        drop(stdin);
        child.wait_with_output().expect("it ends")
    })
    .await
    .expect("the wait is not called off");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("Your name is Anna."), "{text}");
    assert!(text.ends_with("Hello! How can I help you?\n"), "{text}");
    assert!(!text.contains('\u{1b}'), "no escapes through a pipe");
}

#[tokio::test(flavor = "multi_thread")]
async fn addresses_that_cannot_be_used_are_named() {
    let machine = Machine::new().await;
    let holder = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let taken = holder.local_addr().expect("an address").to_string();
    let busy = machine.run(machine.command(&["serve", "--listen", &taken])).await;
    assert!(!busy.status.success());
    let port = taken.rsplit(':').next().expect("a port");
    assert!(stderr(&busy).contains(port) && stderr(&busy).contains("hint: "), "{}", stderr(&busy));

    let open = machine.run(machine.command(&["serve", "--listen", "0.0.0.0:0"])).await;
    assert!(!open.status.success() && stderr(&open).contains("0.0.0.0"), "{}", stderr(&open));

    let nobody = machine.run(machine.command(&["models", "ls", "--url", "http://127.0.0.1:1"])).await;
    assert!(!nobody.status.success() && stderr(&nobody).contains("llm-router up"), "{}", stderr(&nobody));
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_and_completions() {
    let machine = Machine::new().await;
    let engines = engine_testkit::build::engines_dir().to_string_lossy().into_owned();
    let words = ["--json", "doctor", "--engines-dir", &engines, "--listen", "127.0.0.1:0"];
    let found = machine.json(&words).await;
    let about: Vec<_> =
        found["findings"].as_array().into_iter().flatten().filter_map(|f| f["about"].as_str()).collect();
    for wanted in ["system", "device", "memory", "engine", "data folder", "model cache", "router"] {
        assert!(about.contains(&wanted), "{wanted} is not in {about:?}");
    }
    for shell in ["bash", "zsh", "fish", "powershell"] {
        let output = machine.run(machine.command(&["completions", shell])).await;
        assert!(String::from_utf8_lossy(&output.stdout).contains("llm-router"), "{shell}");
    }
}
