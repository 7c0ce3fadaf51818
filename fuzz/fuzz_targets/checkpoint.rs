//! An index, two headers and a config, cut out of one input at zero bytes: an answer.
#![no_main]

use libfuzzer_sys::fuzz_target;
use model_formats::gpt_oss::{GptOssConfig, check_tensors};
use model_formats::safetensors::Headers;
use model_formats::{Checkpoint, Header, ShardIndex};

fuzz_target!(|data: &[u8]| {
    let mut parts = data.split(|b| *b == 0);
    let mut next = || parts.next().unwrap_or(&[]);
    let Ok(index) = ShardIndex::parse("index", next()) else { return };
    let mut headers = Headers::new();
    for shard in index.shards() {
        let json = next();
        let mut file = (json.len() as u64).to_le_bytes().to_vec();
        file.extend_from_slice(json);
        file.resize(file.len() + 32, 0);
        if let Ok(header) = Header::parse(shard, &file, file.len() as u64) {
            headers.insert(shard.to_owned(), header);
        }
    }
    let Ok(checkpoint) = Checkpoint::assemble(&index, &headers) else { return };
    assert_eq!(checkpoint.tensors.len(), index.weight_map.len());
    if let Ok(config) = GptOssConfig::parse(next()) {
        let _ = check_tensors(&config, &checkpoint);
    }
});
