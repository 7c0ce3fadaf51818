//! The same seeds and sampling parameters in both engines: the demo model's answers through gpt-oss beside those through llama.cpp.
//!
//! Each token of both is drawn here once more, in plain f64, from the logprobs that came with it. Where the engines differ,
//! the random number has to lie within the difference of their probabilities of the border between the two tokens. A repetition
//! penalty changes logits and not probabilities; how far they are apart, the same for all of a row, the model in plain f32 says.

use std::collections::HashMap;

use engine_protocol::{Prompt, Sampling, Settings, Token};
use engine_sdk::philox;
use engine_testkit::build::{engine_dir, workspace_root};
use engine_testkit::suite::{Bench, Subject};
use engine_testkit::worker::Reply;
use gpt_oss_model::{Oracle, Store};

use crate::demo::{LOGIT_ROUNDING, reference};
use crate::{demo, llama_cpp_is_missing, load, settings, submit};

/// As many of the most likely as a reply tells; all that `top_k` leaves is then known here.
const KNOWN: u32 = 20;
const TOKENS: u32 = 16;
const SEEDS: [u64; 4] = [1, 7, 1 << 40, u64::MAX];
/// Logprobs are told in f32.
const TOLD_ROUNDING: f64 = 1e-4;

fn cases() -> [(&'static str, Sampling); 6] {
    let base = Sampling { top_k: KNOWN, logprobs: Some(KNOWN), tokens_max: TOKENS, ..Sampling::default() };
    [
        ("temperature", Sampling { temperature: 1.5, ..base.clone() }),
        ("top_k", Sampling { temperature: 2.0, top_k: 5, ..base.clone() }),
        ("top_p", Sampling { temperature: 1.5, top_p: 0.8, ..base.clone() }),
        ("min_p", Sampling { temperature: 2.0, min_p: 0.1, ..base.clone() }),
        (
            "penalties",
            // A token that falls behind makes room for one that is not told if there is none to spare.
            Sampling {
                temperature: 1.0,
                top_k: 8,
                presence_penalty: 0.7,
                frequency_penalty: 0.9,
                ..base.clone()
            },
        ),
        ("repetition_penalty", Sampling { temperature: 1.2, top_k: 5, repetition_penalty: 1.3, ..base }),
    ]
}

/// What a token is drawn with besides its row.
struct Before<'a> {
    prompt: &'a [u32],
    answered: HashMap<u32, u32>,
    /// What a logprob of this row is below its logit.
    normalizer: f64,
}

/// The normalizers of every row of a reply, by the model in plain f32; nothing where no penalty asks for them.
struct Normalizers(Store<Vec<u8>>);

impl Normalizers {
    fn of(&self, prompt: &[u32], reply: &Reply, sampling: &Sampling) -> Vec<f64> {
        let count = reply.tokens().count();
        if sampling.repetition_penalty == 1.0 {
            return vec![0.0; count];
        }
        let oracle = Oracle::new(self.0.config().clone(), &self.0);
        let mut cache = oracle.new_cache();
        let (last, first) = prompt.split_last().unwrap();
        for token in first {
            oracle.hidden(&mut cache, *token);
        }
        let log_sum_exp = |logits: Vec<f32>| {
            let top = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
            top + logits.iter().map(|logit| (f64::from(*logit) - top).exp()).sum::<f64>().ln()
        };
        let tokens = [*last].into_iter().chain(reply.ids()).take(count);
        tokens.map(|token| log_sum_exp(oracle.forward(&mut cache, token))).collect()
    }
}

/// How far a number may be from where a token is drawn for the rounding of logits: a penalty moves the penalized ones beside the
/// others by this part of what all logits are off by, and a probability by a quarter of that at most.
fn rounding(sampling: &Sampling) -> f64 {
    TOLD_ROUNDING + f64::from(sampling.repetition_penalty - 1.0) * LOGIT_ROUNDING / 4.0
}

/// The tokens that can be drawn, in order of ids, with their probabilities: steps 4 to 7 of the SDK's sampler.
fn possible(token: &Token, sampling: &Sampling, before: &Before<'_>) -> Vec<(u32, f64)> {
    let penalized = |id: u32, logprob: f64| {
        let count = before.answered.get(&id).copied();
        let mut logit = logprob + before.normalizer;
        if count.is_some() || before.prompt.contains(&id) {
            let penalty = f64::from(sampling.repetition_penalty);
            logit = if logit > 0.0 { logit / penalty } else { logit * penalty };
        }
        let of = |count: u32| sampling.presence_penalty + sampling.frequency_penalty * count as f32;
        logit - before.normalizer - f64::from(count.map_or(0.0, of))
    };
    // The first is the chosen one, which the others may have again.
    let told = &token.logprobs[1..];
    let mut all: Vec<(u32, f64)> =
        told.iter().map(|l| (l.id, penalized(l.id, f64::from(l.logprob)))).collect();
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    all.truncate(sampling.top_k as usize);
    // Penalties only take away: what is not told is not above the last of what is.
    let least = told.iter().map(|l| f64::from(l.logprob)).fold(f64::INFINITY, f64::min);
    assert!(
        all[all.len() - 1].1 >= least,
        "a token that is not told may be among the first {}",
        sampling.top_k
    );
    let top = all[0].1;
    all.iter_mut().for_each(|one| one.1 = ((one.1 - top) / f64::from(sampling.temperature)).exp());
    let wanted = f64::from(sampling.top_p) * all.iter().map(|one| one.1).sum::<f64>();
    let mut sum = 0.0;
    let enough = all.iter().position(|one| {
        sum += one.1;
        sum >= wanted
    });
    all.truncate(enough.map_or(all.len(), |last| last + 1));
    all.retain(|one| one.1 >= f64::from(sampling.min_p));
    all.sort_by_key(|one| one.0);
    let sum: f64 = all.iter().map(|one| one.1).sum();
    all.iter().map(|(id, weight)| (*id, weight / sum)).collect()
}

/// Between which numbers a token is drawn, and how far away a number is from that.
fn distance(possible: &[(u32, f64)], id: u32, number: f64) -> f64 {
    let before: f64 = possible.iter().filter(|one| one.0 < id).map(|one| one.1).sum();
    let its = possible.iter().find(|one| one.0 == id).map_or(0.0, |one| one.1);
    (before - number).max(number - before - its).max(0.0)
}

/// What two sets of probabilities have not in common.
fn apart(a: &[(u32, f64)], b: &[(u32, f64)]) -> f64 {
    let of = |list: &[(u32, f64)], id: u32| list.iter().find(|one| one.0 == id).map_or(0.0, |one| one.1);
    let of_a: f64 = a.iter().map(|(id, p)| (p - of(b, *id)).abs()).sum();
    let of_b: f64 = b.iter().filter(|(id, _)| !a.iter().any(|one| one.0 == *id)).map(|one| one.1).sum();
    of_a + of_b
}

/// Every token of a reply is the one that its seed and position draw from what the engine says of its logits; answers how far one
/// is off at most.
fn check_draws(what: &str, reply: &Reply, sampling: &Sampling, prompt: &[u32], normalizers: &[f64]) -> f64 {
    let mut before = Before { prompt, answered: HashMap::new(), normalizer: 0.0 };
    let mut furthest = 0.0f64;
    for ((token, position), normalizer) in reply.tokens().zip(prompt.len() as u32..).zip(normalizers) {
        before.normalizer = *normalizer;
        let number = philox::uniform(sampling.seed, position);
        let distance = distance(&possible(token, sampling, &before), token.id, number);
        let bound = rounding(sampling);
        assert!(distance < bound, "{what}: token {} at {position} is {distance} off", token.id);
        furthest = furthest.max(distance);
        *before.answered.entry(token.id).or_insert(0) += 1;
    }
    furthest
}

#[test]
fn both_engines_draw_the_same_tokens_up_to_their_number_formats() {
    if llama_cpp_is_missing() {
        return;
    }
    // In the middle of a question, where the model is not as sure of what comes as in its answers.
    let whole = reference().swap_remove(0).prompt_token_ids;
    let prompt = whole[..whole.len() - 6].to_vec();
    let (dir, own) = (demo(), workspace_root().join("assets/demo-model"));
    let (mut theirs, _) = load(dir.path(), 512);
    let subject = Subject::new(engine_dir("gpt-oss"), own);
    let read = |file: &str| std::fs::read(workspace_root().join("assets/demo-model").join(file));
    let normalizers = Normalizers(Store::open("model.safetensors.index.json", read, read).unwrap());
    // Always where every run has it: a device of llama.cpp need not be one of ours.
    let on_the_cpu = Settings { devices: Vec::new(), ..settings(512, 1) };
    let (mut ours, _) = Bench::load(&subject, &on_the_cpu).unwrap();
    let (mut equal, mut replies, mut different_answers) = (0, 0, std::collections::HashSet::new());
    for (name, sampling) in cases() {
        for seed in SEEDS {
            replies += 1;
            let sampling = Sampling { seed, ..sampling.clone() };
            let ask = |bench: &mut Bench| {
                let asked = submit(replies as u64, Prompt::Tokens(prompt.clone()), sampling.clone());
                bench.worker.run(asked).unwrap()
            };
            let (a, b) = (ask(&mut ours), ask(&mut theirs));
            let what = format!("{name}, seed {seed}");
            let rows = normalizers.of(&prompt, &a, &sampling);
            let furthest = check_draws(&format!("gpt-oss, {what}"), &a, &sampling, &prompt, &rows);
            let others = normalizers.of(&prompt, &b, &sampling);
            let other = check_draws(&format!("llama-cpp, {what}"), &b, &sampling, &prompt, &others);
            if furthest.max(other) > TOLD_ROUNDING {
                println!("{what}: up to {furthest:.5} and {other:.5} off");
            }
            different_answers.insert(b.ids());
            let mut before = Before { prompt: &prompt, answered: HashMap::new(), normalizer: 0.0 };
            let differing =
                a.tokens().zip(b.tokens()).zip(prompt.len() as u32..).find(|((a, b), position)| {
                    let differ = a.id != b.id;
                    before.normalizer = rows[*position as usize - prompt.len()];
                    if !differ {
                        *before.answered.entry(a.id).or_insert(0) += 1;
                    }
                    differ
                });
            let Some(((a, b), position)) = differing else {
                assert_eq!(a.ids(), b.ids(), "{what}");
                equal += 1;
                continue;
            };
            for l in &a.logprobs {
                let other = b.logprobs.iter().find(|other| other.id == l.id);
                let same = other.is_none_or(|o| f64::from(o.logprob - l.logprob).abs() < LOGIT_ROUNDING);
                assert!(same, "{what}: {l:?} and {other:?} at {position}");
            }
            let (of_a, of_b) = (possible(a, &sampling, &before), possible(b, &sampling, &before));
            let number = philox::uniform(seed, position);
            let (apart, border) = (apart(&of_a, &of_b), distance(&of_b, a.id, number));
            println!(
                "{what}: {} and {} at {position}, {border:.5} from the border, {apart:.5} apart",
                a.id, b.id
            );
            let border = border - rounding(&sampling);
            assert!(border <= apart && apart < LOGIT_ROUNDING / 2.0, "{what}: {of_a:?} {of_b:?}");
        }
    }
    println!("{equal} of {replies} answers are equal, {} of them different ones", different_answers.len());
    assert!(different_answers.len() > replies / 2, "the seeds change nothing");
    ours.finish().unwrap();
    theirs.finish().unwrap();
}
