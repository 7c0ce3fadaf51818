//! Chooses tokens on the device, as the SDK's sampler does, where no candidates are cut away: the same token, or the answer
//! that it could not be decided.

use engine_sdk::{Change, Choice, Draw, Sampling, Status, TokenLogprob, reason};

use crate::device::{Launch, Slice};
use crate::ops::word;

mod check;

pub(super) use check::check;

/// Tokens of a vocabulary at most: a sum of so many weights has 64 bits.
pub(crate) const VOCABULARY_MAX: usize = 1 << 19;
/// Most likely tokens that an answer has room for.
pub(crate) const MOST_LIKELY_MAX: usize = 20;
/// Changed logits of all rows of a step. A row that has no room for its own is sampled by the SDK.
pub(crate) const CHANGES_MAX: usize = 1 << 16;
/// Words of a row and of a change of the requests, and of an answer: as `sample.wgsl` and `sample_pick.wgsl` have them.
pub(crate) const ROW_WORDS: usize = 8;
pub(crate) const CHANGE_WORDS: usize = 8;
pub(crate) const ANSWER_WORDS: usize = 6 + 2 * MOST_LIKELY_MAX;
/// Words of a row of the state.
pub(crate) const STATE_WORDS: usize = 2 * PARTS * 5 + PARTS * 2 * MOST_LIKELY_MAX;
/// Parts of a row, each with a workgroup of its own.
const PARTS: usize = 64;
/// Entries of the tables of weights: whole numbers, 256ths, and 256ths of those.
const TABLES: [(usize, f64); 3] = [(32, 1.0), (256, 1.0 / 256.0), (256, 1.0 / 65_536.0)];
/// Steps of a weight of 1: 2^44.
const WEIGHT_ONE: f64 = 17_592_186_044_416.0;
const CHANGES_A_GROUP: usize = 64;

const DONE: u32 = 0;
const NOT_FINITE: u32 = 1;
const NONE_POSSIBLE: u32 = 2;
const UNDECIDED: u32 = 3;
const NOBODY: u32 = u32::MAX;

/// Words of the constants for a vocabulary.
pub(crate) fn constants_words(vocabulary: usize) -> usize {
    vocabulary.div_ceil(32) + 2 * TABLES.iter().map(|(entries, _)| entries).sum::<usize>()
}

/// A bit for each token that the tokenizer has, and the tables of weights.
pub(crate) fn constants(known: &[bool]) -> Vec<u32> {
    let bits = |known: &[bool]| known.iter().zip(0..).map(|(&k, i)| u32::from(k) << i).sum();
    let mut words: Vec<u32> = known.chunks(32).map(bits).collect();
    for (entries, step) in TABLES {
        for i in 0..entries {
            // In steps of 2^-64; 1 itself is one step less.
            let weight = ((-(i as f64) * step).exp() * 2f64.powi(64)) as u64;
            words.extend([(weight >> 32) as u32, weight as u32]);
        }
    }
    words
}

/// What is to be chosen in a step, as the kernels read it.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    rows: Vec<u32>,
    changes: Vec<u32>,
    /// Whether any row wants logprobs, and whether any has a temperature.
    wants_logprobs: bool,
    draws: bool,
    asked: Vec<Asked>,
}

/// Of a row, what its answer is read by.
#[derive(Debug, Clone, Copy)]
struct Asked {
    /// Whether the device can choose.
    can: bool,
    logprobs: Option<u32>,
}

/// Whether the device chooses tokens by itself under this, where no text is given that an answer begins with, and
/// `sequences` are beside one another.
pub fn chooses(sampling: &Sampling, sequences: usize) -> bool {
    let Sampling { top_p, top_k, min_p, logprobs, logit_bias, stop_tokens, .. } = sampling;
    let changes = logit_bias.len() + stop_tokens.len();
    cuts_nothing(*top_p, *top_k, *min_p)
        && logprobs.is_none_or(|n| n as usize <= MOST_LIKELY_MAX)
        && changes <= CHANGES_MAX / 2 / sequences.max(1)
}

fn cuts_nothing(top_p: f32, top_k: u32, min_p: f32) -> bool {
    top_p >= 1.0 && top_k == 0 && min_p <= 0.0
}

impl Requests {
    pub(crate) fn of(draws: &[Draw<'_>], end_tokens: &[u32], vocabulary: usize) -> Requests {
        // Half a step of each weight in the running sum and in that of all, and some for the products.
        let margin = word(vocabulary + vocabulary / 16 + 16);
        Requests::with_margin(draws, end_tokens, vocabulary, margin)
    }

    fn with_margin(draws: &[Draw<'_>], end_tokens: &[u32], vocabulary: usize, margin: u32) -> Requests {
        let mut requests = Requests::default();
        for (row, draw) in draws.iter().enumerate() {
            let mut changes = Change::all(draw.sampling, draw.history, end_tokens);
            changes.retain(|c| (c.id as usize) < vocabulary);
            requests.push(word(row), draw, &changes, margin);
        }
        requests
    }

    fn push(&mut self, row: u32, draw: &Draw<'_>, changes: &[Change], margin: u32) {
        let Sampling { temperature, top_p, top_k, min_p, seed, logprobs, .. } = *draw.sampling;
        let first = self.changes.len() / CHANGE_WORDS;
        let wanted = logprobs.map_or(0, |n| n + 1);
        let can = cuts_nothing(top_p, top_k, min_p)
            && draw.only.is_none()
            && first + changes.len() <= CHANGES_MAX
            && wanted as usize <= MOST_LIKELY_MAX + 1;
        self.asked.push(Asked { can, logprobs });
        if !can {
            // The highest logit: it costs nothing, and nobody looks at it.
            return self.rows.extend([0; ROW_WORDS]);
        }
        self.wants_logprobs |= wanted > 0;
        self.draws |= temperature != 0.0;
        let [first, count] = [first, changes.len()].map(word);
        let seed = [seed as u32, (seed >> 32) as u32];
        self.rows.extend([
            temperature.to_bits(),
            seed[0],
            seed[1],
            draw.position,
            first,
            count,
            wanted,
            margin,
        ]);
        for &Change { id, out, bias, repetition, penalty } in changes {
            let [bias, repetition, penalty] = [bias, repetition, penalty].map(f32::to_bits);
            self.changes.extend([id, u32::from(out), bias, repetition, penalty, row, 0, 0]);
        }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.rows.iter().chain(&self.changes).flat_map(|word| word.to_ne_bytes()).collect()
    }

    /// Words of all answers.
    pub(crate) fn answer_words(&self) -> usize {
        self.asked.len() * ANSWER_WORDS
    }

    /// Of each row the answer's; none where the SDK has to choose. `decides`: what is nearer to a border than sums are exact is
    /// what the kernel took it for.
    pub(crate) fn answers(&self, words: &[u32], decides: bool) -> Vec<Option<Result<Choice, Status>>> {
        let rows = words.chunks_exact(ANSWER_WORDS).zip(&self.asked);
        rows.map(|(words, asked)| if asked.can { answer(words, asked.logprobs, decides) } else { None })
            .collect()
    }
}

fn answer(words: &[u32], wanted: Option<u32>, decides: bool) -> Option<Result<Choice, Status>> {
    let (status, id, logit) = (words[0], words[1], f32::from_bits(words[2]));
    match status {
        DONE => {}
        NOT_FINITE => {
            let message = format!("the model gave the logit {logit} for token {id}");
            return Some(Err(Status::internal(reason::LOGITS_NOT_FINITE, message)));
        }
        NONE_POSSIBLE => {
            let message = "no token is left that could be chosen";
            return Some(Err(Status::internal(reason::NO_TOKEN_POSSIBLE, message)));
        }
        UNDECIDED if decides => {}
        _ => return None,
    }
    let mut logprobs = Vec::new();
    if let Some(wanted) = wanted {
        let sum = (u64::from(words[4]) << 32 | u64::from(words[5])) as f64 / WEIGHT_ONE;
        let normalizer = sum.ln() + f64::from(f32::from_bits(words[3]));
        let of = |id, logit: f32| TokenLogprob { id, logprob: (f64::from(logit) - normalizer) as f32 };
        logprobs.push(of(id, logit));
        let most_likely = words[6..].chunks_exact(2).take(wanted as usize).filter(|w| w[0] != NOBODY);
        logprobs.extend(most_likely.map(|w| of(w[0], f32::from_bits(w[1]))));
    }
    Some(Ok(Choice { id, logprobs }))
}

/// Arguments of all kernels that choose.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    /// (rows, vocabulary); changed and changed back.
    pub(crate) logits: Slice,
    pub(crate) constants: Slice,
    pub(crate) requests: Slice,
    pub(crate) state: Slice,
    pub(crate) answers: Slice,
    pub(crate) vocabulary: usize,
}

impl Sample {
    /// What it takes for these requests: two launches where every row takes its highest logit, three with a temperature, up
    /// to seven with changes and logprobs.
    pub(crate) fn launches(&self, requests: &Requests) -> Vec<Launch> {
        let rows = requests.asked.len();
        let changes = requests.changes.len() / CHANGE_WORDS;
        // What is no number has to be seen before it is changed.
        let has_raw = requests.wants_logprobs || changes > 0;
        let Sample { logits, constants, requests: asked, state, answers, vocabulary } = *self;
        let arguments = |stage: u32| {
            let part_tokens = word(vocabulary.div_ceil(PARTS));
            let tables_at = word(vocabulary.div_ceil(32));
            let (rows, has_raw) = (word(rows), u32::from(has_raw));
            vec![word(vocabulary), part_tokens, rows, stage, has_raw, word(changes), tables_at]
        };
        let of = |kernel, grid: [usize; 2], bindings: Vec<Slice>, stage| Launch {
            kernel,
            grid: [word(grid[0]), word(grid[1]), 1],
            bindings,
            arguments: arguments(stage),
        };
        let top = |stage| of("sample_top", [PARTS, rows], vec![logits, constants, state], stage);
        let with_requests = || vec![logits, constants, state, asked];
        let mut launches = Vec::new();
        if has_raw {
            launches.push(top(0));
        }
        if requests.wants_logprobs {
            launches.push(of("sample_best", [PARTS, rows], with_requests(), 0));
            launches.push(of("sample_weigh", [PARTS, rows], with_requests(), 0));
        }
        if changes > 0 {
            let grid = [changes.div_ceil(CHANGES_A_GROUP), 1];
            launches.push(of("sample_change", grid, vec![logits, asked], 0));
        }
        launches.push(top(1));
        if requests.draws {
            launches.push(of("sample_weigh", [PARTS, rows], with_requests(), 1));
        }
        let all = vec![logits, constants, state, asked, answers];
        launches.push(of("sample_pick", [rows, 1], all, 0));
        launches
    }
}
