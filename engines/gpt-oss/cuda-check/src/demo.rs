//! `demo`: the demo model's recorded answers, token for token, each alone and then several side by side.

use std::convert::Infallible;
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use engine_sdk::{Draw, History, Sampling};
use gpt_oss_cuda::plan::BLOCK_TOKENS;
use gpt_oss_cuda::{Bounds, CudaModel, Span};
use serde::Deserialize;
use serde_json::json;

use crate::report::Report;
use crate::{Place, checkpoint, open};

/// Prompt and answer of the longest conversation have fewer.
const CONTEXT: usize = 512;
const CHUNK: usize = 96;
/// Sequences side by side: more than the kernels for few tokens take.
const SIDE_BY_SIDE: usize = 12;

#[derive(Deserialize)]
struct Reference {
    prompts: Vec<Prompt>,
}

#[derive(Deserialize, Clone)]
struct Prompt {
    name: String,
    prompt_token_ids: Vec<u32>,
    completion_token_ids: Vec<u32>,
}

struct Chat<'p> {
    prompt: &'p Prompt,
    blocks: Vec<Vec<u32>>,
    tokens: Vec<u32>,
    /// Tokens whose keys and values are there.
    done: usize,
}

impl Chat<'_> {
    fn answered(&self) -> usize {
        self.tokens.len() - self.prompt.prompt_token_ids.len()
    }

    fn is_done(&self) -> bool {
        self.answered() == self.prompt.completion_token_ids.len()
    }
}

pub fn run(place: &Place, folder: &Path, only: Option<&str>, report: &mut Report) -> Result<()> {
    let path = folder.join("reference.json");
    let bytes = std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let reference: Reference = serde_json::from_slice(&bytes)?;
    let prompts: Vec<Prompt> =
        reference.prompts.into_iter().filter(|p| only.is_none_or(|name| name == p.name)).collect();
    let store = checkpoint(folder)?;
    let blocks = CONTEXT / BLOCK_TOKENS;
    let bounds = Bounds {
        context_length: CONTEXT,
        sequences_max: SIDE_BY_SIDE,
        batch_tokens_max: CHUNK * SIDE_BY_SIDE,
        blocks: SIDE_BY_SIDE * blocks * 2,
    };
    let known = vec![true; store.config().vocabulary];
    let loaded =
        CudaModel::load(open(place)?, store.config(), &store, bounds, &known, |_| Ok::<(), Infallible>(()));
    let mut model = loaded.map_err(|error| anyhow!("the load failed: {error:?}"))?;
    let alone = prompts.chunks(1);
    for prompts in alone.chain(prompts.chunks(SIDE_BY_SIDE).filter(|p| p.len() > 1)) {
        let names: Vec<&str> = prompts.iter().map(|p| &*p.name).collect();
        match answer(&mut model, prompts) {
            Ok(tokens) => report.seen("answer", json!({ "prompts": names, "tokens": tokens })),
            Err(error) => report.failed("answer", json!({ "prompts": names, "error": format!("{error:#}") })),
        }
    }
    Ok(())
}

/// The number of tokens that were chosen, each the recorded one.
fn answer(model: &mut CudaModel, prompts: &[Prompt]) -> Result<usize> {
    let groups = model.groups().windows.len();
    let mut free = 0..model.bounds().blocks as u32;
    let mut chats: Vec<Chat<'_>> = prompts
        .iter()
        .map(|prompt| {
            let blocks = (0..groups).map(|_| free.by_ref().take(CONTEXT / BLOCK_TOKENS).collect());
            Chat { blocks: blocks.collect(), tokens: prompt.prompt_token_ids.clone(), prompt, done: 0 }
        })
        .collect();
    let (sampling, history) = (Sampling { temperature: 0.0, ..Sampling::default() }, History::default());
    let mut count = 0;
    loop {
        let mut at_work: Vec<&mut Chat<'_>> = chats.iter_mut().filter(|c| !c.is_done()).collect();
        if at_work.is_empty() {
            return Ok(count);
        }
        let spans: Vec<Span<'_>> = at_work
            .iter()
            .map(|chat| {
                let end = chat.tokens.len().min(chat.done + CHUNK);
                Span {
                    position: chat.done,
                    tokens: &chat.tokens[chat.done..end],
                    tables: chat.blocks.iter().map(|blocks| (0, &blocks[..])).collect(),
                    wants_logits: end == chat.tokens.len(),
                }
            })
            .collect();
        let lengths: Vec<(usize, bool)> = spans.iter().map(|s| (s.tokens.len(), s.wants_logits)).collect();
        let draw = Draw { sampling: &sampling, history: &history, position: 0, only: None };
        let draws = vec![draw; lengths.iter().filter(|l| l.1).count()];
        model.launch(&spans, &draws, &[])?;
        let mut chosen = Vec::new();
        for choice in model.collect()? {
            chosen.push(choice.context("a greedy row cannot be sampled")??.id);
        }
        let mut chosen = chosen.into_iter();
        for (chat, (length, wanted)) in at_work.iter_mut().zip(lengths) {
            chat.done += length;
            if !wanted {
                continue;
            }
            let token = chosen.next().context("a token for each row")?;
            let want = chat.prompt.completion_token_ids[chat.answered()];
            if token != want {
                let at = chat.answered();
                return Err(anyhow!("{}: token {at} is {token}, not {want}", chat.prompt.name));
            }
            chat.tokens.push(token);
            count += 1;
        }
    }
}
