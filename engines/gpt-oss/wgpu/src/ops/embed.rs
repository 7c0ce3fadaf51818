//! The tokens' rows of the embedding.

use crate::device::{Gpu, Launch, Slice};
use crate::ops::{Size, Tensor, word};
use crate::testing::{Bed, Expected, Failure, compare, widen};

/// Arguments of `embed`.
#[derive(Debug, Clone, Copy)]
pub struct Embed {
    pub step: Slice,
    pub embedding: Tensor,
    pub x: Slice,
    pub hidden: usize,
    pub tokens: usize,
    pub tokens_at: u32,
}

impl Embed {
    pub fn launch(&self) -> Launch {
        Launch {
            kernel: "embed",
            grid: [word(self.tokens), 1, 1],
            bindings: vec![self.step, self.embedding.slice, self.x],
            arguments: vec![word(self.hidden), self.tokens_at, self.embedding.base_words()],
        }
    }
}

pub(super) fn check(gpu: &mut Gpu, size: Size, seed: u64) -> Result<(), Failure> {
    let mut bed = Bed::new(gpu, seed);
    let (hidden, tokens, vocabulary) = (size.of([32, 2880, 96, 64]), size.of([1, 3, 5, 200]), 77);
    let embedding = bed.bf16s(vocabulary * hidden, 1.0);
    let mut words = vec![0; 3];
    words.extend((0..tokens).map(|_| bed.below(vocabulary) as u32));
    let (step, x) = (bed.put(&words)?, bed.room(tokens * hidden)?);
    let embed = Embed {
        step: step.whole(),
        embedding: bed.tensor_bf16(&embedding)?,
        x: x.whole(),
        hidden,
        tokens,
        tokens_at: 3,
    };
    bed.run(&[embed.launch()])?;
    let row = |&token: &u32| &embedding[token as usize * hidden..][..hidden];
    let want: Vec<_> = words[3..].iter().flat_map(row).map(|&x| Expected::exactly(widen(x))).collect();
    compare("x", &bed.get_f32(x, tokens * hidden)?, &want)
}
