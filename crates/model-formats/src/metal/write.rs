//! Writes a `model.bin` of the published tensors: for tests, and for models whose publisher offers none.

use std::io::{self, Write};

use super::layout::{KEY_FACTOR, QUERY_FACTOR, SCALE_SHIFT, turn};
use super::{ALIGNMENT, HEAD_DIM, LAYOUT_UUID, MAGIC, MODEL_UUID, PAGE, TOKENIZER_UUID};
use crate::gpt_oss::{Attention, GptOssConfig};

/// Special tokens that the form has room for.
pub const SPECIAL_TOKENS: usize = 16;
/// Names of special tokens that have an identifier in the file. The names are those of `tokenizer.json`.
pub const SPECIAL_NAMES: [(&str, u128); 9] = [
    ("<|start|>", 0x55a77c2f_8a01_4c54_8ac2_313bfc7e208d),
    ("<|message|>", 0x16e40431_f47f_4b22_b59b_8b278fc30a54),
    ("<|end|>", 0xfcac2f6d_4705_4f6b_b228_642accac7238),
    ("<|return|>", 0xf799ff69_1992_43c4_a3d8_d831f475dc75),
    ("<|constrain|>", 0xc0bb14c7_6022_49da_ad08_792d67e8b470),
    ("<|channel|>", 0xfd3dda11_c8ab_4033_876e_d93deb172c93),
    ("<|call|>", 0x1220f796_e388_4de5_b487_fe2eb5fe03c0),
    ("<|reserved_200000|>", 0x07d7da55_b346_4cff_8b37_7cefacf8a3e8),
    ("<|reserved_200013|>", 0xe15ba702_28c4_4292_ab8f_ffa434709128),
];

/// What a file is made of.
pub struct MetalSource<'a, T> {
    pub config: &'a GptOssConfig,
    /// Bytes of the ordinary tokens, in the order of their ids.
    pub tokens: &'a [Vec<u8>],
    /// Of the sixteen special tokens behind them, as `tokenizer.json` has them.
    pub special: &'a [String; SPECIAL_TOKENS],
    /// The pattern that splits text, ASCII.
    pub pattern: &'a str,
    /// The bytes of a published tensor, by its name.
    pub tensor: T,
}

#[derive(Debug, thiserror::Error)]
pub enum MetalWriteError {
    #[error("{what} cannot be said in this form: {problem}")]
    Unsupported { what: &'static str, problem: String },
    #[error("cannot write")]
    Io(#[from] io::Error),
}

/// Counts what is written.
struct Counted<W> {
    out: W,
    at: u64,
}

impl<W: Write> Counted<W> {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.at += bytes.len() as u64;
        self.out.write_all(bytes)
    }

    fn pad(&mut self, to: u64) -> io::Result<()> {
        let zeros = vec![0; (self.at.next_multiple_of(to) - self.at) as usize];
        self.put(&zeros)
    }

    fn tensor(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.pad(ALIGNMENT)?;
        self.put(bytes)
    }
}

/// Writes the whole file, from front to back.
///
/// # Errors
/// [`MetalWriteError::Unsupported`] before anything is written, or, for scales that leave no room for what is added, when
/// they are met; otherwise what `out` gives.
pub fn write_metal<'t, T: Fn(&str) -> &'t [u8]>(
    source: &MetalSource<'_, T>,
    out: impl Write,
) -> Result<(), MetalWriteError> {
    let config = source.config;
    check(source)?;
    let mut out = Counted { out, at: 0 };
    put_head(source, &mut out)?;
    out.pad(PAGE)?;
    let (hidden, query, kv) = (config.hidden, config.query_width(), config.kv_width());
    let rows = source.tokens.len() + SPECIAL_TOKENS;
    let tensor = &source.tensor;
    out.tensor(&tensor("model.embed_tokens.weight")[..2 * rows * hidden])?;
    for n in 0..config.layers.len() {
        let get = |name: &str| tensor(&format!("model.layers.{n}.{name}"));
        out.tensor(get("input_layernorm.weight"))?;
        for (kind, row) in [("weight", 2 * hidden), ("bias", 2)] {
            let part = |name: &str| get(&format!("self_attn.{name}_proj.{kind}"));
            let (q, k) = (turn(part("q"), row, QUERY_FACTOR), turn(part("k"), row, KEY_FACTOR));
            debug_assert_eq!((q.len(), k.len()), (query * row, kv * row));
            out.tensor(&[&q, &k, part("v")].concat())?;
        }
        for name in [
            "self_attn.sinks",
            "self_attn.o_proj.weight",
            "self_attn.o_proj.bias",
            "post_attention_layernorm.weight",
            "mlp.router.weight",
            "mlp.router.bias",
        ] {
            out.tensor(get(name))?;
        }
    }
    out.tensor(tensor("model.norm.weight"))?;
    out.tensor(&tensor("lm_head.weight")[..2 * rows * hidden])?;
    for n in 0..config.layers.len() {
        out.pad(PAGE)?;
        put_experts(source, n, &mut out)?;
    }
    out.out.flush()?;
    Ok(())
}

fn put_experts<'t, T: Fn(&str) -> &'t [u8], W: Write>(
    source: &MetalSource<'_, T>,
    layer: usize,
    out: &mut Counted<W>,
) -> Result<(), MetalWriteError> {
    let experts = source.config.experts;
    for expert in 0..experts {
        for matrix in ["gate_up_proj", "down_proj"] {
            let part = |name: &str| {
                let all = (source.tensor)(&format!("model.layers.{layer}.mlp.experts.{matrix}_{name}"));
                let one = all.len() / experts;
                &all[expert * one..][..one]
            };
            out.tensor(part("blocks"))?;
            let scale = |scale: &u8| scale.checked_add(SCALE_SHIFT).filter(|s| *s < u8::MAX);
            let scales: Option<Vec<u8>> = part("scales").iter().map(scale).collect();
            let scales = scales.ok_or_else(|| MetalWriteError::Unsupported {
                what: "an expert's scale",
                problem: format!("one of layer {layer} is so large that {SCALE_SHIFT} more is no scale"),
            })?;
            out.tensor(&scales)?;
            out.tensor(part("bias"))?;
        }
    }
    Ok(())
}

fn check<T>(source: &MetalSource<'_, T>) -> Result<(), MetalWriteError> {
    let config = source.config;
    let wrong = |what, problem: String| Err(MetalWriteError::Unsupported { what, problem });
    if config.head_dim != HEAD_DIM as usize {
        return wrong("the model", format!("its heads are {} wide, not {HEAD_DIM}", config.head_dim));
    }
    if config.rope.yarn.is_none() {
        return wrong("the model", "its rotary embedding is not YaRN".to_owned());
    }
    let alternates = |(n, kind): (usize, &Attention)| (n % 2 == 0) == (*kind == Attention::Sliding);
    if !config.layers.iter().enumerate().all(alternates) {
        return wrong("the model", "not every second layer slides, the first included".to_owned());
    }
    let rows = source.tokens.len() + SPECIAL_TOKENS;
    if rows > config.vocabulary {
        return wrong("the vocabulary", format!("{rows} tokens, and the model has {}", config.vocabulary));
    }
    if let Some(id) = source.tokens.iter().position(|t| t.is_empty() || t.len() > usize::from(u16::MAX)) {
        return wrong("the vocabulary", format!("token {id} has {} bytes", source.tokens[id].len()));
    }
    Ok(())
}

fn put_head<T, W: Write>(source: &MetalSource<'_, T>, out: &mut Counted<W>) -> io::Result<()> {
    let config = source.config;
    let Some(yarn) = &config.rope.yarn else { unreachable!("checked before") };
    let (low, high) = yarn.ramp(config.rope.theta, config.head_dim);
    out.put(MAGIC)?;
    out.put(&MODEL_UUID)?;
    let numbers = |out: &mut Counted<W>, numbers: &[usize]| {
        numbers.iter().try_for_each(|n| out.put(&(*n as u32).to_le_bytes()))
    };
    let reals = |out: &mut Counted<W>, reals: &[f64]| {
        reals.iter().try_for_each(|n| out.put(&(*n as f32).to_le_bytes()))
    };
    let context = config.context_length_max as usize;
    numbers(out, &[context, config.layers.len(), config.experts, config.experts_per_token])?;
    numbers(out, &[config.hidden, config.intermediate])?;
    reals(out, &[f64::from(config.swiglu_limit)])?;
    numbers(out, &[config.head_dim, config.heads, config.kv_heads, config.sliding_window])?;
    reals(out, &[config.rope.theta, 1.0 / yarn.factor, -low / (high - low), 1.0 / (high - low)])?;
    reals(out, &[yarn.concentration])?;
    out.put(&config.rms_epsilon.to_le_bytes())?;
    out.put(&LAYOUT_UUID)?;
    out.put(&TOKENIZER_UUID)?;
    let table: usize = source.tokens.iter().map(|t| t.len() + 2).sum();
    numbers(out, &[SPECIAL_TOKENS, source.tokens.len(), source.pattern.len() + 1, table])?;
    for special in source.special {
        let known = SPECIAL_NAMES.iter().find(|(name, _)| name == special);
        out.put(&known.map_or(0, |(_, uuid)| *uuid).to_be_bytes())?;
    }
    out.put(source.pattern.as_bytes())?;
    out.put(&[0])?;
    for token in source.tokens {
        out.put(&(token.len() as u16).to_le_bytes())?;
        out.put(token)?;
    }
    Ok(())
}
