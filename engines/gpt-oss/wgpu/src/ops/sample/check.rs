//! The kernels that choose tokens against the SDK's sampler.

use engine_sdk::{Choice, Draw, History, Sampler, Sampling, Status, TokenLogprob};

use super::{ANSWER_WORDS, CHANGE_WORDS, CHANGES_MAX, ROW_WORDS, Requests, STATE_WORDS, Sample, constants};
use crate::device::Gpu;
use crate::ops::Size;
use crate::testing::{Bed, Failure};

const END_TOKENS: [u32; 2] = [3, 8];

/// A row of a check: how its token is to be chosen, behind which others, and whether its logits are numbers.
struct Row {
    sampling: Sampling,
    history: History,
    is_sound: bool,
}

/// Every temperature plain, and with everything else that there is.
fn rows(bed: &mut Bed<'_>, vocabulary: usize) -> Vec<Row> {
    let mut all = Vec::new();
    let mut row = |sampling, history, is_sound| all.push(Row { sampling, history, is_sound });
    for (temperature, logprobs) in [(0.0, 0), (1.0, 5), (0.7, 20), (2.0, 1), (0.01, 3), (1.3, 0)] {
        let plain = Sampling { temperature, seed: bed.bits(), ..Sampling::default() };
        row(plain.clone(), History::default(), true);
        row(Sampling { logprobs: Some(logprobs), ..plain.clone() }, History::default(), true);
        let changed = Sampling {
            repetition_penalty: 1.7,
            presence_penalty: 0.5,
            frequency_penalty: 0.25,
            logit_bias: vec![(2, 3.5), (5, -100.0)],
            tokens_min: 100,
            logprobs: Some(logprobs),
            stop_tokens: vec![7],
            ..plain
        };
        let prompt: Vec<u32> = (0..20).map(|_| bed.below(vocabulary) as u32).collect();
        let mut history = History::new(&prompt, &changed);
        (0..10).for_each(|_| history.push(bed.below(vocabulary) as u32));
        row(changed, history, true);
    }
    row(Sampling::default(), History::default(), false);
    row(Sampling { logit_bias: vec![(2, 1.0)], ..Sampling::default() }, History::default(), false);
    all
}

/// Runs the kernels, and looks whether they leave the logits as they were.
fn choose(
    bed: &mut Bed<'_>,
    logits: &[f32],
    known: &[bool],
    requests: &Requests,
) -> Result<Vec<u32>, Failure> {
    let vocabulary = known.len();
    let rows = logits.len() / vocabulary;
    let logits_at = bed.put_f32(logits)?;
    let answers = bed.room(rows * ANSWER_WORDS)?;
    let asked = bed.room(rows * ROW_WORDS + CHANGES_MAX * CHANGE_WORDS)?;
    bed.fill(asked, &requests.bytes())?;
    let sample = Sample {
        logits: logits_at.whole(),
        constants: bed.put(&constants(known))?.whole(),
        requests: asked.whole(),
        state: bed.room(rows * STATE_WORDS)?.whole(),
        answers: answers.whole(),
        vocabulary,
    };
    bed.run(&sample.launches(requests))?;
    let left = bed.get_f32(logits_at, logits.len())?;
    if !left.iter().zip(logits).all(|(a, b)| a.to_bits() == b.to_bits()) {
        return Err(Failure::Other("the logits are not what they were".to_owned()));
    }
    Ok(bed.get(answers, rows * ANSWER_WORDS)?)
}

fn is_same(got: &Result<Choice, Status>, want: &Result<Choice, Status>) -> bool {
    let near = |(a, b): (&TokenLogprob, &TokenLogprob)| {
        a.id == b.id && (a.logprob - b.logprob).abs() <= 1e-6 * (1.0 + b.logprob.abs())
    };
    match (got, want) {
        (Ok(got), Ok(want)) => {
            got.id == want.id
                && got.logprobs.len() == want.logprobs.len()
                && got.logprobs.iter().zip(&want.logprobs).all(near)
        }
        (Err(got), Err(want)) => got.reason == want.reason,
        _ => false,
    }
}

pub(in crate::ops) fn check(gpu: &mut Gpu, size: Size, seed: u64) -> Result<(), Failure> {
    let mut bed = Bed::new(gpu, seed);
    let vocabulary = size.of([33, 2048, 1021, 70_000]);
    let known: Vec<bool> = (0..vocabulary).map(|id| id % 11 != 9).collect();
    let rows = rows(&mut bed, vocabulary);
    // Few different numbers, so that the largest are several; or all much alike, so that the walk is long.
    let (scale, step) = size.of([(4.0, 0.001), (12.0, 0.001), (4.0, 2.0), (0.5, 0.0001)]);
    let mut logits = Vec::new();
    for row in &rows {
        let begin = logits.len();
        logits.extend((0..vocabulary).map(|_| (bed.float(scale) / step).round() * step));
        if !row.is_sound {
            logits[begin + vocabulary - 2] = f32::NAN;
            logits[begin + 2] = f32::INFINITY;
        }
        logits[begin + 12] = f32::NEG_INFINITY;
    }
    let draws: Vec<Draw<'_>> = rows
        .iter()
        .zip(0..)
        .map(|(Row { sampling, history, .. }, n)| Draw { sampling, history, position: 3 * n, only: None })
        .collect();
    let requests = Requests::of(&draws, &END_TOKENS, vocabulary);
    let mut sampler = Sampler::new(known.clone(), END_TOKENS.to_vec());
    let words = choose(&mut bed, &logits, &known, &requests)?;
    let undecided = compare(&requests.answers(&words, false), &mut sampler, &draws, &logits)?;
    if undecided > 0 {
        return Err(Failure::Other(format!("{undecided} rows were not decided, which is one in a million")));
    }
    // One token weighs much, and a great many weigh less than this margin each: they cannot be told apart.
    let requests = Requests::with_margin(&draws, &END_TOKENS, vocabulary, u32::MAX);
    logits.fill(0.0);
    logits.iter_mut().step_by(vocabulary).for_each(|logit| *logit = 10.0);
    let words = choose(&mut bed, &logits, &known, &requests)?;
    let undecided = compare(&requests.answers(&words, false), &mut sampler, &draws, &logits)?;
    if undecided == 0 && vocabulary > 1 << 14 {
        return Err(Failure::Other("what lies within the margin was decided".to_owned()));
    }
    Ok(())
}

/// How many rows were not decided; all others are as the SDK's.
fn compare(
    answers: &[Option<Result<Choice, Status>>],
    sampler: &mut Sampler,
    draws: &[Draw<'_>],
    logits: &[f32],
) -> Result<usize, Failure> {
    let vocabulary = logits.len() / draws.len();
    let mut undecided = 0;
    for (n, (got, draw)) in answers.iter().zip(draws).enumerate() {
        let want = sampler.choose_for(&mut logits[n * vocabulary..][..vocabulary].to_vec(), draw);
        match got {
            Some(got) if is_same(got, &want) => {}
            None => undecided += 1,
            got => return Err(Failure::Other(format!("row {n} gave {got:?}, not {want:?}"))),
        }
    }
    Ok(undecided)
}
