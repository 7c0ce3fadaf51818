//! The demo model, which is in this program, through the engine as a worker has it: its recorded answers, token for token, and
//! how long a token takes.

use std::path::Path;
use std::time::Instant;

use engine_sdk::{
    Engine, EventKind, ModelFile, ModelFiles, Progress, Prompt, Runner, Sampling, SequenceId, Settings,
};
use gpt_oss_plugin::GptOss;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::report::Report;

const INDEX: &str = "model.safetensors.index.json";

macro_rules! demo_file {
    ($name:literal) => {
        ($name, include_bytes!(concat!("../../../../assets/demo-model/", $name)) as &[u8])
    };
}

/// What the engine reads of the demo model.
const FILES: [(&str, &[u8]); 6] = [
    demo_file!("config.json"),
    demo_file!("generation_config.json"),
    demo_file!("model.safetensors.index.json"),
    demo_file!("model-00000-of-00001.safetensors"),
    demo_file!("model-00001-of-00001.safetensors"),
    demo_file!("tokenizer.json"),
];
const REFERENCE: &[u8] = include_bytes!("../../../../assets/demo-model/reference.json");
/// Conversations that are answered on a software adapter; elsewhere all are.
const ON_SOFTWARE: usize = 3;
/// Tokens of the answer whose speed is measured; fewer on a software adapter.
const MEASURED_TOKENS: u32 = 256;
const MEASURED_ON_SOFTWARE: u32 = 16;
const CONTEXT: u32 = 768;
/// Steps that no answer needs.
const STEPS_MAX: usize = 20_000;

#[derive(Deserialize)]
struct Reference {
    prompts: Vec<Conversation>,
}

#[derive(Deserialize)]
struct Conversation {
    name: String,
    prompt: String,
    completion_token_ids: Vec<u32>,
}

type Loaded = Runner<<GptOss as Engine>::Model>;

pub fn answers(device: &str, is_software: bool, report: &mut Report) {
    let mut loaded = None;
    report.check("demo model, load", || {
        let (dir, runner) = load(device, is_software)?;
        let bytes: u64 = runner.memory().devices.iter().map(|part| part.bytes).sum();
        loaded = Some((dir, runner));
        Ok((format!("{bytes} bytes on {device}"), json!({ "bytes": bytes })))
    });
    let Some((_dir, mut runner)) = loaded else { return };
    let reference: Reference = serde_json::from_slice(REFERENCE).expect("it is in the tree, and tested");
    let count = if is_software { ON_SOFTWARE } else { reference.prompts.len() };
    let conversations = &reference.prompts[..count.min(reference.prompts.len())];
    report.check("demo model, answers", || same(&mut runner, conversations));
    report.check("demo model, speed", || {
        decode(&mut runner, if is_software { MEASURED_ON_SOFTWARE } else { MEASURED_TOKENS })
    });
}

/// The files, written where they can be mapped, and the model.
fn load(device: &str, is_software: bool) -> Result<(tempfile::TempDir, Loaded), String> {
    let dir = tempfile::tempdir().map_err(|error| format!("no folder for the demo model: {error}"))?;
    let mut files = Vec::new();
    for (name, bytes) in FILES {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).map_err(|error| format!("cannot write {}: {error}", path.display()))?;
        files.push(ModelFile { name: name.to_owned(), path });
    }
    let settings = Settings {
        devices: vec![device.to_owned()],
        context_length: Some(CONTEXT),
        sequences_max: Some(4),
        options_json: if is_software { r#"{"allow_software": true}"#.to_owned() } else { String::new() },
        ..Settings::default()
    };
    let mut report = |_, _| true;
    let model =
        GptOss::load(&model_files(dir.path(), files), &settings, &[], &mut Progress::new(&mut report))
            .map_err(|status| status.to_string())?;
    let runner = Runner::new(model).map_err(|status| status.to_string())?;
    Ok((dir, runner))
}

fn model_files(dir: &Path, files: Vec<ModelFile>) -> ModelFiles {
    ModelFiles {
        id: "demo-model".to_owned(),
        format: "safetensors".to_owned(),
        architecture: "gpt_oss".to_owned(),
        runtime: "gpt-oss".to_owned(),
        dir: dir.to_owned(),
        primary: INDEX.to_owned(),
        files,
    }
}

/// All at once, four running at a time.
fn same(runner: &mut Loaded, conversations: &[Conversation]) -> Result<(String, Value), String> {
    let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
    for (sequence, conversation) in (1..).zip(conversations) {
        let prompt = Prompt::Text { text: conversation.prompt.clone(), literal: Vec::new() };
        runner.submit(sequence, prompt, greedy.clone()).map_err(|status| status.to_string())?;
    }
    let mut answers = vec![Vec::new(); conversations.len()];
    run(runner, |sequence, id| answers[sequence as usize - 1].push(id))?;
    let mut tokens = 0;
    for (conversation, got) in conversations.iter().zip(&answers) {
        let want = &conversation.completion_token_ids;
        if got != want {
            let at = got.iter().zip(want).take_while(|(a, b)| a == b).count();
            return Err(format!(
                "{}: token {at} is {:?}, recorded was {:?}",
                conversation.name,
                got.get(at),
                want.get(at)
            ));
        }
        tokens += want.len();
    }
    let found = format!("{} of the recorded ones, {tokens} tokens, all the same", conversations.len());
    Ok((found, json!({ "answers": conversations.len(), "tokens": tokens })))
}

/// One answer alone, its end ignored.
fn decode(runner: &mut Loaded, tokens: u32) -> Result<(String, Value), String> {
    let endless =
        Sampling { temperature: 0.0, ignore_end_tokens: true, tokens_max: tokens, ..Sampling::default() };
    let prompt = Prompt::Tokens((0..64).map(|n| n * 29 % 1900).collect());
    runner.submit(1, prompt, endless).map_err(|status| status.to_string())?;
    let (mut first, mut count) = (None, 0u32);
    run(runner, |_, _| {
        count += 1;
        first.get_or_insert_with(Instant::now);
    })?;
    let seconds = first.map_or(f64::NAN, |first| first.elapsed().as_secs_f64());
    let speed = f64::from(count.saturating_sub(1)) / seconds;
    let found =
        format!("{speed:.0} tokens/s alone; so small a model shows what a step costs besides its weights");
    Ok((found, json!({ "tokens": count, "tokens_per_second": speed })))
}

/// Until nothing runs any more.
fn run(runner: &mut Loaded, mut token: impl FnMut(SequenceId, u32)) -> Result<(), String> {
    let mut report = |_, _| true;
    for _ in 0..STEPS_MAX {
        let mut failed = None;
        let left = runner.step(&mut Progress::new(&mut report), &mut |event| match &event.kind {
            EventKind::Token { id, .. } => token(event.sequence, *id),
            EventKind::Failed(status) => failed = Some(status.to_string()),
            EventKind::Started { .. } | EventKind::Embedding(_) | EventKind::Finished { .. } => {}
        });
        let left = left.map_err(|status| status.to_string())?;
        if let Some(why) = failed {
            return Err(why);
        }
        if left == 0 {
            return Ok(());
        }
    }
    Err(format!("still running after {STEPS_MAX} steps"))
}
