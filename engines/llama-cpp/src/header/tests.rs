use model_formats::gguf::HeadWriter;

use super::*;

fn of(head: HeadWriter) -> Header {
    let bytes = head.finish(&[]);
    Header::of("a.gguf", &Metadata::parse("a.gguf", &bytes, bytes.len() as u64).unwrap()).unwrap()
}

fn base(architecture: &str) -> HeadWriter {
    ["block_count", "embedding_length", "attention.head_count", "context_length"]
        .into_iter()
        .zip([4, 64, 8, 512])
        .fold(HeadWriter::default().text("general.architecture", architecture), |head, (key, value)| {
            head.number(&format!("{architecture}.{key}"), value)
        })
}

#[test]
fn what_is_not_said_follows_from_the_rest() {
    let header = of(base("llama"));
    assert_eq!(header.kv_numbers, [2 * 64; 4], "as many heads of keys as of queries, 8 wide");
    assert_eq!((header.queries, header.context_length), (64, 512));
    let header = of(base("llama").number("llama.attention.head_count_kv", 2));
    assert_eq!(header.kv_numbers, [2 * 2 * 8; 4]);
}

#[test]
fn numbers_of_each_layer_are_taken_layer_by_layer() {
    let header = of(base("jamba").integers("jamba.attention.head_count_kv", &[0, 4, 0, 2]));
    assert_eq!(header.kv_numbers, [0, 4 * 16, 0, 2 * 16]);
}

#[test]
fn windows_are_where_llama_cpp_has_them() {
    let window = |architecture: &str| {
        of(base(architecture).number(&format!("{architecture}.attention.sliding_window"), 128)).windows
    };
    assert_eq!(window("gpt-oss"), [Some(128), None, Some(128), None]);
    assert_eq!(window("gemma3"), [Some(128); 4]);
    assert_eq!(window("llama"), [None; 4], "none that we know of");
}

#[test]
fn compressed_keys_and_values_have_one_row_for_all_heads() {
    let header = of(base("deepseek2")
        .number("deepseek2.attention.kv_lora_rank", 48)
        .number("deepseek2.rope.dimension_count", 16));
    assert_eq!(header.kv_numbers, [64; 4]);
}

#[test]
fn a_model_without_layers_is_corrupt() {
    let head = HeadWriter::default().text("general.architecture", "llama").finish(&[]);
    let metadata = Metadata::parse("a.gguf", &head, head.len() as u64).unwrap();
    let status = Header::of("a.gguf", &metadata).unwrap_err();
    assert_eq!(status.reason, reason::FILE_CORRUPT);
    assert!(status.message.contains("llama.block_count"), "{status}");
}

#[test]
fn the_parts_of_a_split_follow_from_the_first() {
    assert_eq!(parts("a/b-00001-of-00003.gguf"), [1, 2, 3].map(|n| format!("a/b-0000{n}-of-00003.gguf")));
    for alone in ["a.gguf", "b-00002-of-00003.gguf", "b-1-of-3.gguf", "b-of-00003.gguf", "x.bin"] {
        assert_eq!(parts(alone), [alone]);
    }
}
