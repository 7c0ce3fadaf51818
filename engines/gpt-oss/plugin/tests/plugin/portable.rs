//! The engine on an adapter, software where there is no other.

use super::*;

fn settings(options: &str) -> Settings {
    Settings {
        devices: vec!["vulkan:0".into()],
        context_length: Some(512),
        sequences_max: Some(2),
        batch_tokens_max: Some(96),
        options_json: options.to_owned(),
        ..Settings::default()
    }
}

/// None where there is no Vulkan at all.
pub(super) fn loaded(files: &ModelFiles) -> Option<Runner<<GptOss as Engine>::Model>> {
    match load(files, &settings(r#"{"allow_software": true}"#)) {
        Ok(runner) => Some(runner),
        Err(status) if status.message.contains("no device vulkan:0") => {
            println!("skipped: {status}");
            None
        }
        Err(status) => panic!("{status}"),
    }
}

#[test]
fn two_conversations_side_by_side_are_answered_as_recorded_and_the_estimate_holds() {
    let Some(mut runner) = loaded(&demo()) else { return };
    let names = ["sum", "developer_one_word"];
    let conversations: Vec<Conversation> =
        conversations().into_iter().filter(|c| names.contains(&c.name.as_str())).collect();
    let mut answers = vec![Answer::default(); conversations.len()];
    for (sequence, conversation) in (1..).zip(&conversations) {
        let prompt = Prompt::Tokens(conversation.prompt_token_ids.clone());
        runner.submit(sequence, prompt, greedy()).unwrap();
    }
    run(&mut runner, &mut answers);
    for (answer, conversation) in answers.iter().zip(&conversations) {
        assert_eq!(answer.ids, conversation.completion_token_ids, "{}", conversation.name);
    }
    let estimate = GptOss::estimate(&demo(), &settings(r#"{"allow_software": true}"#)).unwrap();
    let need = &estimate.devices[0];
    let estimated = need.weights + need.workspace + 2 * (need.kv_fixed + 512 * need.kv_per_token);
    assert_eq!(runner.memory().devices[0].bytes, estimated);
}

#[test]
fn options_of_other_devices_are_refused_by_name() {
    let refused = load(&demo(), &settings(r#"{"isa": "avx2"}"#)).err().unwrap();
    assert!(refused.message.contains("option isa"), "{refused}");
}
