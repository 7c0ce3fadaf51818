//! Chooses tokens, as the SDK's sampler does.

use std::borrow::Cow;

use engine_sdk::{Change, Choice, Draw, History, Sampler, Sampling, Status, TokenLogprob, TokenSet, reason};

use crate::arguments::arguments;
use crate::device::{Address, Device, Launch};
use crate::ops::{Size, launch};
use crate::testing::{Bed, Bench, Failure, shape};

/// Words of 32 bits of a row, of a change, of an answer: as `sample.cu` has them.
pub const ROW_WORDS: usize = 12;
pub const CHANGE_WORDS: usize = 6;
pub const ANSWER_WORDS: usize = 3 + 2 * MOST_LIKELY_MAX;
const MOST_LIKELY_MAX: usize = 20;
/// Changes that every row may have, whatever the others have: biased tokens, and with penalties those of prompt and answer.
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
        pub masks: Address,
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

/// Rows, changes and masks of a step as the kernel reads them.
#[derive(Debug, Default)]
pub struct Requests {
    pub rows: Vec<u32>,
    pub changes: Vec<u32>,
    pub masks: Vec<u32>,
}

impl Requests {
    /// Of each draw a row, and whether the kernel can do what is asked: where it cannot, its row changes nothing. There is
    /// room for `changes_max` changes, at least [`CHANGES_MAX`] a row: one may take what the others leave.
    pub fn of(
        draws: &[Draw<'_>],
        end_tokens: &[u32],
        vocabulary: usize,
        changes_max: usize,
    ) -> (Requests, Vec<bool>) {
        let mut requests = Requests::default();
        let can = draws.iter().enumerate().map(|(n, draw)| {
            let kept_for_others = CHANGES_MAX * (draws.len() - n - 1);
            requests.push(draw, end_tokens, vocabulary, changes_max.saturating_sub(kept_for_others))
        });
        let can = can.collect();
        (requests, can)
    }

    fn push(&mut self, draw: &Draw<'_>, end_tokens: &[u32], vocabulary: usize, changes_max: usize) -> bool {
        let Sampling { temperature, top_p, top_k, min_p, seed, logprobs, .. } = *draw.sampling;
        let mut changes = Change::all(draw.sampling, draw.history, end_tokens);
        changes.retain(|c| (c.id as usize) < vocabulary);
        let first = self.changes.len() / CHANGE_WORDS;
        let wanted = logprobs.map_or(0, |n| n + 1);
        let can = first + changes.len() <= changes_max && wanted as usize <= MOST_LIKELY_MAX + 1;
        if !can {
            self.rows.extend([0; ROW_WORDS]);
            return false;
        }
        let mask = draw.only.as_ref().map_or(0, |only| {
            self.masks.extend(mask_of(only, vocabulary));
            (self.masks.len() / mask_words(vocabulary)) as u32
        });
        let seed = [seed as u32, (seed >> 32) as u32];
        let (first, count) = (first as u32, changes.len() as u32);
        self.rows.extend([temperature.to_bits(), seed[0], seed[1], draw.position, first, count, wanted]);
        self.rows.extend([top_k, top_p.to_bits(), min_p.to_bits(), mask, 0]);
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

/// Words of a mask: a bit for each token.
pub fn mask_words(vocabulary: usize) -> usize {
    vocabulary.div_ceil(32)
}

/// The mask under which these tokens alone may be chosen.
fn mask_of(only: &TokenSet, vocabulary: usize) -> Vec<u32> {
    // The kernel reads no bit past the vocabulary.
    let mut mask = only.words().to_vec();
    mask.resize(mask_words(vocabulary), 0);
    mask
}

/// Whether the kernel chooses under this sampling, whatever else is in the step, as long as nothing of it depends on the tokens
/// so far.
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

/// A row of the check.
#[derive(Default)]
struct Row {
    sampling: Sampling,
    history: History,
    only: Option<TokenSet>,
    /// One of its logits is no number.
    has_nan: bool,
}

/// Rows of all kinds.
fn rows(bed: &mut Bed<'_>, vocabulary: usize) -> Vec<Row> {
    let mut all = Vec::new();
    let plain = |temperature, seed| Sampling { temperature, seed, ..Sampling::default() };
    for (i, temperature) in [0.0, 1.0, 0.7, 2.0, 0.01].into_iter().enumerate() {
        let seed = bed.number();
        all.push(Row { sampling: plain(temperature, seed), ..Row::default() });
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
        // The second has more than a row's share of changes where the vocabulary is that large.
        let length = if i == 1 { 4000 } else { 20 };
        let prompt: Vec<u32> = (0..length).map(|_| bed.below(vocabulary) as u32).collect();
        let mut history = History::new(&prompt, &penal);
        (0..10).for_each(|_| history.push(bed.below(vocabulary) as u32));
        let only = (i == 3).then(|| (0..vocabulary as u32).filter(|id| id % 5 == 2).collect());
        all.push(Row { sampling: penal, history, only, has_nan: false });
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
        let some = (0..vocabulary as u32).filter(|_| bed.below(3) == 0).collect();
        all.push(Row { sampling: sampling.clone(), only: Some(some), ..Row::default() });
        all.push(Row { sampling, ..Row::default() });
        all.push(Row { sampling: biased, ..Row::default() });
    }
    // The last token alone; one that the tokenizer does not have; none at all.
    for only in [vec![vocabulary as u32 - 1], vec![9], vec![]] {
        all.push(Row { only: Some(only.into_iter().collect()), ..Row::default() });
    }
    all.push(Row { has_nan: true, ..Row::default() });
    all
}

pub(super) fn check(device: &dyn Device, size: Size, seed: u64) -> Result<(), Failure> {
    let mut bed = Bed::new(device, seed);
    let vocabulary = size.of([33, 2048, 1021, 5000]);
    let end_tokens = [3, 8];
    let known: Vec<bool> = (0..vocabulary).map(|id| id % 11 != 9).collect();
    let rows = rows(&mut bed, vocabulary);
    // Few different numbers, so that the largest are several. Never -0, which the SDK ranks behind 0 and the kernel does not.
    let step = if size == Size::RaggedTail { 2.0 } else { 0.001 };
    let mut logits: Vec<f32> =
        (0..rows.len() * vocabulary).map(|_| (bed.float(4.0) / step).round() * step + 0.0).collect();
    for (row, logits) in rows.iter().zip(logits.chunks_exact_mut(vocabulary)) {
        if row.has_nan {
            logits[vocabulary - 2] = f32::NAN;
        }
    }
    let draws: Vec<Draw<'_>> = (0..)
        .zip(&rows)
        .map(|(n, Row { sampling, history, only, .. })| Draw {
            sampling,
            history,
            position: 3 * n,
            only: only.as_ref().map(Cow::Borrowed),
        })
        .collect();
    let (requests, can) =
        Requests::of(&draws, &end_tokens, vocabulary, rows.len() * CHANGES_MAX + vocabulary);
    if let Some(row) = can.iter().position(|can| !can) {
        return Err(Failure::Other(format!("row {row} cannot be sampled")));
    }
    let answers = bed.room(4 * rows.len() * ANSWER_WORDS)?;
    let next = bed.room(4 * rows.len())?;
    let arguments = SampleArgs {
        logits: bed.put_f32(&logits)?,
        known: bed.put_u32(&known_bits(&known))?,
        rows: bed.put_u32(&requests.rows)?,
        changes: bed.put_u32(&requests.changes)?,
        masks: bed.put_u32(&requests.masks)?,
        answers,
        next,
        vocabulary: vocabulary as u32,
    };
    device.launch(&arguments.launch(rows.len()))?;
    let words = bed.get_u32(answers, rows.len() * ANSWER_WORDS)?;
    let next = bed.get_u32(next, rows.len())?;
    let mut sampler = Sampler::new(known, end_tokens.to_vec());
    for (row, draw) in draws.iter().enumerate() {
        let got = answer(&words[row * ANSWER_WORDS..][..ANSWER_WORDS], draw.sampling.logprobs);
        let logits = &mut logits[row * vocabulary..][..vocabulary];
        let want = sampler.choose_for(logits, draw);
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
    let (sampling, history) = (Sampling::default(), History::default());
    let draw = Draw { sampling: &sampling, history: &history, position: 0, only: None };
    let (requests, _) = Requests::of(&vec![draw; tokens], &[], shape::VOCABULARY, tokens * CHANGES_MAX);
    let logits = vec![0.0; tokens * shape::VOCABULARY];
    let arguments = SampleArgs {
        logits: bed.put_f32(&logits)?,
        known: bed.put_u32(&known_bits(&vec![true; shape::VOCABULARY]))?,
        rows: bed.put_u32(&requests.rows)?,
        changes: bed.room(4)?,
        masks: bed.room(4)?,
        answers: bed.room(4 * tokens * ANSWER_WORDS)?,
        next: bed.room(4 * tokens)?,
        vocabulary: shape::VOCABULARY as u32,
    };
    let bytes = (4 * tokens * shape::VOCABULARY) as u64;
    Ok(Some(Bench { launches: vec![arguments.launch(tokens)], bytes, operations: 0 }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whether each of some rows with so many changes is chosen by the kernel, with room for so many in all.
    fn can(changes: &[usize], changes_max: usize) -> Vec<bool> {
        let vocabulary = 3000;
        let sampling = |count: &usize| Sampling {
            logit_bias: (0..*count as u32).map(|id| (id, 1.0)).collect(),
            ..Sampling::default()
        };
        let samplings: Vec<Sampling> = changes.iter().map(sampling).collect();
        let history = History::default();
        let draw = |sampling| Draw { sampling, history: &history, position: 0, only: None };
        let draws: Vec<Draw<'_>> = samplings.iter().map(draw).collect();
        let (requests, can) = Requests::of(&draws, &[], vocabulary, changes_max);
        assert!(requests.changes.len() <= changes_max * CHANGE_WORDS);
        assert_eq!(requests.rows.len(), changes.len() * ROW_WORDS);
        can
    }

    #[test]
    fn every_row_has_its_share_and_one_takes_what_the_others_leave() {
        let room = |rows: usize| rows * CHANGES_MAX + 3000;
        assert_eq!(can(&[3000], room(1)), [true]);
        assert_eq!(can(&[3000, 1024, 1024], room(3)), [true; 3]);
        // The second would take a share that the others may need; when it is the third's turn one is left over.
        assert_eq!(can(&[3000, 3000, 3000, 1024], room(4)), [true, false, true, true]);
        assert_eq!(can(&[1024, 1025, 1024], 3 * CHANGES_MAX), [true, false, true]);
    }

    #[test]
    fn a_mask_has_a_bit_for_each_token_that_there_is() {
        let of = |ids: &[u32], vocabulary| mask_of(&ids.iter().copied().collect(), vocabulary);
        assert_eq!(of(&[0, 31, 32, 65, 96], 66), [1 | 1 << 31, 1, 2]);
        assert_eq!(of(&[], 33), [0, 0]);
    }
}
