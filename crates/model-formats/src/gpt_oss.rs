//! Reads the `config.json` of a gpt-oss model and says which tensors its checkpoint has to have.

mod tensors;

use crate::config::{ConfigError, Fields};
use crate::generation_config::end_tokens;
use crate::mxfp4;

pub use tensors::{TensorError, TensorSpec, check_tensors, tensors};

/// Bounds of what is read. They keep every product of two of them far from the end of u64, and refuse absurd sizes
/// before anything is allocated for them.
pub const LAYERS_MAX: u32 = 1_024;
pub const WIDTH_MAX: u32 = 1 << 17;
pub const EXPERTS_MAX: u32 = 4_096;
pub const HEADS_MAX: u32 = 1_024;
pub const HEAD_DIM_MAX: u32 = 1_024;
pub const VOCABULARY_MAX: u32 = 1 << 22;
pub const CONTEXT_MAX: u32 = 1 << 24;

/// How a layer attends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attention {
    /// To the last [`GptOssConfig::sliding_window`] positions, its own included.
    Sliding,
    Full,
}

/// Rotary embedding.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    pub theta: f64,
    /// None: plain rotary embedding.
    pub yarn: Option<Yarn>,
}

/// YaRN scaling of the rotary embedding.
#[derive(Debug, Clone, PartialEq)]
pub struct Yarn {
    pub factor: f64,
    /// `original_max_position_embeddings`, in tokens.
    pub original_context: f64,
    pub beta_fast: f64,
    pub beta_slow: f64,
    /// Whether the ends of the ramp are rounded to whole pairs.
    pub truncate: bool,
    /// Multiplies cosine and sine; 0.1 ln(factor) + 1 unless the config says otherwise.
    pub concentration: f64,
}

/// The shape of a gpt-oss model. Every number is checked: products do not overflow, divisions come out even.
#[derive(Debug, Clone, PartialEq)]
pub struct GptOssConfig {
    pub layers: Vec<Attention>,
    /// Width of the residual stream; a multiple of 32.
    pub hidden: usize,
    /// Width of an expert; a multiple of 32.
    pub intermediate: usize,
    pub experts: usize,
    pub experts_per_token: usize,
    /// Query heads; a multiple of `kv_heads`.
    pub heads: usize,
    pub kv_heads: usize,
    /// Even.
    pub head_dim: usize,
    pub vocabulary: usize,
    pub sliding_window: usize,
    pub context_length_max: u32,
    pub rms_epsilon: f32,
    pub swiglu_limit: f32,
    pub swiglu_alpha: f32,
    pub rope: Rope,
    /// `eos_token_id` of `config.json`; `generation_config.json` usually has more.
    pub end_tokens: Vec<u32>,
}

impl Yarn {
    /// Pairs below the first number keep their frequency, pairs above the second are interpolated. `theta` and `head_dim`
    /// are those of the rotary embedding; the two are apart.
    pub fn ramp(&self, theta: f64, head_dim: usize) -> (f64, f64) {
        let half = head_dim as f64 / 2.0;
        let pair =
            |beta: f64| half * (self.original_context / (beta * std::f64::consts::TAU)).ln() / theta.ln();
        let (mut low, mut high) = (pair(self.beta_fast), pair(self.beta_slow));
        if self.truncate {
            low = low.floor().max(0.0);
            high = high.ceil().min(head_dim as f64 - 1.0);
        }
        // Two ends in one place would divide by nothing.
        if high - low < 1e-3 {
            high = low + 1e-3;
        }
        (low, high)
    }
}

impl GptOssConfig {
    /// Reads the contents of a `config.json`.
    ///
    /// # Errors
    /// Names the field that is missing, out of range or asks for what this model family does not have.
    pub fn parse(bytes: &[u8]) -> Result<GptOssConfig, ConfigError> {
        let fields = Fields::parse("config.json", bytes)?;
        check_variant(&fields)?;
        let number = |field: &str, max: u32| fields.required_number(field, 1, max).map(|n| n as usize);
        let layer_count = number("num_hidden_layers", LAYERS_MAX)?;
        let config = GptOssConfig {
            layers: layers(&fields, layer_count)?,
            hidden: number("hidden_size", WIDTH_MAX)?,
            intermediate: number("intermediate_size", WIDTH_MAX)?,
            experts: number("num_local_experts", EXPERTS_MAX)?,
            experts_per_token: experts_per_token(&fields)?,
            heads: number("num_attention_heads", HEADS_MAX)?,
            kv_heads: number("num_key_value_heads", HEADS_MAX)?,
            head_dim: number("head_dim", HEAD_DIM_MAX)?,
            vocabulary: number("vocab_size", VOCABULARY_MAX)?,
            sliding_window: fields.number("sliding_window", 1, CONTEXT_MAX)?.unwrap_or(128) as usize,
            context_length_max: fields.number("max_position_embeddings", 1, CONTEXT_MAX)?.unwrap_or(131_072),
            rms_epsilon: fields.real("rms_norm_eps", 0.0, 1.0)?.unwrap_or(1e-5) as f32,
            swiglu_limit: fields.real("swiglu_limit", 0.0, 1e6)?.unwrap_or(7.0) as f32,
            swiglu_alpha: fields.real("swiglu_alpha", 0.0, 1e3)?.unwrap_or(1.702) as f32,
            rope: rope(&fields)?,
            end_tokens: end_tokens(&fields)?,
        };
        config.check_relations(&fields)?;
        Ok(config)
    }

    /// Rows of the query projection.
    pub fn query_width(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Rows of the key projection, and of the value projection.
    pub fn kv_width(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    fn check_relations(&self, fields: &Fields) -> Result<(), ConfigError> {
        for (field, width) in [("hidden_size", self.hidden), ("intermediate_size", self.intermediate)] {
            if !width.is_multiple_of(mxfp4::BLOCK) {
                return Err(fields.error(field, format!("is {width}, not a multiple of 32 as MXFP4 needs")));
            }
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            let problem = format!("is {}, not a divisor of the {} query heads", self.kv_heads, self.heads);
            return Err(fields.error("num_key_value_heads", problem));
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(fields.error("head_dim", format!("is {}, which is odd", self.head_dim)));
        }
        if self.query_width() > WIDTH_MAX as usize {
            return Err(
                fields.error("num_attention_heads", format!("makes heads wider than {WIDTH_MAX} together"))
            );
        }
        if self.experts_per_token > self.experts {
            let problem = format!("is {}, more than the {} experts", self.experts_per_token, self.experts);
            return Err(fields.error("num_experts_per_tok", problem));
        }
        match self.end_tokens.iter().find(|&&id| id as usize >= self.vocabulary) {
            Some(id) => Err(fields.error("eos_token_id", format!("is {id}, beyond the vocabulary"))),
            None => Ok(()),
        }
    }
}

/// Refuses relatives of gpt-oss whose weights mean something else.
fn check_variant(fields: &Fields) -> Result<(), ConfigError> {
    if fields.flag("tie_word_embeddings")? == Some(true) {
        return Err(fields.error("tie_word_embeddings", "is true; gpt-oss has an lm_head of its own"));
    }
    if fields.flag("attention_bias")? == Some(false) {
        return Err(fields.error("attention_bias", "is false; gpt-oss has biases"));
    }
    if let Some(act) = fields.text("hidden_act")?
        && act != "silu"
    {
        return Err(fields.error("hidden_act", format!("is {act:?}; gpt-oss says \"silu\"")));
    }
    let method = match fields.object("quantization_config")? {
        None => None,
        Some(quantization) => quantization.text("quant_method")?.map(str::to_owned),
    };
    match method.as_deref() {
        Some("mxfp4") => Ok(()),
        Some(other) => {
            Err(fields.error("quantization_config.quant_method", format!("is {other:?}, not \"mxfp4\"")))
        }
        None => {
            Err(fields.error("quantization_config.quant_method", "is missing; only MXFP4 experts are read"))
        }
    }
}

fn experts_per_token(fields: &Fields) -> Result<usize, ConfigError> {
    let long = fields.number("num_experts_per_tok", 1, EXPERTS_MAX)?;
    let short = fields.number("experts_per_token", 1, EXPERTS_MAX)?;
    match (long, short) {
        (Some(a), Some(b)) if a != b => {
            Err(fields.error("experts_per_token", format!("is {b}, but num_experts_per_tok is {a}")))
        }
        (Some(n), _) | (None, Some(n)) => Ok(n as usize),
        (None, None) => Err(fields.error("num_experts_per_tok", "is missing")),
    }
}

/// `layer_types`; when absent the layers alternate and the first one slides.
fn layers(fields: &Fields, count: usize) -> Result<Vec<Attention>, ConfigError> {
    const FIELD: &str = "layer_types";
    let names = fields.texts(FIELD)?;
    if fields.value(FIELD).is_none() {
        let alternating = [Attention::Sliding, Attention::Full].into_iter().cycle();
        return Ok(alternating.take(count).collect());
    }
    if names.len() != count {
        let problem = format!("has {} entries, but num_hidden_layers is {count}", names.len());
        return Err(fields.error(FIELD, problem));
    }
    let layer = |name: &&str| match *name {
        "sliding_attention" => Ok(Attention::Sliding),
        "full_attention" => Ok(Attention::Full),
        other => {
            Err(fields.error(FIELD, format!("has {other:?}; sliding_attention and full_attention are known")))
        }
    };
    names.iter().map(layer).collect()
}

/// `rope_scaling` with `rope_theta` beside it as published, or `rope_parameters` with the theta inside.
fn rope(fields: &Fields) -> Result<Rope, ConfigError> {
    const THETA_DEFAULT: f64 = 150_000.0;
    let theta_of = |fields: &Fields| fields.real("rope_theta", 1.0 + 1e-6, 1e12);
    let (scaling, inner_theta) = match fields.object("rope_parameters")? {
        Some(parameters) => {
            let theta = theta_of(&parameters)?;
            (Some(parameters), theta)
        }
        None => (fields.object("rope_scaling")?, None),
    };
    let theta = inner_theta.or(theta_of(fields)?).unwrap_or(THETA_DEFAULT);
    let initial = fields.number("initial_context_length", 1, CONTEXT_MAX)?.unwrap_or(4_096);
    let yarn = match scaling {
        None => Some(Yarn {
            factor: 32.0,
            original_context: f64::from(initial),
            beta_fast: 32.0,
            beta_slow: 1.0,
            truncate: false,
            concentration: concentration(32.0),
        }),
        Some(scaling) => yarn(&scaling, initial)?,
    };
    Ok(Rope { theta, yarn })
}

fn yarn(scaling: &Fields, initial: u32) -> Result<Option<Yarn>, ConfigError> {
    let kind = match scaling.text("rope_type")? {
        Some(kind) => Some(kind),
        None => scaling.text("type")?,
    };
    match kind {
        Some("default") => return Ok(None),
        Some("yarn") => {}
        Some(other) => {
            return Err(scaling.error("rope_type", format!("is {other:?}; yarn and default are known")));
        }
        None => return Err(scaling.error("rope_type", "is missing")),
    }
    for field in ["mscale", "mscale_all_dim"] {
        if scaling.value(field).is_some() {
            return Err(scaling.error(field, "is not part of gpt-oss"));
        }
    }
    let factor = scaling.real("factor", 1.0, 1e6)?.ok_or_else(|| scaling.error("factor", "is missing"))?;
    let original = scaling.number("original_max_position_embeddings", 1, CONTEXT_MAX)?.unwrap_or(initial);
    let yarn = Yarn {
        factor,
        original_context: f64::from(original),
        beta_fast: scaling.real("beta_fast", 1e-3, 1e6)?.unwrap_or(32.0),
        beta_slow: scaling.real("beta_slow", 1e-3, 1e6)?.unwrap_or(1.0),
        // Absent inside a given object means true in the reference; gpt-oss says false.
        truncate: scaling.flag("truncate")?.unwrap_or(true),
        concentration: scaling.real("attention_factor", 0.0, 1e3)?.unwrap_or_else(|| concentration(factor)),
    };
    if yarn.beta_fast <= yarn.beta_slow {
        return Err(scaling.error("beta_fast", "is not above beta_slow"));
    }
    Ok(Some(yarn))
}

fn concentration(factor: f64) -> f64 {
    0.1 * factor.ln() + 1.0
}

#[cfg(test)]
mod tests;
