//! Any bytes as a `model.bin`: an answer, and tensors that lie inside the file without overlap.
#![no_main]

use std::collections::HashMap;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use model_formats::gpt_oss::{self, Attention, GptOssConfig, Rope, Yarn};
use model_formats::metal::{MetalError, MetalFile, MetalSource, Stored, tensors, write_metal};

/// Files of other shapes are followed up to this length.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Zeros for any tensor of the small file.
static ZEROS: [u8; 1 << 16] = [0; 1 << 16];

fuzz_target!(|data: &[u8]| {
    check(data);
    // From a sound file, whose head has some of its bytes changed: a place and a value each. Bytes by chance hardly have the
    // identifiers, and never the length that the shape makes.
    let mut file = sound().clone();
    for change in data.chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % HEAD_BYTES;
        file[at] = change[2];
    }
    if let Err(MetalError::Size { needed, .. }) = MetalFile::parse("file", &file)
        && needed <= FILE_BYTES_MAX
    {
        file.resize(needed as usize, 0);
    }
    check(&file);
});

/// Numbers and vocabulary of the small file.
const HEAD_BYTES: usize = 512;

/// A file of one narrow layer.
fn sound() -> &'static Vec<u8> {
    static FILE: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let config = config(1, 32, 2, 36);
        let sizes: HashMap<String, usize> = gpt_oss::tensors(&config)
            .into_iter()
            .map(|tensor| (tensor.name.clone(), tensor.byte_len() as usize))
            .collect();
        let source = MetalSource {
            config: &config,
            tokens: &(0..20).map(|id| vec![b'a' + id]).collect::<Vec<_>>(),
            special: &std::array::from_fn(|n| format!("<|reserved_{n}|>")),
            pattern: "[a-z]+",
            tensor: |name: &str| &ZEROS[..sizes[name]],
        };
        let mut file = Vec::new();
        write_metal(&source, &mut file).expect("a small model");
        assert!(MetalFile::parse("file", &file).is_ok() && file.len() > HEAD_BYTES);
        file
    });
    &FILE
}

fn config(layers: u32, width: usize, experts: usize, vocabulary: usize) -> GptOssConfig {
    let kind = |n| if n % 2 == 0 { Attention::Sliding } else { Attention::Full };
    GptOssConfig {
        layers: (0..layers).map(kind).collect(),
        hidden: width,
        intermediate: width,
        experts,
        experts_per_token: 1,
        heads: 2,
        kv_heads: 1,
        head_dim: 64,
        vocabulary,
        sliding_window: 8,
        context_length_max: 64,
        rms_epsilon: 1e-5,
        swiglu_limit: 7.0,
        swiglu_alpha: 1.702,
        rope: Rope {
            theta: 150_000.0,
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
    }
}

fn check(data: &[u8]) {
    let Ok(metal) = MetalFile::parse("file", data) else { return };
    let head = metal.head;
    // The config that belongs to it; what the head says of YaRN may be anything.
    let plain = config(head.layers, head.hidden as usize, head.experts as usize, metal.vocabulary as usize);
    let config = GptOssConfig {
        intermediate: head.intermediate as usize,
        experts_per_token: head.experts_per_token as usize,
        heads: head.heads as usize,
        kv_heads: head.kv_heads as usize,
        head_dim: head.head_dim as usize,
        sliding_window: head.window as usize,
        context_length_max: head.context_length,
        rms_epsilon: head.rms_epsilon,
        swiglu_limit: head.swiglu_limit,
        rope: Rope { theta: f64::from(head.rope_theta), ..plain.rope },
        ..plain
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
}
