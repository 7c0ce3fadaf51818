//! Any bytes as a `model.bin`: an answer, and tensors that lie inside the file without overlap.
#![no_main]

use libfuzzer_sys::fuzz_target;
use model_formats::MetalFile;
use model_formats::gpt_oss::{Attention, GptOssConfig, Rope, Yarn};
use model_formats::metal::{Stored, tensors};

fuzz_target!(|data: &[u8]| {
    let Ok(metal) = MetalFile::parse("file", data) else { return };
    let head = metal.head;
    let kind = |n| if n % 2 == 0 { Attention::Sliding } else { Attention::Full };
    // The config that belongs to it; what the head says of YaRN may be anything.
    let config = GptOssConfig {
        layers: (0..head.layers).map(kind).collect(),
        hidden: head.hidden as usize,
        intermediate: head.intermediate as usize,
        experts: head.experts as usize,
        experts_per_token: head.experts_per_token as usize,
        heads: head.heads as usize,
        kv_heads: head.kv_heads as usize,
        head_dim: head.head_dim as usize,
        vocabulary: metal.vocabulary as usize,
        sliding_window: head.window as usize,
        context_length_max: head.context_length,
        rms_epsilon: head.rms_epsilon,
        swiglu_limit: head.swiglu_limit,
        swiglu_alpha: 1.702,
        rope: Rope {
            theta: f64::from(head.rope_theta),
            yarn: Some(Yarn {
                factor: 32.0,
                original_context: 4096.0,
                beta_fast: 32.0,
                beta_slow: 1.0,
                truncate: false,
                concentration: 1.0,
            }),
        },
        end_tokens: Vec::new(),
    };
    // An answer, whatever it is.
    let _ = metal.check(&config);
    let mut pieces: Vec<(u64, u64)> = Vec::new();
    for tensor in tensors(&metal, &config) {
        match tensor.stored {
            Stored::Plain(range) | Stored::Turned { range, .. } => {
                assert_eq!(range.end - range.start, tensor.spec.byte_len());
                pieces.push((range.start, range.end));
            }
            Stored::Experts { start, bytes, stride } | Stored::ExpertScales { start, bytes, stride } => {
                assert_eq!(bytes * u64::from(head.experts), tensor.spec.byte_len());
                pieces.extend((0..u64::from(head.experts)).map(|e| (start + e * stride, start + e * stride + bytes)));
            }
        }
    }
    pieces.sort_unstable();
    for pair in pieces.windows(2) {
        assert!(pair[0].1 <= pair[1].0);
    }
    assert!(pieces.iter().all(|(start, end)| start <= end && *end <= data.len() as u64));
});
