//! An encoder in plain f64, written from the paper's description: what llama.cpp's is compared with.

use std::collections::HashMap;

use gpt_oss_synth::{BertShape, MadeTensor, Pooling};

const HIDDEN: usize = BertShape::HIDDEN;

pub struct Bert {
    tensors: HashMap<String, Vec<f64>>,
}

/// Rows of numbers.
type Rows = Vec<Vec<f64>>;

impl Bert {
    pub fn new(tensors: &[MadeTensor]) -> Bert {
        let wide = |tensor: &MadeTensor| tensor.numbers.iter().map(|n| f64::from(*n)).collect();
        Bert { tensors: tensors.iter().map(|tensor| (tensor.name.clone(), wide(tensor))).collect() }
    }

    fn row(&self, name: &str, row: usize) -> &[f64] {
        &self.tensors[name][row * HIDDEN..(row + 1) * HIDDEN]
    }

    /// `x·Wᵀ + b`
    fn linear(&self, name: &str, rows: &Rows) -> Rows {
        let (weight, bias) =
            (&self.tensors[&format!("{name}.weight")], &self.tensors[&format!("{name}.bias")]);
        let one = |row: &Vec<f64>| {
            let outputs = weight.chunks_exact(row.len()).zip(bias);
            outputs.map(|(w, b)| b + row.iter().zip(w).map(|(x, w)| x * w).sum::<f64>()).collect()
        };
        rows.iter().map(one).collect()
    }

    fn norm(&self, name: &str, rows: &Rows) -> Rows {
        let (weight, bias) =
            (&self.tensors[&format!("{name}.weight")], &self.tensors[&format!("{name}.bias")]);
        let one = |row: &Vec<f64>| {
            let mean = row.iter().sum::<f64>() / HIDDEN as f64;
            let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / HIDDEN as f64;
            let scale = 1.0 / (variance + f64::from(BertShape::EPSILON)).sqrt();
            row.iter().zip(weight).zip(bias).map(|((x, w), b)| (x - mean) * scale * w + b).collect()
        };
        rows.iter().map(one).collect()
    }

    /// Every row looks at every other.
    fn attention(&self, layer: usize, rows: &Rows) -> Rows {
        let of = |part: &str, rows: &Rows| self.linear(&format!("blk.{layer}.{part}"), rows);
        let [queries, keys, values] = ["attn_q", "attn_k", "attn_v"].map(|part| of(part, rows));
        let wide = HIDDEN / BertShape::HEADS;
        let one = |query: &Vec<f64>| {
            let mut out = Vec::with_capacity(HIDDEN);
            for head in 0..BertShape::HEADS {
                let part = head * wide..(head + 1) * wide;
                let score = |key: &Vec<f64>| {
                    let dot: f64 =
                        query[part.clone()].iter().zip(&key[part.clone()]).map(|(q, k)| q * k).sum();
                    (dot / (wide as f64).sqrt()).exp()
                };
                let scores: Vec<f64> = keys.iter().map(score).collect();
                let total: f64 = scores.iter().sum();
                out.extend(part.map(|at| {
                    scores.iter().zip(&values).map(|(score, value)| score / total * value[at]).sum::<f64>()
                }));
            }
            out
        };
        of("attn_output", &queries.iter().map(one).collect())
    }

    /// Of length 1.
    pub fn embed(&self, ids: &[u32], pooling: Pooling) -> Vec<f32> {
        let sum = |(position, id): (usize, &u32)| {
            let parts = [
                self.row("token_embd.weight", *id as usize),
                self.row("position_embd.weight", position),
                self.row("token_types.weight", 0),
            ];
            (0..HIDDEN).map(|at| parts.iter().map(|part| part[at]).sum()).collect()
        };
        let mut rows = self.norm("token_embd_norm", &ids.iter().enumerate().map(sum).collect());
        for layer in 0..BertShape::LAYERS {
            let name = |part: &str| format!("blk.{layer}.{part}");
            let attended = add(&rows, &self.attention(layer, &rows));
            rows = self.norm(&name("attn_output_norm"), &attended);
            let inner: Rows = self.linear(&name("ffn_up"), &rows);
            let inner = inner.iter().map(|row| row.iter().map(|x| gelu(*x)).collect()).collect();
            let fed = add(&rows, &self.linear(&name("ffn_down"), &inner));
            rows = self.norm(&name("layer_output_norm"), &fed);
        }
        let made: Vec<f64> = match pooling {
            Pooling::First => rows[0].clone(),
            Pooling::Last => rows[rows.len() - 1].clone(),
            Pooling::Mean => (0..HIDDEN).map(|at| rows.iter().map(|row| row[at]).sum()).collect(),
        };
        let length = made.iter().map(|x| x * x).sum::<f64>().sqrt();
        made.iter().map(|x| (x / length) as f32).collect()
    }
}

fn add(a: &Rows, b: &Rows) -> Rows {
    a.iter().zip(b).map(|(a, b)| a.iter().zip(b).map(|(a, b)| a + b).collect()).collect()
}

/// The form with the hyperbolic tangent.
fn gelu(x: f64) -> f64 {
    0.5 * x * (1.0 + (std::f64::consts::FRAC_2_PI.sqrt() * (x + 0.044715 * x.powi(3))).tanh())
}
