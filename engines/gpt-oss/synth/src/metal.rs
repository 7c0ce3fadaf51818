//! A small checkpoint as the one file that Apple's GPUs are given, `model.bin`: the same weights, turned and laid out anew.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use model_formats::gpt_oss::{GptOssConfig, tensors};
use model_formats::metal::{MetalSource, MetalWriteError, SPECIAL_TOKENS, write_metal};
use serde_json::Value;

use crate::gguf::held;
use crate::tokenizer::byte_of_character;
use crate::write::SynthError;

/// Writes the checkpoint of a folder, a small one, as `model.bin`. Returns the bytes of the file.
///
/// # Errors
/// A file of the folder that is missing or broken, a model that the form has no words for, or a file that cannot be written.
pub fn convert_metal(dir: &Path, path: &Path) -> Result<u64, SynthError> {
    let broken = |source| SynthError::Convert { dir: dir.to_owned(), source };
    let failed = |source| SynthError::Write { path: path.to_owned(), source };
    let read = |name: &str| std::fs::read(dir.join(name)).map_err(broken);
    let config =
        GptOssConfig::parse(&read("config.json")?).map_err(|error| broken(io::Error::other(error)))?;
    let tokenizer: Value =
        serde_json::from_slice(&read("tokenizer.json")?).map_err(|error| broken(io::Error::other(error)))?;
    let words = Words::of(&tokenizer)
        .ok_or_else(|| broken(io::Error::other("tokenizer.json is not a byte-level one as gpt-oss has")))?;
    let held = held(dir).map_err(broken)?;
    for spec in tensors(&config) {
        if held.get(&spec.name).is_none_or(|bytes| bytes.len() as u64 != spec.byte_len()) {
            let message = format!("the checkpoint has no tensor {} of this size", spec.name);
            return Err(broken(io::Error::other(message)));
        }
    }
    let source = MetalSource {
        config: &config,
        tokens: &words.tokens,
        special: &words.special,
        pattern: &words.pattern,
        tensor: |name: &str| &held[name][..],
    };
    let mut out = BufWriter::new(File::create(path).map_err(failed)?);
    write_metal(&source, &mut out).map_err(|error| match error {
        MetalWriteError::Io(error) => failed(error),
        other => broken(io::Error::other(other)),
    })?;
    out.flush().map_err(failed)?;
    Ok(out.get_ref().metadata().map_err(failed)?.len())
}

/// What the file says of the vocabulary.
struct Words {
    /// Bytes of the ordinary tokens in id order. Ids without a token, which test models have, get bytes that are no text.
    tokens: Vec<Vec<u8>>,
    special: [String; SPECIAL_TOKENS],
    pattern: String,
}

impl Words {
    fn of(tokenizer: &Value) -> Option<Words> {
        let added = tokenizer["added_tokens"].as_array()?;
        let id_of = |value: &Value| usize::try_from(value.as_u64()?).ok();
        let first = added.iter().filter_map(|token| id_of(&token["id"])).min()?;
        let unnamed = |id: usize| [&[0xfe], &(id as u32).to_be_bytes()[1..]].concat();
        let mut tokens: Vec<Vec<u8>> = (0..first).map(unnamed).collect();
        for (text, id) in tokenizer["model"]["vocab"].as_object()? {
            if let Some(token) = tokens.get_mut(id_of(id)?) {
                *token = text.chars().map(byte_of_character).collect::<Option<_>>()?;
            }
        }
        let mut special: [String; SPECIAL_TOKENS] = std::array::from_fn(|_| String::new());
        for token in added {
            if let Some(name) = special.get_mut(id_of(&token["id"])? - first) {
                *name = token["content"].as_str()?.to_owned();
            }
        }
        let splits = tokenizer["pre_tokenizer"]["pretokenizers"].as_array()?;
        let pattern = splits.iter().find_map(|split| split["pattern"]["Regex"].as_str())?.to_owned();
        Some(Words { tokens, special, pattern })
    }
}

#[cfg(test)]
mod tests {
    use gpt_oss_model::{Oracle, Store, Weights as _};
    use sha2::{Digest as _, Sha256};

    use super::*;

    fn convert(folder: &str) -> (std::path::PathBuf, Vec<u8>) {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").join(folder);
        let out = tempfile::tempdir().unwrap();
        let path = out.path().join("model.bin");
        let bytes = convert_metal(&dir, &path).unwrap();
        let file = std::fs::read(path).unwrap();
        assert_eq!(bytes, file.len() as u64);
        (dir, file)
    }

    /// Byte for byte what the script beside the fixture writes of the same weights:
    /// `make_tiny_gptoss.py --size tiny --seed 1 --metal-bin --no-reference --out DIR`, `sha256sum DIR/metal/model.bin`.
    #[test]
    fn a_converted_checkpoint_is_the_file_that_another_program_writes_of_it() {
        let (_, file) = convert("tests/fixtures/gpt-oss/tiny");
        let sha256: String = Sha256::digest(&file).iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(sha256, "1c4738dc276073b0978c8395920133e95a554cecf2ce9adcbab5290fa85a4e20");
    }

    #[test]
    fn both_forms_are_the_same_weights_and_give_the_same_logits() {
        let (dir, file) = convert("tests/fixtures/gpt-oss/tiny");
        let read = |name: &str| std::fs::read(dir.join(name));
        let published = Store::open("model.safetensors.index.json", read, read).unwrap();
        let metal = Store::open_metal("model.metal.bin", file, read).unwrap();
        assert_eq!(metal.config().vocabulary, 1016);
        assert_eq!(metal.end_tokens(), published.end_tokens());
        let mut bytes = 0;
        for spec in tensors(metal.config()) {
            let got = metal.parts(&spec.name).concat();
            let want = &published.bytes(&spec.name)[..spec.byte_len() as usize];
            assert!(got == want, "{} is another tensor", spec.name);
            bytes += spec.byte_len();
        }
        let (mapped, converted) = metal.tensor_bytes();
        assert!(mapped + converted == bytes && converted < bytes / 3, "{mapped} and {converted} of {bytes}");

        let oracles = (
            Oracle::new(published.config().clone(), &published),
            Oracle::new(metal.config().clone(), &metal),
        );
        let (mut one, mut other) = (oracles.0.new_cache(), oracles.1.new_cache());
        for token in [1, 2, 1015] {
            let (want, got) = (oracles.0.forward(&mut one, token), oracles.1.forward(&mut other, token));
            assert_eq!(got, want[..1016]);
        }
    }

    #[test]
    fn a_file_of_another_model_and_a_broken_scale_are_refused() {
        let (dir, mut file) = convert("tests/fixtures/gpt-oss/tiny");
        let read = |name: &str| std::fs::read(dir.join(name));
        let open = |file: Vec<u8>| {
            let error = Store::open_metal("model.metal.bin", file, read).expect_err("it is not this model's");
            assert!(error.is_corrupt());
            error.to_string()
        };
        let mut other = file.clone();
        other[32] ^= 1;
        assert!(open(other).contains("context_length"));
        // The last expert ends with its down matrix: scales, then a bias.
        let bias = 2 * 192;
        let at = file.len() - bias - 1;
        file[at] = 3;
        let message = open(file);
        assert!(message.contains("down_proj_scales") && message.contains("is 3"), "{message}");
        let config = |_: &str| Ok(b"{}".to_vec());
        assert!(Store::open_metal("model.metal.bin", Vec::new(), config).is_err());
    }
}
