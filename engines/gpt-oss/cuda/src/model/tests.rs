//! What a load takes of a device, for models that are far larger than a test may be.

use std::cell::RefCell;
use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use gpt_oss_model::Attention;
use model_formats::Dtype;
use model_formats::gpt_oss::tensors;

use super::*;
use crate::counting::{Counting, Ledger};
use crate::plan::PAGE_BYTES;

/// Zeros of the right length for every tensor. Nobody reads them, so that most take no memory.
#[derive(Debug)]
struct Zeros {
    zeros: Vec<u8>,
    bytes: HashMap<String, usize>,
}

impl Zeros {
    fn of(config: &GptOssConfig) -> Zeros {
        let bytes: HashMap<String, usize> = tensors(config)
            .into_iter()
            .map(|tensor| {
                let each = if tensor.dtype == Dtype::BF16 { 2 } else { 1 };
                (tensor.name, each * tensor.shape.iter().product::<u64>() as usize)
            })
            .collect();
        Zeros { zeros: vec![0; bytes.values().copied().max().unwrap_or(0)], bytes }
    }

    fn total(&self) -> u64 {
        self.bytes.values().map(|bytes| *bytes as u64).sum()
    }
}

impl Weights for Zeros {
    fn bytes(&self, tensor: &str) -> &[u8] {
        &self.zeros[..self.bytes[tensor]]
    }
}

/// A model of so many layers, sliding and full by turns.
fn config(layers: usize, width: usize, experts: usize, vocabulary: usize) -> GptOssConfig {
    let text = format!(
        r#"{{"model_type": "gpt_oss", "num_hidden_layers": {layers}, "hidden_size": {width}, "intermediate_size": {width},
        "num_local_experts": {experts}, "num_experts_per_tok": 4, "num_attention_heads": 64, "num_key_value_heads": 8,
        "head_dim": 64, "vocab_size": {vocabulary}, "sliding_window": 128, "eos_token_id": 2, "hidden_act": "silu",
        "rope_theta": 150000, "attention_bias": true, "quantization_config": {{"quant_method": "mxfp4"}}}}"#
    );
    let config = GptOssConfig::parse(text.as_bytes()).expect("a sound shape");
    assert_eq!(config.layers[..2], [Attention::Sliding, Attention::Full]);
    config
}

/// Loads it, and compares what was estimated with the sum of what was allocated: within 2 %, and in fact to the page.
fn check(config: &GptOssConfig, bounds: Bounds, processors: u32) {
    let what = format!("{} layers of {}, {bounds:?}", config.layers.len(), config.hidden);
    let weights = Zeros::of(config);
    let ledger = Arc::new(Mutex::new(Ledger::default()));
    let device = Counting { ledger: Arc::clone(&ledger), processors };
    let estimated = Needs::of(config, bounds, processors);
    let told = RefCell::new(0);
    let known = vec![true; config.vocabulary];
    let loaded = CudaModel::load(Box::new(device), config, &weights, bounds, &known, |done| {
        told.replace(done);
        Ok::<(), Infallible>(())
    });
    let model = loaded.unwrap_or_else(|error| panic!("{what}: {error:?}"));
    assert_eq!(model.needs(), estimated, "{what}");
    let ledger = ledger.lock().expect("nobody panics with it");
    let used = ledger.allocated_pages() * PAGE_BYTES;
    let off = estimated.total() as f64 / used as f64 - 1.0;
    assert!(off.abs() <= 0.02, "{what}: {} were estimated, {used} are used", estimated.total());
    assert_eq!(estimated.total(), used, "{what}");
    // Every byte of the checkpoint once, beside what the kernels are told of tokens and turns.
    let turns = 4 * bounds.context_length * config.head_dim;
    let told_once = (turns + 4 * config.vocabulary.div_ceil(32)) as u64;
    assert_eq!(ledger.bytes_written(), weights.total() + told_once, "{what}");
    assert_eq!((told.into_inner(), ledger.launches), (weights.total(), 0), "{what}");
}

/// The shapes of the demo, of `--shape small`, and of gpt-oss-20b with fewer layers, with little and much KV.
#[test]
fn the_estimate_is_what_a_load_allocates_whatever_the_shape() {
    let demo = include_bytes!("../../../../../assets/demo-model/config.json");
    let demo = GptOssConfig::parse(demo).expect("the demo model's shape");
    let small = config(4, 384, 32, 4096);
    let cut = [2, 3, 4].map(|layers| config(layers, 2880, 32, 201_088));
    for config in [&demo, &small].into_iter().chain(&cut) {
        for (context_length, sequences_max, batch_tokens_max, blocks, processors) in
            [(64, 1, 1, 2, 4), (1000, 3, 100, 40, 108), (8192, 32, 2048, 4500, 132)]
        {
            check(config, Bounds { context_length, sequences_max, batch_tokens_max, blocks }, processors);
        }
    }
    let largest =
        Bounds { context_length: 131_072, sequences_max: 256, batch_tokens_max: 8192, blocks: 70_000 };
    check(&cut[0], largest, 148);
}
