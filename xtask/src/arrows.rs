//! Which package of ours may import which. A new arrow is a line here that a reviewer sees.

use anyhow::{Result, bail};

use crate::metadata::Metadata;

struct Room {
    package: &'static str,
    may_import: &'static [&'static str],
    /// Beyond the above, in tests only.
    tests_may_import: &'static [&'static str],
}

const fn room(package: &'static str, may_import: &'static [&'static str]) -> Room {
    Room { package, may_import, tests_may_import: &[] }
}

const fn tested(
    package: &'static str,
    may_import: &'static [&'static str],
    tests_may_import: &'static [&'static str],
) -> Room {
    Room { package, may_import, tests_may_import }
}

const ROOMS: &[Room] = &[
    // Contracts and formats know nobody above them.
    room("engine-abi", &[]),
    room("engine-protocol", &[]),
    room("openai-api", &[]),
    room("telemetry", &[]),
    room("model-formats", &[]),
    room("model-manifest", &["model-formats"]),
    room("node-api", &["model-manifest"]),
    room("admin-api", &["model-manifest", "node-api"]),
    room("grammar", &[]),
    // Libraries over them.
    room("engine-sdk", &["engine-abi", "grammar"]),
    tested("chat", &[], &["engine-sdk"]),
    room("template-sandbox", &["chat", "grammar"]),
    room("template-sandbox", &["chat"]),
    room("dispatch", &["node-api"]),
    tested("model-store", &["model-manifest", "model-formats"], &["fixture-hub"]),
    tested("engine-worker", &["engine-abi", "engine-protocol", "telemetry"], &["engine-testkit"]),
    // Services.
    tested(
        "router",
        &[
            "admin-api",
            "openai-api",
            "node-api",
            "dispatch",
            "chat",
            "grammar",
            "template-sandbox",
            "model-formats",
            "model-manifest",
            "model-store",
            "telemetry",
        ],
        &["fixture-hub"],
    ),
    tested(
        "node",
        &["node-api", "model-manifest", "model-store", "engine-protocol", "telemetry"],
        &["fixture-hub", "engine-testkit"],
    ),
    room(
        "llm-router",
        &[
            "admin-api",
            "router",
            "node",
            "engine-worker",
            "chat",
            "template-sandbox",
            "telemetry",
            "model-manifest",
            "model-store",
            "node-api",
            "openai-api",
        ],
    ),
    // Engines: never router or node.
    tested("echo", &["engine-sdk", "model-formats"], &["engine-testkit"]),
    // Puts its faults in front of the SDK's table.
    room("fault", &["engine-sdk", "engine-abi"]),
    room("gpt-oss-model", &["model-formats"]),
    tested("gpt-oss-cpu", &["gpt-oss-model", "model-formats"], &["gpt-oss-synth"]),
    // Both choose tokens on the device, as the SDK's sampler does.
    tested("gpt-oss-wgpu", &["engine-sdk", "gpt-oss-model", "model-formats"], &["gpt-oss-synth"]),
    tested("gpt-oss-cuda", &["engine-sdk", "gpt-oss-model", "model-formats"], &["engine-testkit"]),
    room("gpt-oss-cuda-check", &["engine-sdk", "gpt-oss-cpu", "gpt-oss-cuda", "gpt-oss-model"]),
    tested(
        "gpt-oss-plugin",
        &["engine-sdk", "model-formats", "gpt-oss-model", "gpt-oss-cpu", "gpt-oss-cuda", "gpt-oss-wgpu"],
        &["engine-testkit", "gpt-oss-synth"],
    ),
    // Shipped: tries the engine and its kernels on somebody's machine.
    room(
        "gpt-oss-selftest",
        &["engine-sdk", "gpt-oss-plugin", "gpt-oss-cpu", "gpt-oss-cuda", "gpt-oss-wgpu", "model-formats"],
    ),
    room("gpt-oss-synth", &["gpt-oss-model", "model-formats"]),
    tested(
        "llama-cpp",
        &["engine-sdk", "model-formats"],
        &["engine-testkit", "engine-protocol", "gpt-oss-model", "gpt-oss-synth"],
    ),
    // What tests stand on.
    room("fixture-hub", &[]),
    room("engine-testkit", &["engine-abi", "engine-protocol", "model-formats"]),
    room(
        "system-tests",
        &[
            "admin-api",
            "fixture-hub",
            "engine-testkit",
            "node-api",
            "model-manifest",
            "engine-protocol",
            "gpt-oss-synth",
            "model-formats",
        ],
    ),
    room("xtask", &[]),
    // Stands where the router stands, and where a node does; runs engines in its own process to compare, and gpt-oss with its
    // kernels to measure them.
    room(
        "bench",
        &[
            "node-api",
            "model-manifest",
            "model-formats",
            "engine-sdk",
            "echo",
            "fixture-hub",
            "gpt-oss-cpu",
            "gpt-oss-plugin",
        ],
    ),
];

pub fn check(metadata: &Metadata) -> Result<()> {
    let mut complaints = Vec::new();
    for package in metadata.members() {
        let Some(room) = ROOMS.iter().find(|r| r.package == package.name) else {
            complaints.push(format!("{} has no line in xtask/src/arrows.rs", package.name));
            continue;
        };
        for dependency in package.dependencies.iter().filter(|d| d.path.is_some()) {
            let name = dependency.name.as_str();
            let in_tests = dependency.kind.as_deref() == Some("dev");
            let allowed =
                room.may_import.contains(&name) || (in_tests && room.tests_may_import.contains(&name));
            if !allowed {
                let place = if in_tests { " in tests" } else { "" };
                complaints.push(format!("{} may not import {name}{place}", package.name));
            }
        }
    }
    let gone = ROOMS.iter().filter(|r| !metadata.members().iter().any(|p| p.name == r.package));
    complaints
        .extend(gone.map(|r| format!("{} has a line in xtask/src/arrows.rs and no package", r.package)));
    if complaints.is_empty() {
        return Ok(());
    }
    bail!(
        "{}\nhint: the arrows are a decision; ARCHITECTURE.md says why, xtask/src/arrows.rs lists them",
        complaints.join("\n")
    )
}
