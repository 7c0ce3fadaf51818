//! Which kernel multiplies what: in which form activations are, by instruction set, weights and how many there are.
//!
//! All choices are made here and in [`super::quantized::kernel`]; [`table`] asks them, so what it shows is what runs.

use super::{Activations, Isa, Order, quantized};

/// Rows from which on activations may be rounded: fewer fill too little of a group of 16, and f32 is as fast.
const ROUNDED_MIN: usize = 8;
/// An expert with at most so many visitors meets them without groups: of one of 16 most lanes would be empty, and a
/// group costs what about seven vectors in f32 do.
const FEW_VISITS: usize = 6;
/// The same where a group is tiles and the few are quantized. Counted and not seen: at three visitors a block of 16 rows
/// and 32 columns is some 60 cycles either way, most of them for bringing the weights into the form.
const FEW_VISITS_TILES: usize = 3;

/// How activations are multiplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// As f32.
    Split,
    /// As bf16, in groups.
    Rounded,
    /// In eight bits.
    Quantized,
}

/// What choices depend on beside weights and numbers of tokens.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Chooser {
    pub(crate) isa: Isa,
    pub(crate) order: Order,
    /// As [`Activations::with`] has it for the two.
    pub(crate) activations: Activations,
}

impl Chooser {
    /// Of so many tokens at a matrix of the whole layer; `eight_bits`: of its weights, which otherwise are bf16.
    pub(crate) fn matrix(self, tokens: usize, eight_bits: bool) -> Form {
        if eight_bits && self.quantizes() && !(self.rounds(tokens) && self.has_tiles()) {
            Form::Quantized
        } else if self.rounds(tokens) {
            Form::Rounded
        } else {
            Form::Split
        }
    }

    /// Of the visitors of an expert, whose weights are MXFP4, among so many tokens.
    pub(crate) fn expert(self, tokens: usize, visitors: usize) -> Form {
        let few = if self.quantizes() { FEW_VISITS_TILES } else { FEW_VISITS };
        if self.rounds(tokens) && visitors > few && (self.has_tiles() || !self.quantizes()) {
            Form::Rounded
        } else if self.quantizes() {
            Form::Quantized
        } else {
            Form::Split
        }
    }

    /// Whether tokens are quantized to meet weights of four or eight bits.
    pub(crate) fn quantizes(self) -> bool {
        self.activations == Activations::Int8
    }

    fn rounds(self, tokens: usize) -> bool {
        self.activations.rounds(self.isa, self.order) && tokens >= ROUNDED_MIN
    }

    /// Many tokens in tiles of bf16 are faster than in eight bits.
    fn has_tiles(self) -> bool {
        self.isa == Isa::Amx
    }

    /// The name of what multiplies so many vectors in a form; `eight_bits`: with weights of eight bits.
    fn kernel(self, form: Form, eight_bits: bool, vectors: usize) -> &'static str {
        match (form, self.isa) {
            (Form::Rounded, Isa::Amx) => "amx bf16",
            (Form::Rounded, _) => "avx512 bf16",
            (Form::Quantized, isa) => quantized::kernel(isa, self.order, eight_bits, vectors).as_str(),
            (Form::Split, Isa::Scalar) => "scalar f32",
            (Form::Split, Isa::Avx2) => "avx2 f32",
            (Form::Split, Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx) => "avx512 f32",
            (Form::Split, Isa::Neon) => "neon f32",
        }
    }
}

/// What some weights meet, from so many vectors on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// "bf16", "int8", or "mxfp4", whose vectors are an expert's visitors among [`TABLE_TOKENS`] tokens.
    pub weights: &'static str,
    pub vectors_min: usize,
    pub kernel: &'static str,
}

/// Beyond it nothing changes any more.
pub const TABLE_TOKENS: usize = 64;

/// The kernels that run.
pub fn table(isa: Isa, activations: Activations, order: Order) -> Vec<Choice> {
    let chooser = Chooser { isa, order, activations: activations.with(isa, order) };
    let mut table: Vec<Choice> = Vec::new();
    for weights in ["bf16", "int8", "mxfp4"] {
        for vectors in 1..=TABLE_TOKENS {
            let form = match weights {
                "mxfp4" => chooser.expert(TABLE_TOKENS, vectors),
                _ => chooser.matrix(vectors, weights == "int8"),
            };
            let kernel = chooser.kernel(form, weights == "int8", vectors);
            let same = |last: &Choice| last.weights == weights && last.kernel == kernel;
            if !table.last().is_some_and(same) {
                table.push(Choice { weights, vectors_min: vectors, kernel });
            }
        }
    }
    table
}

#[cfg(test)]
mod tests;
