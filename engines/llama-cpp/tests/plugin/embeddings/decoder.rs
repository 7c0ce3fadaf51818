//! A decoder in plain f64, written from its papers' description: what the embeddings of llama.cpp's are compared with.

use std::collections::HashMap;

use gpt_oss_synth::{DenseShape, Family, MadeTensor, Pooling};

const HEAD_DIM: usize = DenseShape::HEAD_DIM;

pub struct Decoder {
    family: Family,
    tensors: HashMap<String, Vec<f64>>,
}

impl Decoder {
    pub fn new(family: Family, tensors: &[MadeTensor]) -> Decoder {
        let wide = |tensor: &MadeTensor| tensor.numbers.iter().map(|n| f64::from(*n)).collect();
        let tensors = tensors.iter().map(|tensor| (tensor.name.clone(), wide(tensor))).collect();
        Decoder { family, tensors }
    }

    /// `W·x`, and `+ b` where there is one.
    fn linear(&self, name: &str, row: &[f64]) -> Vec<f64> {
        let weight = self.tensors[&format!("{name}.weight")].chunks_exact(row.len());
        let mut out: Vec<f64> = weight.map(|w| w.iter().zip(row).map(|(w, x)| w * x).sum()).collect();
        if let Some(bias) = self.tensors.get(&format!("{name}.bias")) {
            out.iter_mut().zip(bias).for_each(|(out, bias)| *out += bias);
        }
        out
    }

    fn norm(&self, name: &str, row: &[f64]) -> Vec<f64> {
        let square = row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64;
        let scale = 1.0 / (square + f64::from(DenseShape::EPSILON)).sqrt();
        row.iter().zip(&self.tensors[&format!("{name}.weight")]).map(|(x, w)| x * scale * w).collect()
    }

    /// Normed where the family has that, then turned by the position: neighbours are a pair in the first family, in the others
    /// the halves of a head lie side by side.
    fn turned(&self, norm: &str, head: &[f64], position: usize) -> Vec<f64> {
        let head = if self.family == Family::Qwen3 { self.norm(norm, head) } else { head.to_vec() };
        let mut out = head.clone();
        for pair in 0..HEAD_DIM / 2 {
            let (a, b) = match self.family {
                Family::Llama => (2 * pair, 2 * pair + 1),
                Family::Qwen2 | Family::Qwen3 => (pair, pair + HEAD_DIM / 2),
            };
            let power = -2.0 * pair as f64 / HEAD_DIM as f64;
            let angle = position as f64 * f64::from(DenseShape::ROPE_BASE).powf(power);
            out[a] = head[a] * angle.cos() - head[b] * angle.sin();
            out[b] = head[a] * angle.sin() + head[b] * angle.cos();
        }
        out
    }

    /// A row looks at itself and those before it; several heads of queries share one of keys and values.
    fn attention(&self, layer: usize, rows: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let name = |part: &str| format!("blk.{layer}.{part}");
        let heads = |part: &str, turn: Option<&str>| -> Vec<Vec<Vec<f64>>> {
            let of_row = |(position, row): (usize, &Vec<f64>)| {
                let all = self.linear(&name(part), row);
                let turned = |head: &[f64]| match turn {
                    Some(norm) => self.turned(&name(norm), head, position),
                    None => head.to_vec(),
                };
                all.chunks_exact(HEAD_DIM).map(turned).collect()
            };
            rows.iter().enumerate().map(of_row).collect()
        };
        let queries = heads("attn_q", Some("attn_q_norm"));
        let (keys, values) = (heads("attn_k", Some("attn_k_norm")), heads("attn_v", None));
        let each = DenseShape::HEADS / DenseShape::KV_HEADS;
        let one = |(at, of_heads): (usize, &Vec<Vec<f64>>)| {
            let mut out = Vec::with_capacity(DenseShape::HIDDEN);
            for (head, query) in of_heads.iter().enumerate() {
                let score = |key: &Vec<Vec<f64>>| {
                    let dot: f64 = query.iter().zip(&key[head / each]).map(|(q, k)| q * k).sum();
                    (dot / (HEAD_DIM as f64).sqrt()).exp()
                };
                let scores: Vec<f64> = keys[..=at].iter().map(score).collect();
                let total: f64 = scores.iter().sum();
                out.extend((0..HEAD_DIM).map(|n| {
                    let pairs = scores.iter().zip(&values);
                    pairs.map(|(score, value)| score / total * value[head / each][n]).sum::<f64>()
                }));
            }
            self.linear(&name("attn_output"), &out)
        };
        queries.iter().enumerate().map(one).collect()
    }

    fn feed_forward(&self, layer: usize, row: &[f64]) -> Vec<f64> {
        let of = |part: &str, row: &[f64]| self.linear(&format!("blk.{layer}.{part}"), row);
        let gate = of("ffn_gate", row);
        let inner: Vec<f64> =
            gate.iter().zip(of("ffn_up", row)).map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up).collect();
        of("ffn_down", &inner)
    }

    /// Of length 1.
    pub fn embed(&self, ids: &[u32], pooling: Pooling) -> Vec<f32> {
        let table = &self.tensors["token_embd.weight"];
        let row = |id: &u32| table[*id as usize * DenseShape::HIDDEN..][..DenseShape::HIDDEN].to_vec();
        let mut rows: Vec<Vec<f64>> = ids.iter().map(row).collect();
        for layer in 0..DenseShape::LAYERS {
            let norm = |part: &str, row: &Vec<f64>| self.norm(&format!("blk.{layer}.{part}"), row);
            let normed: Vec<_> = rows.iter().map(|row| norm("attn_norm", row)).collect();
            add(&mut rows, &self.attention(layer, &normed));
            let fed: Vec<_> =
                rows.iter().map(|row| self.feed_forward(layer, &norm("ffn_norm", row))).collect();
            add(&mut rows, &fed);
        }
        let rows: Vec<_> = rows.iter().map(|row| self.norm("output_norm", row)).collect();
        let made: Vec<f64> = match pooling {
            Pooling::First => rows[0].clone(),
            Pooling::Last => rows[rows.len() - 1].clone(),
            Pooling::Mean => (0..DenseShape::HIDDEN).map(|at| rows.iter().map(|row| row[at]).sum()).collect(),
        };
        let length = made.iter().map(|x| x * x).sum::<f64>().sqrt();
        made.iter().map(|x| (x / length) as f32).collect()
    }
}

fn add(rows: &mut [Vec<f64>], others: &[Vec<f64>]) {
    for (row, other) in rows.iter_mut().zip(others) {
        row.iter_mut().zip(other).for_each(|(a, b)| *a += b);
    }
}
