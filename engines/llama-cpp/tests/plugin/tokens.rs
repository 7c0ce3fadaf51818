//! Tokens of each family: literal ranges, control flags, end tokens, answers that do not depend on what runs beside.

use engine_protocol::{LiteralRange, Sampling, ToWorker};
use engine_testkit::worker::Reply;
use gpt_oss_synth::Family;

use crate::{family, greedy, llama_cpp_is_missing, load, submit, text};

/// Ids of the families' files, behind 600 ordinary tokens.
const BEGIN: u32 = 600;
const END: u32 = 601;
const ADDED: u32 = 602;

#[test]
fn control_spellings_are_tokens_outside_of_literal_ranges_only() {
    if llama_cpp_is_missing() {
        return;
    }
    for of in Family::ALL {
        let dir = family(of);
        let (mut bench, loaded) = load(dir.path(), 256);
        assert_eq!((loaded.end_tokens, loaded.vocabulary_size), (vec![END], 603), "{of:?}");
        let mut ids = |text: &str, literal: &[(u32, u32)]| {
            let literal: Vec<LiteralRange> =
                literal.iter().map(|&(start, end)| LiteralRange { start, end }).collect();
            bench.worker.tokenize(text, &literal).unwrap().unwrap()
        };
        let said = "<|begin|>so <tool><|end_of_turn|>";
        let all = ids(said, &[]);
        assert_eq!((all[0], all[all.len() - 1]), (BEGIN, END));
        assert!(all.contains(&ADDED));
        let none = ids(said, &[(0, said.len() as u32)]);
        assert!(none.iter().all(|id| *id < BEGIN), "{none:?}");
        let half = ids(said, &[(0, 3)]);
        assert!(!half.contains(&BEGIN) && half.contains(&END), "{half:?}");
        // Ordinary text is the same whether it is literal or not.
        assert_eq!(ids("one two  three", &[]), ids("one two  three", &[(4, 9)]));
        bench.finish().unwrap();
    }
}

/// llama.cpp sums in another order for one row than for several, and keys and values are half floats.
const LOGPROB_ROUNDING: f32 = 0.02;

#[test]
fn an_answer_does_not_depend_on_what_runs_beside_it_beyond_rounding() {
    if llama_cpp_is_missing() {
        return;
    }
    for of in Family::ALL {
        let dir = family(of);
        let (mut bench, _) = load(dir.path(), 256);
        let prompts = ["the first of them", "a second one that is somewhat longer", "third"];
        let ask = |n, prompt| {
            let sampling = Sampling { logprobs: Some(5), ..greedy(24) };
            submit(n, text(prompt), sampling)
        };
        let alone: Vec<Reply> =
            (1u64..).zip(prompts).map(|(n, prompt)| bench.worker.run(ask(n, prompt)).unwrap()).collect();
        let messages: Vec<ToWorker> =
            (11u64..).zip(prompts).map(|(n, prompt)| ToWorker::Submit(Box::new(ask(n, prompt)))).collect();
        bench.worker.send_all(&messages).unwrap();
        for (n, alone) in (11u64..).zip(&alone) {
            let beside = bench.worker.collect(n).unwrap();
            for (a, b) in alone.tokens().zip(beside.tokens()) {
                let of_its = |id: u32| b.logprobs.iter().find(|l| l.id == id).map(|l| l.logprob);
                let (its, other) = (of_its(b.id).unwrap(), of_its(a.id));
                assert!(
                    other.is_some_and(|other| its - other < LOGPROB_ROUNDING),
                    "{of:?} {n}: {} alone, {} beside others; {:?}",
                    a.id,
                    b.id,
                    b.logprobs
                );
                if a.id != b.id {
                    break;
                }
            }
        }
        bench.finish().unwrap();
    }
}
