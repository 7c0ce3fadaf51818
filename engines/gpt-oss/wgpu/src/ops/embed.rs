//! The tokens' rows of the embedding.

use crate::device::{Gpu, Launch, Slice};
use crate::ops::sample::ANSWER_WORDS;
use crate::ops::{Size, Tensor, word};
use crate::step::CHOSEN;
use crate::testing::{Bed, Expected, Failure, compare, widen};

/// Arguments of `embed`.
#[derive(Debug, Clone, Copy)]
pub struct Embed {
    pub step: Slice,
    /// Rows of it from `first` on.
    pub embedding: Tensor,
    pub first: usize,
    pub rows: usize,
    pub x: Slice,
    /// What the pass before chose.
    pub answers: Slice,
    pub hidden: usize,
    pub vocabulary: usize,
    pub tokens: usize,
    pub tokens_at: u32,
}

impl Embed {
    pub fn launch(&self) -> Launch {
        Launch {
            kernel: "embed",
            grid: [word(self.tokens), 1, 1],
            bindings: vec![self.step, self.embedding.slice, self.x, self.answers],
            arguments: vec![
                word(self.hidden),
                self.tokens_at,
                self.embedding.base_words(),
                word(self.vocabulary),
                word(self.first),
                word(self.rows),
            ],
        }
    }
}

pub(super) fn check(gpu: &mut Gpu, size: Size, seed: u64) -> Result<(), Failure> {
    let mut bed = Bed::new(gpu, seed);
    let (hidden, tokens, vocabulary) = (size.of([32, 2880, 96, 64]), size.of([1, 3, 5, 200]), 77);
    let embedding = bed.bf16s(vocabulary * hidden, 1.0);
    let mut words = vec![0; 3];
    words.extend((0..tokens).map(|_| bed.below(vocabulary) as u32));
    // Every other one is what a draw chose; the first of those chose nothing.
    let mut answers = vec![0; tokens * ANSWER_WORDS];
    let mut asked = words.clone();
    for i in (3..words.len()).step_by(2) {
        let draw = i - 3;
        answers[draw * ANSWER_WORDS + 1] = if draw == 0 { u32::MAX } else { words[i] };
        asked[i] = CHOSEN | draw as u32;
    }
    words[3] = vocabulary as u32 - 1;
    let (step, x) = (bed.put(&asked)?, bed.room(tokens * hidden)?);
    let answers = bed.put(&answers)?;
    let mut launches = Vec::new();
    for piece in [0..30, 30..vocabulary] {
        let embed = Embed {
            step: step.whole(),
            embedding: bed.tensor_bf16(&embedding[piece.start * hidden..piece.end * hidden])?,
            first: piece.start,
            rows: piece.len(),
            x: x.whole(),
            answers: answers.whole(),
            hidden,
            vocabulary,
            tokens,
            tokens_at: 3,
        };
        launches.push(embed.launch());
    }
    bed.run(&launches)?;
    let row = |&token: &u32| &embedding[token as usize * hidden..][..hidden];
    let want: Vec<_> = words[3..].iter().flat_map(row).map(|&x| Expected::exactly(widen(x))).collect();
    compare("x", &bed.get_f32(x, tokens * hidden)?, &want)
}
