//! Which experts a token goes to, and which tokens an expert has.

use crate::device::{Gpu, Launch, Slice};
use crate::ops::{Size, word};
use crate::testing::{Bed, Expected, Failure, compare};

/// Arguments of `route`.
#[derive(Debug, Clone, Copy)]
pub struct Route {
    pub logits: Slice,
    pub numbers: Slice,
    pub weights: Slice,
    pub experts: usize,
    pub chosen: usize,
    pub tokens: usize,
}

impl Route {
    pub fn launch(&self) -> Launch {
        Launch {
            kernel: "route",
            grid: [word(self.tokens), 1, 1],
            bindings: vec![self.logits, self.numbers, self.weights],
            arguments: vec![word(self.experts), word(self.chosen)],
        }
    }
}

pub(super) fn check(gpu: &mut Gpu, size: Size, seed: u64) -> Result<(), Failure> {
    let (experts, chosen, tokens) =
        (size.of([1, 128, 5, 32]), size.of([1, 8, 2, 4]), size.of([1, 3, 7, 300]));
    let mut bed = Bed::new(gpu, seed);
    // Eighths, so that some are equal.
    let logits: Vec<f32> = (0..tokens * experts).map(|_| bed.below(64) as f32 / 8.0 - 4.0).collect();
    let logits_at = bed.put_f32(&logits)?;
    let (numbers, weights) = (bed.room(tokens * chosen)?, bed.room(tokens * chosen)?);
    let route = Route {
        logits: logits_at.whole(),
        numbers: numbers.whole(),
        weights: weights.whole(),
        experts,
        chosen,
        tokens,
    };
    bed.run(&[route.launch()])?;
    let want: Vec<(usize, f32)> = logits
        .chunks_exact(experts)
        .flat_map(|logits| gpt_oss_model::router::choose_experts(logits, chosen))
        .collect();
    let want_numbers: Vec<_> = want.iter().map(|(number, _)| Expected::exactly(*number as f32)).collect();
    let got: Vec<f32> = bed.get(numbers, want.len())?.into_iter().map(|n| n as f32).collect();
    compare("experts", &got, &want_numbers)?;
    let want_weights: Vec<_> = want.iter().map(|(_, w)| Expected::within(f64::from(*w), 64.0)).collect();
    compare("weights", &bed.get_f32(weights, want.len())?, &want_weights)
}
