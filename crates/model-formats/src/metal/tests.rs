use serde_json::json;

use super::*;
use crate::gpt_oss;

const FILE: &str = "model.metal.bin";
/// Where the fields are.
const CONTEXT_AT: usize = 32;
const BLOCKS_AT: usize = 36;
const HIDDEN_AT: usize = 48;
const HEAD_DIM_AT: usize = 60;
const KV_HEADS_AT: usize = 68;
const THETA_AT: usize = 76;
const LAYOUT_AT: usize = 100;
const TOKENIZER_AT: usize = 116;
const SPECIAL_AT: usize = 132;
const TEXT_AT: usize = 136;
const PATTERN_AT: usize = 140;
const TABLE_AT: usize = 144;
const NAMES_AT: usize = 148;
const PATTERN: &str = r"\p{L}+|\s+";

fn config() -> GptOssConfig {
    let config = json!({
        "num_hidden_layers": 3, "hidden_size": 64, "intermediate_size": 96, "num_local_experts": 3,
        "num_experts_per_tok": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
        "vocab_size": 48, "sliding_window": 16, "eos_token_id": 22,
        "quantization_config": {"quant_method": "mxfp4"},
    });
    GptOssConfig::parse(config.to_string().as_bytes()).unwrap()
}

/// Every tensor with bytes that are a function of name and place. Scales are those of sensible numbers.
fn published(config: &GptOssConfig) -> std::collections::HashMap<String, Vec<u8>> {
    let fill = |spec: &gpt_oss::TensorSpec| {
        let seed: u32 = spec.name.bytes().fold(7, |sum, byte| sum.wrapping_mul(31) + u32::from(byte));
        let bytes = spec.byte_len() as usize;
        let byte = |i: usize| {
            let noise = (seed.wrapping_add(i as u32)).wrapping_mul(2_654_435_761) >> 24;
            // Upper bytes of bf16 numbers that stay normal numbers when they are multiplied.
            if spec.name.ends_with("_scales") { 118 + (noise % 6) as u8 } else { noise as u8 & 0xbf | 0x10 }
        };
        (spec.name.clone(), (0..bytes).map(byte).collect())
    };
    gpt_oss::tensors(config).iter().map(fill).collect()
}

fn tokens() -> Vec<Vec<u8>> {
    (0..20u8).map(|id| vec![b'a' + id; 1 + usize::from(id) % 4]).collect()
}

fn written(config: &GptOssConfig) -> Vec<u8> {
    let tensors = published(config);
    let special: [String; SPECIAL_TOKENS] = std::array::from_fn(|n| match n {
        2 => "<|return|>".to_owned(),
        n => format!("<|reserved_{n}|>"),
    });
    let tensor = |name: &str| &tensors[name][..];
    let source = MetalSource { config, tokens: &tokens(), special: &special, pattern: PATTERN, tensor };
    let mut out = Vec::new();
    write_metal(&source, &mut out).unwrap();
    out
}

fn file() -> Vec<u8> {
    written(&config())
}

/// The file with some bytes in another way.
fn with(at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut file = file();
    file[at..at + bytes.len()].copy_from_slice(bytes);
    file
}

fn refused(file: &[u8]) -> String {
    MetalFile::parse(FILE, file).expect_err("it has a defect").to_string()
}

/// It is refused, naming the file and these words.
fn check(file: &[u8], words: &[&str]) {
    let message = refused(file);
    for word in words.iter().chain(&[FILE]) {
        assert!(message.contains(word), "{word:?} is not in: {message}");
    }
}

#[test]
fn what_was_written_is_read_back_tensor_by_tensor() {
    let (config, file) = (config(), file());
    let metal = MetalFile::parse(FILE, &file).unwrap();
    assert_eq!((metal.vocabulary, metal.head.layers), (36, 3));
    let shape = metal.check(&config).unwrap();
    assert_eq!(shape, GptOssConfig { vocabulary: 36, ..config.clone() });
    let published = published(&config);
    let slice = |start: u64, bytes: u64| &file[start as usize..(start + bytes) as usize];
    let mut seen: Vec<(u64, u64)> = Vec::new();
    for MetalTensor { spec, stored } in tensors(&metal, &shape) {
        let want = &published[&spec.name][..spec.byte_len() as usize];
        let got = match stored {
            Stored::Plain(range) => {
                seen.push((range.start, range.end));
                slice(range.start, range.end - range.start).to_vec()
            }
            Stored::Turned { range, factor } => {
                seen.push((range.start, range.end));
                let stored = slice(range.start, range.end - range.start);
                let mut out = vec![0; stored.len()];
                let row = if spec.shape.len() == 2 { 2 * config.hidden } else { 2 };
                restore_turned(stored, row, factor, &mut out);
                out
            }
            Stored::Experts { start, bytes, stride } => {
                seen.extend((0..3).map(|e| (start + e * stride, start + e * stride + bytes)));
                (0..3).flat_map(|e| slice(start + e * stride, bytes).to_vec()).collect()
            }
            Stored::ExpertScales { start, bytes, stride } => {
                seen.extend((0..3).map(|e| (start + e * stride, start + e * stride + bytes)));
                let one = |e| {
                    let mut out = vec![0; bytes as usize];
                    restore_scales(slice(start + e * stride, bytes), &mut out).unwrap();
                    out
                };
                (0..3).flat_map(one).collect()
            }
        };
        assert_eq!(got, want, "{}", spec.name);
    }
    // Everything is somewhere of its own, and what is between belongs to nobody because of alignment alone.
    seen.sort_unstable();
    for pair in seen.windows(2) {
        assert!(pair[0].1 <= pair[1].0 && pair[1].0 - pair[0].1 < PAGE, "{pair:?}");
    }
    assert_eq!((seen[0].0 % PAGE, seen.last().unwrap().1), (0, file.len() as u64));
}

#[test]
fn the_published_sizes_follow_from_the_shape() {
    let mut head = MetalFile::parse(FILE, &file()).unwrap().head;
    (head.layers, head.experts, head.hidden, head.intermediate) = (24, 32, 2880, 2880);
    (head.heads, head.kv_heads) = (64, 8);
    let metal = |head| MetalFile { file: FILE.to_owned(), head, vocabulary: 200_014, weights: 1_802_240 };
    assert_eq!(layout::end(&metal(head)), 13_750_886_400);
    (head.layers, head.experts) = (36, 128);
    assert_eq!(layout::end(&metal(head)), 65_238_253_568);
}

#[test]
fn a_file_that_is_something_else() {
    check(&with(0, b"GGUF"), &["does not begin with GPT-OSS v1.0"]);
    check(&with(12, &1u32.to_le_bytes()), &["does not begin with GPT-OSS v1.0"]);
    check(b"", &["truncated"]);
}

#[test]
fn a_file_that_ends_in_its_head() {
    let file = file();
    for bytes in [15, 40, 110, 140, 150, 500] {
        check(&file[..bytes], &["truncated", &bytes.to_string()]);
    }
}

#[test]
fn weights_that_are_cut_off_or_too_many() {
    let mut file = file();
    let whole = file.len();
    check(&file[..whole - 1], &[&whole.to_string(), &(whole - 1).to_string()]);
    file.push(0);
    check(&file, &[&whole.to_string(), &(whole + 1).to_string()]);
}

#[test]
fn a_model_a_layout_and_a_tokenizer_of_another_kind() {
    check(&with(16, &[0]), &["model is of another kind", "df52dc86"]);
    check(&with(LAYOUT_AT, &[0]), &["layout of the weights is of another kind", "229177a8"]);
    check(&with(TOKENIZER_AT, &[0]), &["tokenizer is of another kind", "7401aded"]);
}

#[test]
fn numbers_that_are_none_or_absurd() {
    for (at, field) in
        [(CONTEXT_AT, "context_length"), (BLOCKS_AT, "num_blocks"), (HIDDEN_AT, "embedding_dim")]
    {
        check(&with(at, &0u32.to_le_bytes()), &[field, "is 0"]);
        check(&with(at, &u32::MAX.to_le_bytes()), &[field, "4294967295"]);
    }
    check(&with(THETA_AT, &f32::NAN.to_le_bytes()), &["rope_theta", "NaN"]);
    check(&with(THETA_AT, &f32::INFINITY.to_le_bytes()), &["rope_theta", "inf"]);
}

#[test]
fn a_width_that_mxfp4_does_not_divide() {
    check(&with(HIDDEN_AT, &65u32.to_le_bytes()), &["embedding_dim is 65", "multiple of 32"]);
}

#[test]
fn heads_that_do_not_go_together() {
    check(&with(HEAD_DIM_AT, &32u32.to_le_bytes()), &["head_dim is 32", "64"]);
    check(&with(KV_HEADS_AT, &3u32.to_le_bytes()), &["num_kv_heads is 3", "4 heads"]);
}

#[test]
fn more_experts_at_work_than_there_are() {
    check(&with(BLOCKS_AT + 8, &4u32.to_le_bytes()), &["num_active_experts is 4", "3 experts"]);
}

#[test]
fn another_shape_than_the_bytes_make() {
    check(&with(BLOCKS_AT, &4u32.to_le_bytes()), &["a model of this shape has"]);
    // The largest that every limit lets through: no sum overflows.
    let mut file = file();
    for (at, number) in
        [(36, LAYERS_MAX), (40, EXPERTS_MAX), (48, WIDTH_MAX), (52, WIDTH_MAX), (64, HEADS_MAX)]
    {
        file[at..at + 4].copy_from_slice(&number.to_le_bytes());
    }
    check(&file, &["a model of this shape has"]);
}

#[test]
fn too_many_special_tokens() {
    check(&with(SPECIAL_AT, &(SPECIAL_MAX + 1).to_le_bytes()), &["num_special is 1025"]);
}

#[test]
fn a_pattern_without_an_end_or_with_two() {
    let end = NAMES_AT + 16 * SPECIAL_TOKENS + PATTERN.len();
    check(&with(end, b"x"), &["pattern that splits text has no end"]);
    check(&with(end - 1, b"\0"), &["pattern that splits text has no end"]);
    check(&with(PATTERN_AT, &(REGEX_BYTES_MAX + 1).to_le_bytes()), &["regex_size is 65537"]);
    check(&with(PATTERN_AT, &0u32.to_le_bytes()), &["regex_size is 0"]);
}

#[test]
fn a_token_that_is_empty_or_goes_on_too_far() {
    let table = NAMES_AT + 16 * SPECIAL_TOKENS + PATTERN.len() + 1;
    check(&with(table, &0u16.to_le_bytes()), &["token 0 is empty"]);
    check(&with(table, &u16::MAX.to_le_bytes()), &["token 0 goes on"]);
}

#[test]
fn a_table_with_more_or_fewer_tokens_than_it_says() {
    check(&with(TEXT_AT, &19u32.to_le_bytes()), &["19 tokens take"]);
    check(&with(TEXT_AT, &21u32.to_le_bytes()), &["token 20 goes on"]);
    check(&with(TABLE_AT, &TOKENS_BYTES_MAX.to_le_bytes()), &["truncated", "table of tokens"]);
    check(&with(TABLE_AT, &u32::MAX.to_le_bytes()), &["tokens_size is 4294967295"]);
}

#[test]
fn something_between_vocabulary_and_weights() {
    check(&with(PAGE as usize - 1, &[1]), &["byte 16383 before the weights is not zero"]);
}

#[test]
fn a_scale_too_small_for_what_is_added() {
    let mut out = [0; 3];
    assert_eq!(restore_scales(&[14, 15, 255], &mut out), Ok(()));
    assert_eq!(out, [0, 1, 241]);
    assert_eq!(restore_scales(&[14, 13, 20], &mut out), Err(1));
    let message = MetalError::scale(FILE, "x_scales", 1, 13).to_string();
    assert!(message.contains("x_scales") && message.contains("scale 1 is 13"), "{message}");
}

#[test]
fn another_model_than_that_of_the_config() {
    let metal = MetalFile::parse(FILE, &file()).unwrap();
    let differs = |change: &dyn Fn(&mut GptOssConfig), words: &[&str]| {
        let mut config = config();
        change(&mut config);
        let message = metal.check(&config).expect_err("they differ").to_string();
        for word in words.iter().chain(&[FILE, "config.json"]) {
            assert!(message.contains(word), "{word:?} is not in: {message}");
        }
    };
    differs(&|c| c.hidden = 128, &["embedding_dim is 64", "128"]);
    differs(&|c| c.intermediate = 128, &["mlp_dim is 96", "128"]);
    differs(&|c| c.experts = 4, &["num_experts is 3", "4"]);
    differs(&|c| c.experts_per_token = 3, &["num_active_experts is 2"]);
    differs(&|c| c.heads = 8, &["num_heads is 4", "8"]);
    differs(&|c| c.kv_heads = 1, &["num_kv_heads is 2", "1"]);
    differs(&|c| c.sliding_window = 128, &["attention_window is 16", "128"]);
    differs(&|c| c.context_length_max = 4096, &["context_length is 131072", "4096"]);
    differs(&|c| c.layers.truncate(2), &["num_blocks is 3", "2"]);
    differs(&|c| c.layers[0] = Attention::Full, &["layers that slide"]);
    differs(&|c| c.rope.theta = 1e4, &["rope_theta is 150000", "10000"]);
    differs(&|c| c.rope.yarn = None, &["YaRN"]);
    differs(&|c| c.rope.yarn.as_mut().unwrap().beta_slow = 2.0, &["yarn_offset"]);
    differs(&|c| c.rope.yarn.as_mut().unwrap().concentration = 1.0, &["yarn_multiplier", "1.34"]);
    differs(&|c| c.swiglu_limit = 6.0, &["swiglu_limit is 7", "6"]);
    differs(&|c| c.rms_epsilon = 1e-6, &["rmsnorm_epsilon"]);
    differs(&|c| c.vocabulary = 35, &["vocabulary is 36", "35"]);
    differs(&|c| c.end_tokens = vec![36], &["vocabulary is 36", "token 36"]);
}

#[test]
fn models_that_this_form_has_no_words_for_are_not_written() {
    let unwritten = |change: &dyn Fn(&mut GptOssConfig), word: &str| {
        let mut config = config();
        change(&mut config);
        let special: [String; SPECIAL_TOKENS] = std::array::from_fn(|_| String::new());
        let tensor = |_: &str| -> &'static [u8] { panic!("nothing is written before the checks") };
        let tokens = tokens();
        let source = MetalSource { config: &config, tokens: &tokens, special: &special, pattern: "", tensor };
        let message = write_metal(&source, Vec::new()).expect_err("it cannot be said").to_string();
        assert!(message.contains(word), "{message}");
    };
    unwritten(&|c| c.head_dim = 32, "32 wide");
    unwritten(&|c| c.layers[1] = Attention::Sliding, "second layer");
    unwritten(&|c| c.rope.yarn = None, "YaRN");
    unwritten(&|c| c.vocabulary = 30, "36 tokens");
}
