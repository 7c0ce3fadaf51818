//! Any bytes as the JSON files of a model: an answer, and shapes whose sizes can be computed.
#![no_main]

use libfuzzer_sys::fuzz_target;
use model_formats::gpt_oss::{GptOssConfig, LAYERS_MAX, TensorSpec, tensors};
use model_formats::{GenerationConfig, detect_runtime};

fuzz_target!(|data: &[u8]| {
    if let Ok(config) = detect_runtime(data) {
        assert!(!config.architecture.is_empty());
    }
    let _ = GenerationConfig::parse(data);
    if let Ok(config) = GptOssConfig::parse(data) {
        assert!(config.layers.len() <= LAYERS_MAX as usize);
        assert!(config.experts_per_token <= config.experts);
        // Overflow of a size is a panic here.
        let _: u64 = tensors(&config).iter().map(TensorSpec::byte_len).sum();
    }
});
