//! Chooses tokens, as the SDK's sampler does. What an answer has to begin with (`begin_with`) is left to the SDK.

use engine_sdk::{Change, Choice, Draw, History, Sampler, Sampling, Status, TokenLogprob, reason};

use crate::arguments::arguments;
use crate::device::{Address, Device, Launch};
use crate::ops::{Size, launch};
use crate::testing::{Bed, Bench, Failure, shape};

/// Words of 32 bits of a row, of a change, of an answer: as `sample.cu` has them.
pub const ROW_WORDS: usize = 12;
pub const CHANGE_WORDS: usize = 6;
pub const ANSWER_WORDS: usize = 3 + 2 * MOST_LIKELY_MAX;
const MOST_LIKELY_MAX: usize = 20;
/// Changes of a row: biased tokens, and with penalties those of prompt and answer. A row with more is sampled by the SDK.
pub const CHANGES_MAX: usize = 1024;

const NOT_FINITE: u32 = 1;
const NONE_POSSIBLE: u32 = 2;
const NO_TOKEN: u32 = u32::MAX;

arguments! {
    pub struct SampleArgs {
        pub logits: Address,
        pub known: Address,
        pub rows: Address,
        pub changes: Address,
        pub answers: Address,
        pub next: Address,
        pub vocabulary: u32,
    }
}

impl SampleArgs {
    pub fn launch(&self, rows: usize) -> Launch {
        launch("sample", [rows, 1, 1], 512, self)
    }
}

/// Rows and changes of a step as the kernel reads them.
#[derive(Debug, Default)]
pub struct Requests {
    pub rows: Vec<u32>,
    pub changes: Vec<u32>,
}

impl Requests {
    /// Adds a row; false, and what was added is one that changes nothing, where the kernel cannot do what is asked.
    pub fn push(&mut self, draw: &Draw<'_>, end_tokens: &[u32], vocabulary: usize) -> bool {
        let Sampling { temperature, top_p, top_k, min_p, seed, logprobs, .. } = *draw.sampling;
        let mut changes = Change::all(draw.sampling, draw.history, end_tokens);
        changes.retain(|c| (c.id as usize) < vocabulary);
        let first = self.changes.len() / CHANGE_WORDS;
        let wanted = logprobs.map_or(0, |n| n + 1);
        let can =
            draw.only.is_none() && changes.len() <= CHANGES_MAX && wanted as usize <= MOST_LIKELY_MAX + 1;
        if !can {
            self.rows.extend([0; ROW_WORDS]);
            return false;
        }
        let seed = [seed as u32, (seed >> 32) as u32];
        let (first, count) = (first as u32, changes.len() as u32);
        let cuts = [top_k, top_p.to_bits(), min_p.to_bits(), 0, 0];
        self.rows.extend([temperature.to_bits(), seed[0], seed[1], draw.position, first, count, wanted]);
        self.rows.extend(cuts);
        for Change { id, out, bias, repetition, penalty } in changes {
            self.changes.extend([
                id,
                u32::from(out),
                bias.to_bits(),
                repetition.to_bits(),
                penalty.to_bits(),
                0,
            ]);
        }
        true
    }
}

/// Whether the kernel chooses under this sampling whatever the tokens so far are, unless penalties name more than
/// [`CHANGES_MAX`] of them, or a beginning is given.
pub fn chooses(sampling: &Sampling, end_tokens: &[u32]) -> bool {
    sampling.logit_bias.len() + sampling.stop_tokens.len() + end_tokens.len() <= CHANGES_MAX
        && sampling.logprobs.is_none_or(|n| n as usize <= MOST_LIKELY_MAX)
}

/// What the kernel answered for a row of which so many logprobs are wanted.
///
/// # Errors
/// As the SDK's sampler: a logit is no number, or no token is possible.
pub fn answer(words: &[u32], logprobs_wanted: Option<u32>) -> Result<Choice, Status> {
    match words[0] {
        NOT_FINITE => {
            let (id, logit) = (words[1], f32::from_bits(words[2]));
            let message = format!("the model gave the logit {logit} for token {id}");
            return Err(Status::internal(reason::LOGITS_NOT_FINITE, message));
        }
        NONE_POSSIBLE => {
            return Err(Status::internal(reason::NO_TOKEN_POSSIBLE, "no token is left that could be chosen"));
        }
        _ => {}
    }
    let logprob = |words: &[u32]| TokenLogprob { id: words[0], logprob: f32::from_bits(words[1]) };
    let mut logprobs = Vec::new();
    if let Some(wanted) = logprobs_wanted {
        logprobs.push(logprob(&words[1..3]));
        let most_likely = words[3..].chunks_exact(2).take(wanted as usize);
        logprobs.extend(most_likely.filter(|w| w[0] != NO_TOKEN).map(logprob));
    }
    Ok(Choice { id: words[1], logprobs })
}

/// A bit for each token that the tokenizer has.
pub fn known_bits(known: &[bool]) -> Vec<u32> {
    let word = |bits: &[bool]| bits.iter().enumerate().map(|(i, &k)| u32::from(k) << i).sum();
    known.chunks(32).map(word).collect()
}

/// Kinds of rows in the check.
fn samplings(bed: &mut Bed<'_>, vocabulary: usize) -> Vec<(Sampling, History, bool)> {
    let mut all = Vec::new();
    let plain = |temperature, seed| Sampling { temperature, seed, ..Sampling::default() };
    for (i, temperature) in [0.0, 1.0, 0.7, 2.0, 0.01].into_iter().enumerate() {
        let seed = bed.number();
        all.push((plain(temperature, seed), History::default(), true));
        let mut penal = Sampling {
            repetition_penalty: 1.5,
            presence_penalty: 0.5,
            frequency_penalty: 0.25,
            logit_bias: vec![(2, 3.5), (5, -100.0)],
            tokens_min: 100,
            logprobs: Some([0, 5, 20, 1, 3][i]),
            ..plain(temperature, seed)
        };
        penal.stop_tokens = vec![7];
        let prompt: Vec<u32> = (0..20).map(|_| bed.below(vocabulary) as u32).collect();
        let mut history = History::new(&prompt, &penal);
        (0..10).for_each(|_| history.push(bed.below(vocabulary) as u32));
        all.push((penal, history, true));
    }
    for (temperature, top_k, top_p, min_p) in [
        (1.0, 1, 1.0, 0.0),
        (1.0, 40, 1.0, 0.0),
        (2.0, 7, 0.5, 0.0),
        (1.0, 0, 0.9, 0.0),
        (0.7, 0, 0.3, 0.05),
        (1.5, 0, 1.0, 0.2),
        (1.0, 1_000_000, 0.999, 0.001),
    ] {
        let sampling = Sampling { top_k, top_p, min_p, ..plain(temperature, bed.number()) };
        let biased = Sampling { logit_bias: vec![(2, -50.0), (4, 2.5)], ..sampling.clone() };
        all.push((sampling, History::default(), true));
        all.push((biased, History::default(), true));
    }
    // One row with a NaN.
    all.push((plain(1.0, 1), History::default(), false));
    all
}

pub(super) fn check(device: &dyn Device, size: Size, seed: u64) -> Result<(), Failure> {
    let mut bed = Bed::new(device, seed);
    let vocabulary = size.of([33, 2048, 1021, 5000]);
    let end_tokens = [3, 8];
    let known: Vec<bool> = (0..vocabulary).map(|id| id % 11 != 9).collect();
    let kinds = samplings(&mut bed, vocabulary);
    // Few different numbers, so that the largest are several. Never -0, which the SDK ranks behind 0 and the kernel does not.
    let step = if size == Size::RaggedTail { 2.0 } else { 0.001 };
    let mut logits: Vec<f32> =
        (0..kinds.len() * vocabulary).map(|_| (bed.float(4.0) / step).round() * step + 0.0).collect();
    for ((_, _, is_sound), row) in kinds.iter().zip(logits.chunks_exact_mut(vocabulary)) {
        if !is_sound {
            row[vocabulary - 2] = f32::NAN;
        }
    }
    let mut requests = Requests::default();
    for (row, (sampling, history, _)) in kinds.iter().enumerate() {
        let draw = Draw { sampling, history, position: row as u32 * 3, only: None };
        if !requests.push(&draw, &end_tokens, vocabulary) {
            return Err(Failure::Other(format!("row {row} cannot be sampled")));
        }
    }
    let answers = bed.room(4 * kinds.len() * ANSWER_WORDS)?;
    let next = bed.room(4 * kinds.len())?;
    let arguments = SampleArgs {
        logits: bed.put_f32(&logits)?,
        known: bed.put_u32(&known_bits(&known))?,
        rows: bed.put_u32(&requests.rows)?,
        changes: bed.put_u32(&requests.changes)?,
        answers,
        next,
        vocabulary: vocabulary as u32,
    };
    device.launch(&arguments.launch(kinds.len()))?;
    let words = bed.get_u32(answers, kinds.len() * ANSWER_WORDS)?;
    let next = bed.get_u32(next, kinds.len())?;
    let mut sampler = Sampler::new(known, end_tokens.to_vec());
    for (row, (sampling, history, _)) in kinds.iter().enumerate() {
        let got = answer(&words[row * ANSWER_WORDS..][..ANSWER_WORDS], sampling.logprobs);
        let logits = &mut logits[row * vocabulary..][..vocabulary];
        let want = sampler.choose(logits, sampling, history, row as u32 * 3, None);
        let is_same = match (&got, &want) {
            (Ok(got), Ok(want)) => {
                let near = |(a, b): (&TokenLogprob, &TokenLogprob)| {
                    a.id == b.id && (a.logprob - b.logprob).abs() < 1e-5 * (1.0 + b.logprob.abs())
                };
                got.id == want.id
                    && got.logprobs.len() == want.logprobs.len()
                    && got.logprobs.iter().zip(&want.logprobs).all(near)
            }
            (Err(got), Err(want)) => got.reason == want.reason,
            _ => false,
        };
        let is_left_for_the_next_step = next[row] == got.as_ref().map_or(0, |choice| choice.id);
        if !is_same || !is_left_for_the_next_step {
            return Err(Failure::Other(format!("row {row} gave {got:?}, not {want:?}")));
        }
    }
    Ok(())
}

pub(super) fn bench(device: &dyn Device, tokens: usize) -> Result<Option<Bench>, Failure> {
    if tokens > 128 {
        return Ok(None);
    }
    let bed = Bed::new(device, 0);
    let mut requests = Requests::default();
    let (sampling, history) = (Sampling::default(), History::default());
    for _ in 0..tokens {
        let draw = Draw { sampling: &sampling, history: &history, position: 0, only: None };
        requests.push(&draw, &[], shape::VOCABULARY);
    }
    let logits = vec![0.0; tokens * shape::VOCABULARY];
    let arguments = SampleArgs {
        logits: bed.put_f32(&logits)?,
        known: bed.put_u32(&known_bits(&vec![true; shape::VOCABULARY]))?,
        rows: bed.put_u32(&requests.rows)?,
        changes: bed.room(4)?,
        answers: bed.room(4 * tokens * ANSWER_WORDS)?,
        next: bed.room(4 * tokens)?,
        vocabulary: shape::VOCABULARY as u32,
    };
    let bytes = (4 * tokens * shape::VOCABULARY) as u64;
    Ok(Some(Bench { launches: vec![arguments.launch(tokens)], bytes, operations: 0 }))
}
