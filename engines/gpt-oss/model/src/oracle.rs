//! The forward pass, one token at a time, in reading order.
//!
//! Sizes: H hidden, I width of an expert, D width of a head, V vocabulary. Every activation is f32.

use model_formats::gpt_oss::{Attention, GptOssConfig};

use crate::rope::{Rotation, rotate};
use crate::router::choose_experts;
use crate::weights::{Bf16, Weights};

/// A model that computes slowly and plainly.
#[derive(Debug)]
pub struct Oracle<'w, W> {
    config: GptOssConfig,
    rotation: Rotation,
    weights: &'w W,
}

/// Keys and values of one sequence: all of them; the sliding window is a matter of who looks.
#[derive(Debug, Clone, Default)]
pub struct Cache {
    /// Tokens seen.
    length: usize,
    layers: Vec<LayerCache>,
}

#[derive(Debug, Clone, Default)]
struct LayerCache {
    /// (length, kv_heads, D), turned.
    keys: Vec<f32>,
    /// (length, kv_heads, D)
    values: Vec<f32>,
}

impl<'w, W: Weights> Oracle<'w, W> {
    pub fn new(config: GptOssConfig, weights: &'w W) -> Oracle<'w, W> {
        let rotation = Rotation::new(&config.rope, config.head_dim);
        Oracle { config, rotation, weights }
    }

    pub fn new_cache(&self) -> Cache {
        Cache { length: 0, layers: vec![LayerCache::default(); self.config.layers.len()] }
    }

    /// Runs one more token of a sequence; returns the logits after it, (V).
    ///
    /// # Panics
    /// When the token is beyond the vocabulary.
    pub fn forward(&self, cache: &mut Cache, token: u32) -> Vec<f32> {
        let x = self.hidden(cache, token);
        let t = rms_norm(&x, self.weights.bf16("model.norm.weight"), self.config.rms_epsilon);
        matrix_vector(self.weights.bf16("lm_head.weight"), &t)
    }

    /// The residual stream after the last layer, (H): all a token needs that nobody asks for its successor.
    pub fn hidden(&self, cache: &mut Cache, token: u32) -> Vec<f32> {
        assert!((token as usize) < self.config.vocabulary, "token {token} is beyond the vocabulary");
        let embedding = self.weights.bf16("model.embed_tokens.weight");
        let mut x = embedding.row(token as usize, self.config.hidden).to_vec();
        for layer in 0..self.config.layers.len() {
            let t = self.norm(layer, "input_layernorm", &x);
            add(&mut x, &self.attention(layer, &mut cache.layers[layer], cache.length, &t));
            let t = self.norm(layer, "post_attention_layernorm", &x);
            add(&mut x, &self.experts(layer, &t));
        }
        cache.length += 1;
        x
    }

    /// `t` (H) to the attention's output (H); appends key and value of `position`.
    fn attention(&self, layer: usize, cache: &mut LayerCache, position: usize, t: &[f32]) -> Vec<f32> {
        let GptOssConfig { heads, kv_heads, head_dim, .. } = self.config;
        let mut q = self.linear(layer, "self_attn.q_proj", t);
        let mut k = self.linear(layer, "self_attn.k_proj", t);
        let v = self.linear(layer, "self_attn.v_proj", t);
        let position_u32 = u32::try_from(position).expect("positions are below CONTEXT_MAX");
        let (cos, sin) = self.rotation.at(position_u32);
        q.chunks_exact_mut(head_dim).for_each(|head| rotate(head, &cos, &sin));
        k.chunks_exact_mut(head_dim).for_each(|head| rotate(head, &cos, &sin));
        cache.keys.extend(k);
        cache.values.extend(v);

        let first = match self.config.layers[layer] {
            Attention::Full => 0,
            Attention::Sliding => (position + 1).saturating_sub(self.config.sliding_window),
        };
        let sinks = self.tensor(layer, "self_attn.sinks");
        let mut out = Vec::with_capacity(heads * head_dim);
        for (head, q) in q.chunks_exact(head_dim).enumerate() {
            let kv_head = head / (heads / kv_heads);
            let at = |j: usize| (j * kv_heads + kv_head) * head_dim..(j * kv_heads + kv_head + 1) * head_dim;
            let scale = 1.0 / (head_dim as f32).sqrt();
            let scores: Vec<f32> = (first..=position).map(|j| dot(q, &cache.keys[at(j)]) * scale).collect();
            let weights = softmax_with_sink(&scores, sinks.get(head));
            let mut mixed = vec![0.0; head_dim];
            for (j, weight) in (first..=position).zip(weights) {
                for (m, v) in mixed.iter_mut().zip(&cache.values[at(j)]) {
                    *m += weight * v;
                }
            }
            out.extend(mixed);
        }
        self.linear(layer, "self_attn.o_proj", &out)
    }

    /// `t` (H) to the mixture's output (H).
    fn experts(&self, layer: usize, t: &[f32]) -> Vec<f32> {
        let GptOssConfig { hidden, intermediate, .. } = self.config;
        let name = |tensor: &str| format!("model.layers.{layer}.mlp.experts.{tensor}");
        let mut out = vec![0.0; hidden];
        let logits = self.linear(layer, "mlp.router", t);
        for (expert, weight) in choose_experts(&logits, self.config.experts_per_token) {
            let gate_up = self.weights.mxfp4(&name("gate_up_proj"), expert, 2 * intermediate, hidden);
            let bias = self.weights.bf16(&name("gate_up_proj_bias")).row(expert, 2 * intermediate);
            let mut row = vec![0.0; hidden];
            let mut pair = |i: usize| {
                gate_up.row(i, &mut row);
                dot(&row, t) + bias.get(i)
            };
            // Gate and up alternate by row.
            let act: Vec<f32> =
                (0..intermediate).map(|i| self.swiglu(pair(2 * i), pair(2 * i + 1))).collect();

            let down = self.weights.mxfp4(&name("down_proj"), expert, hidden, intermediate);
            let bias = self.weights.bf16(&name("down_proj_bias")).row(expert, hidden);
            let mut row = vec![0.0; intermediate];
            for (i, out) in out.iter_mut().enumerate() {
                down.row(i, &mut row);
                *out += weight * (dot(&row, &act) + bias.get(i));
            }
        }
        out
    }

    fn swiglu(&self, gate: f32, up: f32) -> f32 {
        let limit = self.config.swiglu_limit;
        let gate = gate.min(limit);
        let up = up.clamp(-limit, limit);
        gate * sigmoid(self.config.swiglu_alpha * gate) * (up + 1.0)
    }

    fn tensor(&self, layer: usize, name: &str) -> Bf16<'_> {
        self.weights.bf16(&format!("model.layers.{layer}.{name}"))
    }

    fn norm(&self, layer: usize, name: &str, x: &[f32]) -> Vec<f32> {
        rms_norm(x, self.tensor(layer, &format!("{name}.weight")), self.config.rms_epsilon)
    }

    fn linear(&self, layer: usize, name: &str, t: &[f32]) -> Vec<f32> {
        let mut out = matrix_vector(self.tensor(layer, &format!("{name}.weight")), t);
        for (out, bias) in out.iter_mut().zip(self.tensor(layer, &format!("{name}.bias")).iter()) {
            *out += bias;
        }
        out
    }
}

fn rms_norm(x: &[f32], weight: Bf16<'_>, epsilon: f32) -> Vec<f32> {
    assert_eq!(x.len(), weight.len());
    let mean_square = dot(x, x) / x.len() as f32;
    let scale = 1.0 / (mean_square + epsilon).sqrt();
    x.iter().zip(weight.iter()).map(|(x, w)| x * scale * w).collect()
}

/// The softmax of the scores and of one more, which takes its share and has no value.
fn softmax_with_sink(scores: &[f32], sink: f32) -> Vec<f32> {
    let largest = scores.iter().copied().fold(sink, f32::max);
    let exps: Vec<f32> = scores.iter().map(|s| (s - largest).exp()).collect();
    let sum = exps.iter().sum::<f32>() + (sink - largest).exp();
    exps.into_iter().map(|e| e / sum).collect()
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// `matrix` (rows, x.len()) times `x`.
fn matrix_vector(matrix: Bf16<'_>, x: &[f32]) -> Vec<f32> {
    let rows = matrix.len() / x.len();
    (0..rows).map(|r| matrix.row(r, x.len()).iter().zip(x).map(|(w, x)| w * x).sum()).collect()
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(x: &mut [f32], y: &[f32]) {
    assert_eq!(x.len(), y.len());
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}
