//! Which tensor goes into which shard, as the published checkpoints have it.

use model_formats::gpt_oss::{GptOssConfig, TensorSpec, tensors};
use model_formats::safetensors::{Dtype, write_head};

use crate::Shape;

/// The files of a checkpoint's weights.
#[derive(Debug)]
pub struct Plan {
    pub shards: Vec<PlannedShard>,
    /// Bytes of all tensors, without headers.
    pub tensor_bytes: u64,
}

/// One file.
#[derive(Debug)]
pub struct PlannedShard {
    pub name: String,
    /// In file order: BF16 first, then U8, names sorted.
    pub tensors: Vec<TensorSpec>,
    /// Everything before the tensors' bytes.
    pub head: Vec<u8>,
}

impl Plan {
    pub fn new(shape: Shape) -> Plan {
        let config = GptOssConfig::parse(shape.config().to_string().as_bytes())
            .expect("the configs of the known shapes are valid");
        let all = tensors(&config);
        let tensor_bytes = all.iter().map(TensorSpec::byte_len).sum();
        let limit = shape.shard_bytes_max(tensor_bytes);
        let mut parts: Vec<Vec<TensorSpec>> = vec![Vec::new()];
        let mut used = 0;
        for tensor in all {
            if used + tensor.byte_len() > limit && used > 0 {
                parts.push(Vec::new());
                used = 0;
            }
            used += tensor.byte_len();
            parts.last_mut().expect("never empty").push(tensor);
        }
        // The published names count from 0, and "of" is followed by the last index, not by the count.
        let last = parts.len() - 1;
        let shards = parts
            .into_iter()
            .enumerate()
            .map(|(i, tensors)| PlannedShard::new(format!("model-{i:05}-of-{last:05}.safetensors"), tensors));
        Plan { shards: shards.collect(), tensor_bytes }
    }

    /// Bytes of all weight files.
    pub fn file_bytes(&self) -> u64 {
        self.shards.iter().map(PlannedShard::file_bytes).sum()
    }
}

impl PlannedShard {
    fn new(name: String, mut tensors: Vec<TensorSpec>) -> PlannedShard {
        tensors.sort_by(|a, b| (a.dtype != Dtype::BF16, &a.name).cmp(&(b.dtype != Dtype::BF16, &b.name)));
        let entries = tensors.iter().map(|t| (t.name.as_str(), t.dtype, t.shape.as_slice(), t.byte_len()));
        let head = write_head(entries);
        PlannedShard { name, tensors, head }
    }

    pub fn file_bytes(&self) -> u64 {
        self.head.len() as u64 + self.tensors.iter().map(TensorSpec::byte_len).sum::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_20b_shards_have_the_published_sizes() {
        let plan = Plan::new(Shape::B20);
        let files: Vec<(&str, u64)> = plan.shards.iter().map(|s| (s.name.as_str(), s.file_bytes())).collect();
        assert_eq!(
            files,
            [
                ("model-00000-of-00002.safetensors", 4_792_272_488),
                ("model-00001-of-00002.safetensors", 4_798_702_184),
                ("model-00002-of-00002.safetensors", 4_170_342_232),
            ]
        );
        assert_eq!(plan.tensor_bytes, 13_761_264_768);
    }

    #[test]
    fn the_120b_plan_has_the_published_total() {
        let plan = Plan::new(Shape::B120);
        assert_eq!(plan.tensor_bytes, 65_248_815_744);
        assert_eq!(plan.shards.len(), 15);
    }

    #[test]
    fn small_shapes_have_two_shards() {
        for shape in [Shape::Nano, Shape::Small] {
            assert_eq!(Plan::new(shape).shards.len(), 2, "{shape:?}");
        }
    }
}
