//! Rotary position embedding with YaRN.
//!
//! Element i of a head's first half turns with element i of its second half, by position * inv_freq\[i\].

use model_formats::gpt_oss::Rope;

/// What turns the heads of one model.
#[derive(Debug, Clone, PartialEq)]
pub struct Rotation {
    /// Radians per position of each pair, (head_dim / 2).
    pub inv_freq: Vec<f32>,
    /// Multiplies cosine and sine.
    pub concentration: f32,
}

impl Rotation {
    pub fn new(rope: &Rope, head_dim: usize) -> Rotation {
        let pairs = head_dim / 2;
        let base = |i: usize| rope.theta.powf(-2.0 * i as f64 / head_dim as f64);
        let Some(yarn) = &rope.yarn else {
            return Rotation { inv_freq: (0..pairs).map(|i| base(i) as f32).collect(), concentration: 1.0 };
        };
        let (low, high) = yarn.ramp(rope.theta, head_dim);
        let inv_freq = |i: usize| {
            let interpolated = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
            (base(i) * (1.0 - interpolated) + base(i) / yarn.factor * interpolated) as f32
        };
        Rotation { inv_freq: (0..pairs).map(inv_freq).collect(), concentration: yarn.concentration as f32 }
    }

    /// Cosines and sines at a position, (head_dim / 2) each, concentration included.
    pub fn at(&self, position: u32) -> (Vec<f32>, Vec<f32>) {
        let turn = |&inv_freq: &f32| {
            // The product in f32, as the reference has it; its cosine in f64, which costs nothing here.
            let angle = f64::from(position as f32 * inv_freq);
            let scale = f64::from(self.concentration);
            ((angle.cos() * scale) as f32, (angle.sin() * scale) as f32)
        };
        self.inv_freq.iter().map(turn).unzip()
    }
}

/// Turns one head, in place. `cos` and `sin` are those of its position.
pub fn rotate(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (first, second) = head.split_at_mut(cos.len());
    for (((a, b), cos), sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}

#[cfg(test)]
mod tests;
