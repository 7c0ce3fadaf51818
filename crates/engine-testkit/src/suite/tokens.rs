//! Text and tokens.

use anyhow::{Context as _, Result, ensure};
use engine_protocol::{EventKind, LiteralRange, Prompt, Submit};

use super::bench::{Bench, PROMPT, endless, submit, submit_tokens};
use super::{Case, Outcome, Subject};

pub const CASES: [Case; 3] = [
    Case {
        name: "tokenize_is_what_submit_does",
        promise: "a text and its tokens are the same prompt, and token ids are in the vocabulary",
        run: tokenize,
    },
    Case {
        name: "literal_ranges_stay_text",
        promise: "in a literal range no spelling becomes a control token",
        run: literal,
    },
    Case {
        name: "bytes_belong_to_their_token",
        promise: "a token has the same bytes each time, and a control token its spelling",
        run: bytes,
    },
];

/// Spellings that common vocabularies have as one control token.
const SPELLINGS: [&str; 8] =
    ["<|end|>", "<|return|>", "<|im_end|>", "<|eot_id|>", "<|endoftext|>", "</s>", "<eos>", "<end_of_turn>"];

fn tokenize(subject: &Subject) -> Result<Outcome> {
    let (mut bench, loaded) = Bench::ready(subject)?;
    for (sequence, text) in (1..).zip([PROMPT, "naïve café 🙂 漢字\n\ttab", "a"]) {
        let ids = bench.worker.tokenize(text, &[])?.with_context(|| format!("{text:?}"))?;
        ensure!(!ids.is_empty(), "{text:?} has no tokens");
        let outside = ids.iter().find(|id| **id >= loaded.vocabulary_size);
        ensure!(outside.is_none(), "{text:?} has the token {outside:?}, outside the vocabulary");
        let from_text = bench.run_text(2 * sequence, text, endless(3))?;
        let started = from_text.events.first().context("no event")?;
        let expected = ids.len() as u32;
        ensure!(
            matches!(started, EventKind::Started { prompt_tokens, .. } if *prompt_tokens == expected),
            "{text:?} has {expected} tokens by tokenize, and submit says {started:?}"
        );
        let from_tokens = bench.worker.run(submit_tokens(2 * sequence + 1, ids, endless(3)))?;
        ensure!(
            from_text.ids() == from_tokens.ids(),
            "{text:?} answers {:?} as text and {:?} as tokens",
            from_text.ids(),
            from_tokens.ids()
        );
    }
    let nothing = bench.worker.tokenize("", &[])?.context("an empty text")?;
    ensure!(nothing.is_empty(), "an empty text has the tokens {nothing:?}");
    bench.finish()
}

fn literal(subject: &Subject) -> Result<Outcome> {
    let (mut bench, _) = Bench::ready(subject)?;
    let mut found = None;
    for spelling in SPELLINGS {
        if let [id] = bench.worker.tokenize(spelling, &[])?.context(spelling)?[..] {
            found = Some((spelling, id));
            break;
        }
    }
    let Some((spelling, id)) = found else {
        bench.finish()?;
        return Ok(Outcome::NotApplicable(format!("none of {SPELLINGS:?} is one token")));
    };
    // Spelled twice: as text in the range, as control token after it.
    let text = format!("a {spelling} b {spelling}");
    let at = |start: usize, end: usize| vec![LiteralRange { start: start as u32, end: end as u32 }];
    let end = 2 + spelling.len();
    for range in [at(2, end), at(0, end + 1), at(end - 1, end)] {
        let ids = bench.worker.tokenize(&text, &range)?.context("with a literal range")?;
        let count = ids.iter().filter(|i| **i == id).count();
        ensure!(
            count == 1,
            "{text:?} with the literal range {range:?} has {spelling} {count} times: {ids:?}"
        );
        let prompt = Prompt::Text { text: text.clone(), literal: range.clone() };
        let sequence = u64::from(range[0].start) + 1;
        let reply = bench.worker.run(Submit { prompt, ..submit(sequence, "", endless(1)) })?;
        let expected = ids.len() as u32;
        ensure!(
            matches!(reply.events[0], EventKind::Started { prompt_tokens, .. } if prompt_tokens == expected),
            "submit does not honour the literal range {range:?}: {expected} tokens by tokenize, {:?}",
            reply.events[0]
        );
    }
    let everything = at(0, text.len());
    let ids = bench.worker.tokenize(&text, &everything)?.context("all literal")?;
    ensure!(!ids.contains(&id), "a control token in text that is literal: {ids:?}");
    bench.finish()
}

fn bytes(subject: &Subject) -> Result<Outcome> {
    let (mut bench, loaded) = Bench::ready(subject)?;
    let mut known = std::collections::HashMap::new();
    for sequence in 1..3 {
        let reply = bench.run_text(sequence, PROMPT, endless(40))?;
        for token in reply.tokens() {
            ensure!(token.id < loaded.vocabulary_size, "token {} is outside the vocabulary", token.id);
            ensure!(!token.bytes.is_empty(), "token {} has no bytes", token.id);
            let kept = known.entry(token.id).or_insert_with(|| (token.bytes.clone(), token.control));
            ensure!(
                *kept == (token.bytes.clone(), token.control),
                "token {} was {kept:?} and is {:?}",
                token.id,
                (&token.bytes, token.control)
            );
        }
    }
    for (id, (bytes, control)) in known {
        // Part of a character: only text can be that.
        let Ok(text) = String::from_utf8(bytes) else {
            ensure!(!control, "control token {id} has a spelling that is not UTF-8");
            continue;
        };
        let everything = [LiteralRange { start: 0, end: text.len() as u32 }];
        let as_text = bench.worker.tokenize(&text, &everything)?.context("a token's bytes")?;
        let as_control = bench.worker.tokenize(&text, &[])?.context("a token's bytes")?;
        ensure!(
            !control || as_control == [id],
            "control token {id} is spelled {text:?}, which is {as_control:?}"
        );
        ensure!(
            !control || as_text != [id],
            "token {id} is flagged as control, and {text:?} is it as plain text"
        );
        ensure!(
            control || as_control == as_text || as_control != [id],
            "token {id}, spelled {text:?}, is a control token and not flagged as one"
        );
    }
    bench.finish()
}
