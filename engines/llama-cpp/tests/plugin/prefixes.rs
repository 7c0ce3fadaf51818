//! What earlier prompts left in the KV is gone on from, by those who may, and changes no answer.

use engine_protocol::{EventKind, Submit};
use engine_testkit::worker::Reply;
use gpt_oss_synth::Family;

use crate::{demo, family, greedy, llama_cpp_is_missing, load, submit, text};

fn cached(reply: &Reply) -> u32 {
    let started = |event: &EventKind| match event {
        EventKind::Started { cached_tokens, .. } => Some(*cached_tokens),
        _ => None,
    };
    reply.events.iter().find_map(started).unwrap()
}

#[test]
fn a_prompt_that_was_read_is_found_by_its_own_salt_alone() {
    if llama_cpp_is_missing() {
        return;
    }
    // One with a window, whose cells are dropped behind it, and one without.
    for dir in [demo(), family(Family::Qwen2)] {
        let (mut bench, _) = load(dir.path(), 512);
        let prompt = "the same beginning of all, which is long enough to be worth it. ";
        let mut ask = |sequence, salt, end: &str| {
            let mut submit: Submit = submit(sequence, text(&format!("{prompt}{end}")), greedy(8));
            submit.cache_salt = salt;
            bench.worker.run(submit).unwrap()
        };
        let first = ask(1, 7, "one");
        assert_eq!(cached(&first), 0);
        let again = ask(2, 7, "one");
        assert!(cached(&again) > 10, "{}", cached(&again));
        let other_end = ask(3, 7, "and two");
        assert!(cached(&other_end) > 10, "{}", cached(&other_end));
        let other_salt = ask(4, 8, "one");
        assert_eq!(cached(&other_salt), 0);
        let tokens = [&first, &again, &other_salt].map(Reply::ids);
        assert_eq!(tokens[0], tokens[1]);
        assert_eq!(tokens[0], tokens[2]);
        let alone = ask(5, 9, "and two");
        assert_eq!(alone.ids(), other_end.ids());
        bench.finish().unwrap();
    }
}
