use super::*;
use crate::safetensors::{Dtype, Header, write_head};

fn header(names: &[&str]) -> Header {
    let mut bytes = write_head(names.iter().map(|n| (*n, Dtype::U8, &[1u64][..], 1)));
    bytes.resize(bytes.len() + names.len(), 0);
    Header::parse("x", &bytes, bytes.len() as u64).unwrap()
}

fn assemble(map: &[(&str, &str)], shards: &[(&str, &[&str])]) -> Result<Checkpoint, CheckpointError> {
    let weight_map = map.iter().map(|(t, s)| ((*t).to_owned(), (*s).to_owned())).collect();
    let headers = shards.iter().map(|(s, names)| ((*s).to_owned(), header(names))).collect();
    Checkpoint::assemble(&ShardIndex { weight_map, total_size: None }, &headers)
}

#[test]
fn index_and_shards_become_one_model() {
    let model =
        assemble(&[("a", "1"), ("b", "2"), ("c", "2")], &[("1", &["a"]), ("2", &["b", "c"])]).unwrap();
    assert_eq!(model.shards, ["1", "2"]);
    assert_eq!(model.tensors["c"].shard, 1);
    assert_eq!(model.tensor_bytes(), 3);
}

#[test]
fn a_missing_shard_is_named() {
    let error = assemble(&[("a", "1"), ("b", "2")], &[("1", &["a"])]).unwrap_err();
    assert_eq!(error.to_string(), "shard 2 named in the index is missing");
}

#[test]
fn a_tensor_of_the_index_that_no_shard_has_is_named() {
    let error = assemble(&[("a", "1"), ("b", "1")], &[("1", &["a"])]).unwrap_err();
    assert_eq!(error.to_string(), "shard 1: tensor b is in the index and not in the shard");
}

#[test]
fn a_tensor_of_a_shard_that_the_index_lacks_is_named() {
    let error = assemble(&[("a", "1")], &[("1", &["a", "z"])]).unwrap_err();
    assert_eq!(error.to_string(), "shard 1: tensor z is in the shard and not in the index");
}

#[test]
fn a_tensor_in_two_shards_is_refused() {
    let error = assemble(&[("a", "1"), ("b", "2")], &[("1", &["a"]), ("2", &["a", "b"])]).unwrap_err();
    assert!(matches!(error, CheckpointError::TensorElsewhere { .. }), "{error}");
}

#[test]
fn shards_whose_names_are_swapped_are_refused() {
    let error = assemble(&[("a", "1"), ("b", "2")], &[("1", &["b"]), ("2", &["a"])]).unwrap_err();
    assert_eq!(error.to_string(), "shard 1: tensor b is in this shard, but the index says it is in 2");
}
