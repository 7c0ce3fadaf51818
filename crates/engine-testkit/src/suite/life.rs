//! From hello to the end of the process.

use anyhow::{Context as _, Result, bail, ensure};
use engine_protocol::{
    DeviceBytes, Estimate, EventKind, FinishReason, Loaded, Open, PROTOCOL_VERSION, Phase, Settings,
    StatusCode, ToNode, ToWorker,
};

use super::bench::{Bench, CONTEXT, PROMPT, endless, settings, submit};
use super::{Case, Outcome, Subject};

pub const CASES: [Case; 13] = [
    Case { name: "hello_comes_first", promise: "the worker says its version and process id", run: hello },
    Case {
        name: "info_agrees_with_manifest",
        promise: "id, version and devices are the manifest's",
        run: info,
    },
    Case {
        name: "wrong_identity_is_refused",
        promise: "a library of another id or version than the manifest's is not used",
        run: wrong_identity,
    },
    Case {
        name: "estimate_has_every_device",
        promise: "estimate names devices that exist, and is the same each time",
        run: estimate,
    },
    Case { name: "load_keeps_to_its_settings", promise: "load gives at most what was asked for", run: load },
    Case {
        name: "load_keeps_to_its_budget",
        promise: "what is loaded needs at most the budget, and too small a budget is refused with both numbers",
        run: budget,
    },
    Case { name: "load_reports_progress", promise: "progress is reported and never falls", run: progress },
    Case { name: "load_can_be_cancelled", promise: "a progress callback can stop a load", run: cancel_load },
    Case { name: "second_load_is_refused", promise: "one model at a time", run: second_load },
    Case {
        name: "failed_load_leaves_nothing",
        promise: "a load that failed can be followed by one that works",
        run: failed_load,
    },
    Case { name: "nothing_works_before_load", promise: "tokenize and submit need a model", run: before_load },
    Case {
        name: "shutdown_ends_everything",
        promise: "running sequences end as cancelled and the process with 0",
        run: shutdown,
    },
    Case { name: "the_worker_ends_with_its_node", promise: "a closed pipe ends the process", run: node_gone },
];

fn hello(subject: &Subject) -> Result<Outcome> {
    let bench = Bench::start(subject)?;
    ensure!(bench.worker.hello.protocol_version == PROTOCOL_VERSION, "{:?}", bench.worker.hello);
    ensure!(bench.worker.hello.process_id == bench.worker.process_id(), "{:?}", bench.worker.hello);
    bench.finish()
}

fn info(subject: &Subject) -> Result<Outcome> {
    let mut bench = Bench::start(subject)?;
    let info = bench.worker.open(&subject.engine_dir)?.context("the engine does not open")?;
    ensure!(info.id == bench.manifest.id && info.version == bench.manifest.version, "{info:?}");
    ensure!(info.abi_major == 1, "ABI {}.{}", info.abi_major, info.abi_minor);
    for device in &info.devices {
        let kind = device.id.split(':').next().unwrap_or_default();
        ensure!(kind == device.kind, "device {} is of the kind {}", device.id, device.kind);
        ensure!(
            bench.manifest.devices.contains(&device.kind),
            "device {} is there, and manifest.json lists {:?} only",
            device.id,
            bench.manifest.devices
        );
        ensure!(!device.name.is_empty(), "device {} has no name", device.id);
    }
    bench.finish()
}

fn wrong_identity(subject: &Subject) -> Result<Outcome> {
    let mut bench = Bench::start(subject)?;
    let library = bench.manifest.library_path(&subject.engine_dir)?;
    let open = Open {
        library: library.to_str().context("a path that is not UTF-8")?.to_owned(),
        engine_id: bench.manifest.id.clone(),
        engine_version: format!("{}-other", bench.manifest.version),
        log_level: engine_protocol::LogLevel::Info,
    };
    let Err(status) = bench.worker.open_as(open)? else { bail!("a library of another version was opened") };
    ensure!(status.code == StatusCode::AbiMismatch && status.reason == "manifest_mismatch", "{status}");
    bench.finish()
}

fn estimate(subject: &Subject) -> Result<Outcome> {
    let mut bench = Bench::start(subject)?;
    let info = bench.worker.open(&subject.engine_dir)?.context("the engine does not open")?;
    let settings = settings(CONTEXT, 2);
    let first = bench.worker.estimate(&bench.model, &settings)?.context("no estimate")?;
    ensure!(!first.devices.is_empty(), "an estimate without a device");
    ensure!(first.context_length_max > 0, "a model without context");
    for need in &first.devices {
        ensure!(
            info.devices.iter().any(|d| d.id == need.device),
            "the estimate names the device {}, which the engine does not have",
            need.device
        );
        ensure!(need.kv_per_token > 0 || need.kv_fixed > 0, "sequences on {} need no KV", need.device);
    }
    let second = bench.worker.estimate(&bench.model, &settings)?.context("no second estimate")?;
    ensure!(first == second, "two estimates differ: {first:?} and {second:?}");
    bench.worker.load(&bench.model, &settings, &[])?.context("the model does not load")?;
    let third = bench.worker.estimate(&bench.model, &settings)?.context("no estimate while loaded")?;
    ensure!(first == third, "the estimate changed with the load: {first:?} and {third:?}");
    bench.finish()
}

fn load(subject: &Subject) -> Result<Outcome> {
    let (bench, loaded) = Bench::load(subject, &settings(CONTEXT, 2))?;
    ensure!(
        (1..=CONTEXT).contains(&loaded.context_length),
        "context {} for {CONTEXT}",
        loaded.context_length
    );
    ensure!((1..=2).contains(&loaded.sequences_max), "{} sequences for 2", loaded.sequences_max);
    ensure!(loaded.vocabulary_size > 0, "no vocabulary");
    ensure!(!loaded.end_tokens.is_empty(), "nothing ends an answer");
    let outside = loaded.end_tokens.iter().find(|id| **id >= loaded.vocabulary_size);
    ensure!(outside.is_none(), "end token {outside:?} of a vocabulary of {}", loaded.vocabulary_size);
    bench.finish()
}

/// Bytes the host would add up, per device. Mapped weights do not count.
fn needed(estimate: &Estimate, context: u32, sequences: u32) -> Vec<DeviceBytes> {
    let bytes = |n: &engine_protocol::DeviceNeed| {
        let sequence = n.per_sequence + n.kv_fixed + n.kv_per_token * u64::from(context);
        n.weights + n.workspace + u64::from(sequences) * sequence
    };
    estimate.devices.iter().map(|n| DeviceBytes { device: n.device.clone(), bytes: bytes(n) }).collect()
}

fn budget(subject: &Subject) -> Result<Outcome> {
    let mut bench = Bench::open(subject)?;
    let asked = settings(CONTEXT, 4);
    let estimate = bench.worker.estimate(&bench.model, &asked)?.context("no estimate")?;
    let nothing: Vec<DeviceBytes> =
        needed(&estimate, 1, 1).into_iter().map(|b| DeviceBytes { bytes: 1, ..b }).collect();
    match bench.worker.load(&bench.model, &asked, &nothing)? {
        Ok(loaded) => bail!("a model was loaded into one byte: {loaded:?}"),
        Err(status) => {
            ensure!(matches!(status.code, StatusCode::OomVram | StatusCode::OomRam), "{status}");
            ensure!(status.needed > status.available, "the numbers do not explain it: {status}");
        }
    }
    // Granted what the estimate of the same settings says, it loads.
    let loaded = within(&mut bench, &asked, CONTEXT, 4)?;
    ensure!(
        (loaded.context_length, loaded.sequences_max) == (CONTEXT, 4),
        "the budget was enough for what was asked, and it loaded {loaded:?}"
    );
    bench.finish()?;
    // What is left open is chosen to fit.
    let mut bench = Bench::open(subject)?;
    within(&mut bench, &Settings::default(), CONTEXT, 1)?;
    bench.finish()
}

/// Loads with a budget for `sequences` of `context` tokens and checks that what is loaded fits it.
fn within(bench: &mut Bench, settings: &Settings, context: u32, sequences: u32) -> Result<Loaded> {
    let estimate = bench.worker.estimate(&bench.model, settings)?.context("no estimate")?;
    let granted = needed(&estimate, context, sequences);
    let loaded = bench
        .worker
        .load(&bench.model, settings, &granted)?
        .with_context(|| format!("granted {granted:?} by its own estimate, {settings:?} does not load"))?;
    // Workspace may depend on what was chosen, so the estimate is asked again.
    let chosen = Settings {
        context_length: loaded.context_length,
        sequences_max: loaded.sequences_max,
        ..settings.clone()
    };
    let estimate = bench.worker.estimate(&bench.model, &chosen)?.context("no estimate")?;
    for (used, granted) in needed(&estimate, loaded.context_length, loaded.sequences_max).iter().zip(&granted)
    {
        ensure!(used.bytes <= granted.bytes, "{loaded:?} needs {used:?}, and {granted:?} was granted");
    }
    Ok(loaded)
}

fn progress(subject: &Subject) -> Result<Outcome> {
    let mut bench = Bench::open(subject)?;
    let call = bench.worker.start_load(&bench.model, &settings(CONTEXT, 1), &[])?;
    let (mut reports, mut last) = (0, 0);
    loop {
        match bench.worker.next_message()? {
            ToNode::Progress { phase: Phase::Load, done, .. } => {
                ensure!(done >= last, "progress fell from {last} to {done}");
                (reports, last) = (reports + 1, done);
            }
            ToNode::Loaded { call: c, .. } if c == call => break,
            ToNode::Failed { status, .. } => bail!("the model does not load: {status}"),
            _ => {}
        }
    }
    ensure!(reports > 0, "a load without a report of progress");
    bench.finish()
}

fn cancel_load(subject: &Subject) -> Result<Outcome> {
    let mut bench = Bench::open(subject)?;
    let load = ToWorker::Load {
        call: 77,
        model: bench.model.clone(),
        settings: settings(CONTEXT, 1),
        budget: Vec::new(),
    };
    // Read together, so the load's first report is answered with "stop".
    bench.worker.send_all(&[load, ToWorker::Shutdown])?;
    let answer = bench.worker.wait_for(|message| match message {
        ToNode::Loaded { call: 77, .. } => Ok(None),
        ToNode::Failed { call: 77, status } => Ok(Some(status)),
        other => Err(other),
    })?;
    match answer {
        Some(status) if status.code == StatusCode::Cancelled => {}
        other => bail!("a load that was told to stop ended in {other:?}"),
    }
    let status = bench.worker.wait_exit()?;
    ensure!(status.success(), "the worker ended with {status}");
    Ok(Outcome::Passed)
}

fn second_load(subject: &Subject) -> Result<Outcome> {
    let (mut bench, _) = Bench::ready(subject)?;
    let Err(status) = bench.worker.load(&bench.model, &settings(CONTEXT, 1), &[])? else {
        bail!("a second model was loaded over the first")
    };
    ensure!(
        status.code == StatusCode::Unsupported && status.reason == "model_already_loaded",
        "expected UNSUPPORTED (model_already_loaded), got {status}"
    );
    bench.run_text(1, PROMPT, endless(2)).context("after a refused load")?;
    bench.finish()
}

fn failed_load(subject: &Subject) -> Result<Outcome> {
    let mut bench = Bench::open(subject)?;
    let empty = tempfile::tempdir()?;
    let broken = empty.path().join("broken");
    std::fs::write(&broken, "{")?;
    let mut model = bench.model.clone();
    // A GGUF file says of itself what it is.
    let name = if model.format == "gguf" { model.primary.clone() } else { "config.json".to_owned() };
    let file = model.files.iter_mut().find(|(n, _)| *n == name).with_context(|| format!("no {name}"))?;
    file.1 = broken.to_str().context("a path that is not UTF-8")?.to_owned();
    let Err(status) = bench.worker.load(&model, &settings(CONTEXT, 1), &[])? else {
        bail!("a model with a broken {name} was loaded")
    };
    ensure!(
        matches!(status.code, StatusCode::ModelCorrupt | StatusCode::LoadFailed),
        "expected MODEL_CORRUPT or LOAD_FAILED for a broken {name}, got {status}"
    );
    bench.worker.load(&bench.model, &settings(CONTEXT, 1), &[])?.context("after a load that failed")?;
    bench.run_text(1, PROMPT, endless(2))?;
    bench.finish()
}

fn before_load(subject: &Subject) -> Result<Outcome> {
    let mut bench = Bench::open(subject)?;
    match bench.worker.tokenize("text", &[])? {
        Err(status) if status.reason == "model_not_loaded" => {}
        other => bail!("tokenize without a model: {other:?}"),
    }
    bench.refused("a submit without a model", submit(1, PROMPT, endless(1)), "model_not_loaded")?;
    bench.finish()
}

fn shutdown(subject: &Subject) -> Result<Outcome> {
    let (mut bench, _) = Bench::load(subject, &Settings::default())?;
    // Read together, so it is running when the end comes.
    let submit = ToWorker::Submit(Box::new(submit(1, PROMPT, endless(0))));
    bench.worker.send_all(&[submit, ToWorker::Shutdown])?;
    let reply = bench.worker.collect(1)?;
    ensure!(
        matches!(reply.last(), EventKind::Finished { reason: FinishReason::Cancelled, .. }),
        "a running sequence ended with {:?}",
        reply.last()
    );
    let status = bench.worker.wait_exit()?;
    ensure!(status.success(), "the worker ended with {status}; stderr: {:?}", bench.worker.stderr_lines());
    Ok(Outcome::Passed)
}

fn node_gone(subject: &Subject) -> Result<Outcome> {
    let (mut bench, _) = Bench::ready(subject)?;
    bench.worker.close_input();
    let status = bench.worker.wait_exit()?;
    ensure!(!status.success(), "the node went away without a word, and the worker ended with 0");
    Ok(Outcome::Passed)
}
