//! A made-up byte-level BPE tokenizer: every byte, then letter pairs, triples and quadruples until the vocabulary is
//! full, then the special tokens at their published ids.

use serde_json::{Value, json};

use crate::Shape;
use crate::shape::SPECIALS;

/// Splits text before merging, with the constructs a gpt-oss tokenizer needs of a regex engine: classes, bounded
/// repetition, look-ahead.
const SPLIT: &str =
    r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const LETTERS: &str = "etaoinshrdlucmfwypvbgkjxqz";

/// The content of `tokenizer.json`.
pub(crate) fn tokenizer_json(shape: Shape) -> Value {
    let (tokens, merges) = vocabulary(shape.ordinary_tokens() as usize);
    let mut vocab = serde_json::Map::new();
    for (id, token) in tokens.into_iter().enumerate() {
        vocab.insert(token, Value::from(id));
    }
    let added: Vec<Value> = SPECIALS
        .iter()
        .map(|content| {
            json!({"id": shape.special(content), "content": content, "single_word": false, "lstrip": false,
                   "rstrip": false, "normalized": false, "special": true})
        })
        .collect();
    let byte_level = |prefix: bool, trim: bool, regex: bool| json!({"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": trim, "use_regex": regex});
    json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": false},
            byte_level(false, true, false)
        ]},
        "post_processor": byte_level(true, false, true),
        "decoder": byte_level(true, true, true),
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                  "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": true,
                  "vocab": vocab, "merges": merges}
    })
}

/// `tokenizer_config.json` and `special_tokens_map.json`.
pub(crate) fn companions(shape: Shape) -> [(&'static str, Value); 2] {
    let names =
        json!({"bos_token": "<|startoftext|>", "eos_token": "<|return|>", "pad_token": "<|endoftext|>"});
    let mut config = names.clone();
    config["tokenizer_class"] = "PreTrainedTokenizerFast".into();
    config["clean_up_tokenization_spaces"] = false.into();
    config["added_tokens_decoder"] = SPECIALS
        .iter()
        .map(|content| {
            let entry = json!({"content": content, "lstrip": false, "normalized": false, "rstrip": false,
                               "single_word": false, "special": true});
            (shape.special(content).to_string(), entry)
        })
        .collect();
    [("tokenizer_config.json", config), ("special_tokens_map.json", names)]
}

/// Tokens in id order and the merges that make them.
pub(crate) fn vocabulary(count: usize) -> (Vec<String>, Vec<[String; 2]>) {
    let mut tokens: Vec<String> = (0..=255u8).map(|byte| byte_character(byte).to_string()).collect();
    let letters: Vec<String> = LETTERS.chars().map(String::from).collect();
    let pairs: Vec<String> =
        letters.iter().flat_map(|a| letters.iter().map(move |b| format!("{a}{b}"))).collect();
    let space = byte_character(b' ').to_string();
    let spaced = letters.iter().map(|b| (space.clone(), b.clone()));
    let two = letters.iter().flat_map(|a| letters.iter().map(move |b| (a.clone(), b.clone())));
    let three = pairs.iter().flat_map(|a| letters.iter().map(move |b| (a.clone(), b.clone())));
    let four = pairs.iter().flat_map(|a| pairs.iter().map(move |b| (a.clone(), b.clone())));
    let mut merges = Vec::new();
    for (a, b) in two.chain(spaced).chain(three).chain(four) {
        if tokens.len() >= count {
            break;
        }
        tokens.push(format!("{a}{b}"));
        merges.push([a, b]);
    }
    assert_eq!(tokens.len(), count, "letters make at most 475,000 tokens");
    (tokens, merges)
}

/// The byte that a character of a token stands for.
pub(crate) fn byte_of_character(character: char) -> Option<u8> {
    (0..=255u8).find(|byte| byte_character(*byte) == character)
}

/// The printable stand-in of a byte: itself where it is printable Latin-1, else a character from 256 on.
fn byte_character(byte: u8) -> char {
    let printable = |b: u8| matches!(b, 33..=126 | 161..=172 | 174..=255);
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|b| !printable(*b)).count() as u32;
    char::from_u32(256 + before).expect("a few dozen past 256 are characters")
}

#[cfg(test)]
mod tests {
    use tokenizers::Tokenizer;

    use super::*;

    fn load(shape: Shape) -> Tokenizer {
        tokenizer_json(shape).to_string().parse().unwrap()
    }

    #[test]
    fn text_of_every_kind_survives() {
        let tokenizer = load(Shape::Nano);
        for text in ["hello world", " two  spaces\n\n", "重みは乱数です", "x = 1234567;\t// é", "\u{1F600}"]
        {
            let ids = tokenizer.encode(text, false).unwrap();
            assert_eq!(tokenizer.decode(ids.get_ids(), false).unwrap(), text);
        }
    }

    #[test]
    fn the_20b_tokenizer_is_full_and_has_the_published_ids() {
        let tokenizer = load(Shape::B20);
        assert_eq!(tokenizer.get_vocab_size(true), 200_019);
        for (token, id) in [
            ("<|startoftext|>", 199_998),
            ("<|return|>", 200_002),
            ("<|start|>", 200_006),
            ("<|call|>", 200_012),
        ] {
            assert_eq!(tokenizer.token_to_id(token), Some(id));
            assert_eq!(tokenizer.encode(token, false).unwrap().get_ids(), [id]);
        }
        assert!(tokenizer.id_to_token(199_997).is_some());
    }
}
