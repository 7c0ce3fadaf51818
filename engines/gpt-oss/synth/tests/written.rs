//! What is written can be opened and run.

use gpt_oss_model::{Oracle, Store};
use gpt_oss_synth::{Plan, Shape, write_checkpoint};

#[test]
fn a_written_checkpoint_opens_and_runs() {
    let dir = tempfile::tempdir().unwrap();
    let mut last = (0, 0);
    write_checkpoint(Shape::Nano, 3, dir.path(), |done, total| last = (done, total)).unwrap();
    let plan = Plan::new(Shape::Nano);
    assert_eq!(last, (plan.tensor_bytes, plan.tensor_bytes));
    for shard in &plan.shards {
        assert_eq!(std::fs::metadata(dir.path().join(&shard.name)).unwrap().len(), shard.file_bytes());
    }

    let read = |name: &str| std::fs::read(dir.path().join(name));
    let store = Store::open("model.safetensors.index.json", read, read).unwrap();
    assert_eq!(store.end_tokens(), [1004, 1001, 1014]);
    let oracle = Oracle::new(store.config().clone(), &store);
    let mut cache = oracle.new_cache();
    for token in [1, 2, 1023] {
        let logits = oracle.forward(&mut cache, token);
        let mean = logits.iter().sum::<f32>() / logits.len() as f32;
        let std = (logits.iter().map(|l| (l - mean).powi(2)).sum::<f32>() / logits.len() as f32).sqrt();
        assert!(std.is_finite() && (0.3..30.0).contains(&std), "logits that say nothing: std {std}");
    }
}

#[test]
fn the_same_seed_writes_the_same_bytes() {
    let (a, b, c) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for (dir, seed) in [(&a, 1), (&b, 1), (&c, 2)] {
        write_checkpoint(Shape::Nano, seed, dir.path(), |_, _| {}).unwrap();
    }
    let read =
        |dir: &tempfile::TempDir| std::fs::read(dir.path().join("model-00001-of-00001.safetensors")).unwrap();
    assert_eq!(read(&a), read(&b));
    assert_ne!(read(&a), read(&c));
}
