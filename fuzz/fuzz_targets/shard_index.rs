//! Any bytes as a shard index: an answer, and only names that stay in the folder.
#![no_main]

use libfuzzer_sys::fuzz_target;
use model_formats::ShardIndex;

fuzz_target!(|data: &[u8]| {
    let Ok(index) = ShardIndex::parse("index", data) else { return };
    assert!(!index.weight_map.is_empty());
    for shard in index.shards() {
        assert!(shard.ends_with(".safetensors") && !shard.starts_with('/') && !shard.contains('\\'));
        assert!(shard.split('/').all(|part| !part.is_empty() && part != ".." && part != "."));
    }
});
