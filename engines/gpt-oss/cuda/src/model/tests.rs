//! What a load takes of a device, for models that are far larger than a test may be: the device counts, and holds nothing.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use gpt_oss_model::Attention;
use model_formats::Dtype;
use model_formats::gpt_oss::tensors;

use super::*;
use crate::device::Info;
use crate::plan::PAGE_BYTES;

/// Of a device: where allocations begin and end, and what was written there.
#[derive(Debug, Default)]
struct Ledger {
    allocations: BTreeMap<u64, u64>,
    /// Begin and end; no two overlap.
    written: BTreeMap<u64, u64>,
    launches: usize,
}

impl Ledger {
    fn allocated_pages(&self) -> u64 {
        self.allocations.iter().map(|(begin, end)| (end - begin).div_ceil(PAGE_BYTES)).sum()
    }

    fn bytes_written(&self) -> u64 {
        self.written.iter().map(|(begin, end)| end - begin).sum()
    }

    /// Whether these bytes lie in one allocation.
    fn holds(&self, begin: u64, end: u64) -> bool {
        self.allocations.range(..=begin).next_back().is_some_and(|(_, last)| end <= *last)
    }
}

#[derive(Debug)]
struct Counting {
    ledger: Arc<Mutex<Ledger>>,
    processors: u32,
}

impl Device for Counting {
    fn info(&self) -> Result<Info, DeviceError> {
        let (memory_total, memory_free) = (u64::MAX, u64::MAX);
        Ok(Info { name: "counting".to_owned(), processors: self.processors, memory_total, memory_free })
    }

    fn allocate(&self, bytes: u64) -> Result<Address, DeviceError> {
        let mut ledger = self.ledger.lock().expect("nobody panics with it");
        let begin = ledger.allocations.last_key_value().map_or(PAGE_BYTES, |(_, end)| *end);
        let begin = begin.next_multiple_of(PAGE_BYTES);
        ledger.allocations.insert(begin, begin + bytes);
        Ok(Address(begin))
    }

    fn upload(&self, to: Address, bytes: &[u8]) -> Result<(), DeviceError> {
        let mut ledger = self.ledger.lock().expect("nobody panics with it");
        let (begin, end) = (to.0, to.0 + bytes.len() as u64);
        assert!(ledger.holds(begin, end), "{} bytes beyond an allocation", bytes.len());
        let before = ledger.written.range(..end).next_back();
        assert!(before.is_none_or(|(_, end)| *end <= begin), "what is there is overwritten");
        ledger.written.insert(begin, end);
        Ok(())
    }

    fn download(&self, _from: Address, _bytes: &mut [u8]) -> Result<(), DeviceError> {
        unreachable!("a load reads nothing back")
    }

    fn begin_fetch(&self, _from: Address, _bytes: usize) -> Result<Fetch, DeviceError> {
        unreachable!("a load reads nothing back")
    }

    fn end_fetch(&self, _fetch: Fetch, _bytes: &mut [u8]) -> Result<(), DeviceError> {
        unreachable!("a load reads nothing back")
    }

    fn launch(&self, _launch: &Launch) -> Result<(), DeviceError> {
        self.ledger.lock().expect("nobody panics with it").launches += 1;
        Ok(())
    }

    fn begin_recording(&self) -> Result<(), DeviceError> {
        unreachable!("a load records nothing")
    }

    fn end_recording(&self) -> Result<Recording, DeviceError> {
        unreachable!("a load records nothing")
    }

    fn replay(&self, _recording: Recording) -> Result<(), DeviceError> {
        unreachable!("a load records nothing")
    }

    fn wait(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn seconds(&self, work: &mut dyn FnMut() -> Result<(), DeviceError>) -> Result<f64, DeviceError> {
        work().map(|()| 0.0)
    }
}

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
