use proptest::prelude::*;

use super::*;

/// The version of a head, and how many entries it claims.
fn claiming(head: &HeadWriter, version: u32, entries: u64) -> Vec<u8> {
    let mut bytes = head.finish(&[]);
    bytes[4..8].copy_from_slice(&version.to_le_bytes());
    bytes[16..24].copy_from_slice(&entries.to_le_bytes());
    bytes
}

fn raw(head: HeadWriter, key: &str, kind: u32, value: &[u8]) -> HeadWriter {
    head.entry(key, kind, |out| out.extend(value))
}

fn whole(head: &[u8]) -> Result<Metadata<'_>, GgufError> {
    Metadata::parse("m.gguf", head, head.len() as u64)
}

fn llama() -> Vec<u8> {
    let head = HeadWriter::default()
        .text("general.architecture", "llama")
        .number("llama.context_length", 8192)
        .real("llama.rope.freq_base", 1e4)
        .texts("tokenizer.ggml.tokens", &[b"<s>".as_slice(), b"</s>", b"\xff", "ß".as_bytes()])
        .integers("tokenizer.ggml.token_type", &[3, 3, 6, 4])
        .number("tokenizer.ggml.bos_token_id", 0)
        .text("tokenizer.chat_template", "{{ messages }}")
        .text("tokenizer.chat_template.tool_use", "{{ tools }}");
    let head = raw(head, "some.bool", 7, &[1]);
    let head = raw(head, "some.small", 1, &(-3i8).to_le_bytes());
    let head = raw(head, "tokenizer.ggml.eos_token_id", 5, &1i32.to_le_bytes());
    let head = raw(head, "tokenizer.ggml.padding_token_id", 5, &(-1i32).to_le_bytes());
    let tensor = WrittenTensor { name: "output.weight", dimensions: &[32, 2], kind: 0, bytes: 256 };
    head.finish(&[tensor])
}

#[test]
fn every_kind_of_value_is_read() {
    let bytes = llama();
    let metadata = whole(&bytes).unwrap();
    assert_eq!((metadata.version, metadata.tensors, metadata.values.len()), (3, 1, 12));
    assert_eq!(metadata.values["llama.rope.freq_base"], Value::Float(1e4));
    assert_eq!(metadata.values["some.bool"], Value::Bool(true));
    assert_eq!(metadata.values["some.small"], Value::Signed(-3));
    let Value::Array(tokens) = metadata.values["tokenizer.ggml.tokens"] else {
        panic!("tokens are an array")
    };
    assert_eq!((tokens.len(), tokens.text(0), tokens.text(3)), (4, Some("<s>"), Some("ß")));
    assert_eq!((tokens.text(2), tokens.text(4)), (None, None), "no UTF-8, and no such token");
}

#[test]
fn the_model_is_told() {
    let bytes = llama();
    let model = GgufModel::of("m.gguf", &whole(&bytes).unwrap()).unwrap();
    assert_eq!((model.architecture.as_str(), model.context_length), ("llama", Some(8192)));
    assert_eq!(model.chat_templates[""], "{{ messages }}");
    assert_eq!(model.chat_templates["tool_use"], "{{ tools }}");
    let tokens: Vec<_> = model.special_tokens.iter().map(|(t, text)| (t.variable(), text.as_str())).collect();
    assert_eq!(tokens, [("bos_token", "<s>"), ("eos_token", "</s>")]);
    assert_eq!(
        (model.control_tokens, model.added_tokens),
        (vec!["<s>".into(), "</s>".into()], vec!["ß".into()])
    );
    assert_eq!((model.pools, model.split), (false, None));
}

#[test]
fn a_text_begins_as_the_file_says_or_as_its_vocabulary_does() {
    let of = |vocabulary: &str, split: &str, said: Option<bool>| {
        let head = HeadWriter::default()
            .text("general.architecture", "llama")
            .text("tokenizer.ggml.model", vocabulary)
            .text("tokenizer.ggml.pre", split)
            .texts("tokenizer.ggml.tokens", &["<unk>", "<s>"]);
        let head = said.into_iter().fold(head, |head, said| head.flag("tokenizer.ggml.add_bos_token", said));
        let bytes = head.finish(&[]);
        let model = GgufModel::of("m.gguf", &whole(&bytes).unwrap()).unwrap();
        (model.begins, model.special_tokens.get(&SpecialToken::Begin).cloned())
    };
    let begin = Some("<s>".to_owned());
    assert_eq!(
        of("llama", "", None),
        (true, begin.clone()),
        "its place is known where the file does not say"
    );
    assert_eq!(of("llama", "llama-bpe", Some(false)), (false, begin));
    assert_eq!(of("gpt2", "llama-bpe", None), (true, None));
    assert_eq!(of("gpt2", "qwen2", None), (false, None));
    assert_eq!(of("gpt2", "gpt-4o", Some(true)), (true, None));
    assert_eq!(of("t5", "llama-bpe", None), (false, None), "it is not cut so");
    assert_eq!(of("gemma4", "", Some(false)), (true, None), "such files are wrong");
}

#[test]
fn splits_and_embedding_models_are_told() {
    let head = HeadWriter::default()
        .text("general.architecture", "bert")
        .number("bert.pooling_type", 2)
        .number("bert.embedding_length", 768);
    let head = raw(head, "split.no", 2, &1u16.to_le_bytes());
    let head = raw(head, "split.count", 2, &3u16.to_le_bytes());
    let bytes = claiming(&head, 2, 5);
    let model = GgufModel::of("m.gguf", &whole(&bytes).unwrap()).unwrap();
    assert_eq!((model.pools, model.embedding_size, model.split), (true, Some(768), Some((1, 3))));
    let bytes = claiming(&head.number("bert.embedding_length_out", 256), 2, 6);
    let model = GgufModel::of("m.gguf", &whole(&bytes).unwrap()).unwrap();
    assert_eq!(model.embedding_size, Some(256));
}

#[test]
fn what_is_wrong_is_named() {
    let told = |bytes: &[u8]| match whole(bytes) {
        Ok(metadata) => GgufModel::of("m.gguf", &metadata).unwrap_err().to_string(),
        Err(error) => error.to_string(),
    };
    let empty = HeadWriter::default();
    let one = |kind, value: &[u8]| told(&raw(HeadWriter::default(), "a", kind, value).finish(&[]));
    assert_eq!(told(b"GGML\0\0\0\0"), "m.gguf: does not begin with GGUF");
    assert_eq!(told(&claiming(&empty, 1, 0)), "m.gguf: GGUF version 1; versions 2 and 3 are read");
    let big_endian = "m.gguf: GGUF version 50331648; versions 2 and 3 are read (the file is big-endian)";
    assert_eq!(told(&claiming(&empty, 3u32.swap_bytes(), 0)), big_endian);
    assert!(
        told(&claiming(&empty, 3, 5000)).contains("the number of metadata entries is 5000; at most 4096")
    );
    assert!(one(13, &[]).contains("metadata a has the unknown type 13"));
    let twice = raw(raw(HeadWriter::default(), "a", 7, &[0]), "a", 7, &[0]);
    assert!(told(&twice.finish(&[])).contains("metadata a is there twice"));
    assert!(told(&empty.finish(&[])).contains("general.architecture does not say what the model is"));
    let number = HeadWriter::default().number("general.architecture", 1);
    assert!(told(&number.finish(&[])).contains("general.architecture is not a text"));
    let array = |kind: u32, count: u64| [&kind.to_le_bytes()[..], &count.to_le_bytes()].concat();
    assert!(one(9, &array(9, 1)).contains("metadata a is an array of arrays"));
    assert!(one(9, &array(0, u64::MAX)).contains("elements of a is"));
}

#[test]
fn a_beginning_asks_for_more_and_a_short_file_is_truncated() {
    let bytes = llama();
    // Behind the metadata stands the table of tensors: name, dimensions, type, offset, and padding.
    let table = "output.weight".len() + 8 + 4 + 2 * 8 + 4 + 8;
    let metadata = bytes.len() - table;
    for length in 0..metadata - ALIGNMENT as usize {
        let head = &bytes[..length];
        let more = Metadata::parse("m.gguf", head, 1 << 30).unwrap_err();
        assert!(matches!(more, GgufError::Incomplete { given, .. } if given == length as u64), "{more}");
        assert!(matches!(whole(head).unwrap_err(), GgufError::Truncated { .. }), "{length}");
    }
}

#[test]
fn a_length_beyond_what_is_read_is_an_error_at_once() {
    let head = raw(HeadWriter::default(), "a", 8, &(HEAD_BYTES_MAX + 1).to_le_bytes()).finish(&[]);
    let error = Metadata::parse("m.gguf", &head, 1 << 40).unwrap_err();
    assert!(error.to_string().contains("the length of the metadata is"), "{error}");
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(changes in prop::collection::vec((0usize..400, any::<u8>()), 0..8), cut in 0usize..500) {
        let mut bytes = llama();
        for (at, byte) in changes {
            let at = at % bytes.len();
            bytes[at] = byte;
        }
        bytes.truncate(cut);
        if let Ok(metadata) = whole(&bytes) {
            let _ = GgufModel::of("m.gguf", &metadata);
        }
    }
}
