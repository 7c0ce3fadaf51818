//! A list of f32 on a line of JSON: base64 of their bytes, a third of the length of digits, and no number is rounded.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serializer};

/// As many as the engine ABI has in an embedding.
pub const NUMBERS_MAX: usize = 16_384;

pub fn serialize<S: Serializer>(numbers: &[f32], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&to_base64(numbers))
}

pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<f32>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let bytes = STANDARD.decode(text).map_err(D::Error::custom)?;
    let (numbers, rest) = bytes.as_chunks::<4>();
    if !rest.is_empty() || numbers.len() > NUMBERS_MAX {
        let bytes = bytes.len();
        return Err(D::Error::custom(format!("{bytes} bytes are not a list of up to {NUMBERS_MAX} f32")));
    }
    Ok(numbers.iter().map(|number| f32::from_le_bytes(*number)).collect())
}

/// Little-endian, as the OpenAI API has embeddings too.
pub fn to_base64(numbers: &[f32]) -> String {
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    STANDARD.encode(bytes)
}

#[cfg(test)]
mod tests {
    use crate::{Embedding, GenerateEvent};

    #[test]
    fn every_bit_comes_back() {
        let numbers = vec![0.0, -0.0, 0.1, -1.0e-30, f32::MAX, f32::MIN_POSITIVE];
        let event = GenerateEvent::Embedding(Embedding { numbers: numbers.clone() });
        let line = serde_json::to_string(&event).unwrap();
        let GenerateEvent::Embedding(back) = serde_json::from_str(&line).unwrap() else { panic!("{line}") };
        assert_eq!(
            back.numbers.iter().map(|n| n.to_bits()).collect::<Vec<_>>(),
            numbers.iter().map(|n| n.to_bits()).collect::<Vec<_>>()
        );
    }

    #[test]
    fn what_is_no_list_of_numbers_is_refused() {
        let long = super::to_base64(&vec![0.0; super::NUMBERS_MAX + 1]);
        for text in ["AAAA", "not base64", &long] {
            let line = format!(r#"{{"event": "embedding", "numbers": "{text}"}}"#);
            assert!(serde_json::from_str::<GenerateEvent>(&line).is_err(), "{} bytes", line.len());
        }
    }
}
