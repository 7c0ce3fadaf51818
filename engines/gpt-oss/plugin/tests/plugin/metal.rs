//! The demo model as `model.metal.bin` beside its safetensors: the same answers, and which of the two runs is said.

use gpt_oss_synth::convert_metal;
use tempfile::TempDir;

use super::*;

const ARTIFACT: &str = "model.metal.bin";

/// The demo model's files with the artifact, which `change` may spoil.
fn with_artifact(change: impl FnOnce(&mut Vec<u8>)) -> (TempDir, ModelFiles) {
    let mut files = demo();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(ARTIFACT);
    convert_metal(&files.dir, &path).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    change(&mut bytes);
    std::fs::write(&path, bytes).unwrap();
    files.files.push(ModelFile { name: ARTIFACT.to_owned(), path });
    (dir, files)
}

fn runs(runner: &Runner<<GptOss as Engine>::Model>) -> String {
    let details: serde_json::Value = serde_json::from_str(&runner.memory().details_json).unwrap();
    details["runs"].as_str().unwrap().to_owned()
}

/// Answers of some conversations, which have to be the recorded ones.
fn answer(runner: &mut Runner<<GptOss as Engine>::Model>, conversations: &[Conversation]) {
    let mut answers = vec![Answer::default(); conversations.len()];
    for (i, conversation) in conversations.iter().enumerate() {
        let prompt = Prompt::Text { text: conversation.prompt.clone(), literal: Vec::new() };
        runner.submit(i as SequenceId + 1, prompt, greedy()).unwrap();
    }
    run(runner, &mut answers);
    for (conversation, answer) in conversations.iter().zip(&answers) {
        assert_eq!(answer.ids, conversation.completion_token_ids, "{}", conversation.name);
    }
}

#[test]
fn the_artifact_runs_where_it_is_there_and_answers_as_the_safetensors_do() {
    let (_dir, files) = with_artifact(|_| {});
    let mut runner = load(&files, &Settings::default()).unwrap();
    assert_eq!(runs(&runner), "runs from model.metal.bin");
    answer(&mut runner, &conversations());
}

#[test]
fn it_can_be_turned_off() {
    let (_dir, files) = with_artifact(|_| {});
    let settings = |word: &str| Settings {
        options_json: format!(r#"{{"artifacts": "{word}"}}"#),
        ..Settings::default()
    };
    let runner = load(&files, &settings("off")).unwrap();
    assert!(runs(&runner).starts_with("runs from the safetensors: the option artifacts is off"));
    let refused = load(&files, &settings("perhaps")).err().unwrap();
    assert!(refused.message.contains("artifacts is \"perhaps\", not one of: on, off"), "{refused}");
    let plain = load(&demo(), &Settings::default()).unwrap();
    assert_eq!(runs(&plain), "runs from the safetensors");
}

#[test]
fn a_broken_one_is_told_and_the_safetensors_answer() {
    let (_dir, files) = with_artifact(|bytes| bytes.truncate(bytes.len() - 16));
    let mut runner = load(&files, &Settings::default()).unwrap();
    let said = runs(&runner);
    assert!(said.starts_with("runs from the safetensors: model.metal.bin cannot be used: "), "{said}");
    assert!(said.contains("bytes"), "{said}");
    answer(&mut runner, &conversations()[..2]);
}

#[test]
fn one_of_another_model_is_told_with_the_field_that_differs() {
    // The number of tokens of the sliding window.
    let (_dir, files) = with_artifact(|bytes| bytes[72] += 1);
    let runner = load(&files, &Settings::default()).unwrap();
    let said = runs(&runner);
    assert!(said.contains("attention_window is 65; config.json says 64"), "{said}");
}

/// What is converted counts as memory, what is mapped does not.
#[test]
fn an_estimate_counts_what_is_converted() {
    let (_dir, files) = with_artifact(|_| {});
    let of = |files: &ModelFiles| GptOss::estimate(files, &Settings::default()).unwrap().devices.remove(0);
    let (artifact, published) = (of(&files), of(&demo()));
    assert_eq!(published.weights, 0);
    assert!(artifact.weights > 0 && artifact.weights_mapped < published.weights_mapped);
    // The rows that a model.bin does not have.
    let all = published.weights_mapped - artifact.weights - artifact.weights_mapped;
    assert_eq!(all, 2 * (2048 - 2016) * 192 * 2);
}

#[test]
fn a_gpu_gives_the_same_tokens() {
    let (_dir, files) = with_artifact(|_| {});
    let Some(mut runner) = portable::loaded(&files) else { return };
    assert_eq!(runs(&runner), "runs from model.metal.bin");
    // One of the shortest: a software adapter is slow.
    let conversations: Vec<Conversation> = conversations().into_iter().filter(|c| c.name == "sum").collect();
    assert_eq!(conversations.len(), 1);
    answer(&mut runner, &conversations);
}
