//! Which embeddings a model gives: how its header says that they are pooled, and what follows for the reading of a prompt.

use engine_sdk::{Status, reason};

/// Architectures whose tokens look ahead too, by llama.cpp's word: they give no answers, and have no KV but the last one's.
const LOOK_AHEAD: [&str; 10] = [
    "bert",
    "modern-bert",
    "nomic-bert",
    "nomic-bert-moe",
    "neo-bert",
    "jina-bert-v2",
    "jina-bert-v3",
    "eurobert",
    "gemma-embedding",
    "llama-embed",
];
/// The one of them that has a KV all the same.
const WITH_KV: &str = "llama-embed";

/// llama.cpp's numbers of what becomes of the last layer's rows.
const NONE: u64 = 0;
const MEAN: u64 = 1;
const FIRST: u64 = 2;
const LAST: u64 = 3;
const RANK: u64 = 4;

/// Embeddings of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pooled {
    /// A prompt is read in one pass: each of its tokens sees all of it, or all of them make the embedding.
    pub(crate) whole: bool,
    /// Nothing of a prompt is kept for the next.
    pub(crate) keeps_nothing: bool,
}

/// None: the model answers. `pooling` and `causal` are the header's `pooling_type` and `attention.causal`.
///
/// # Errors
/// `UNSUPPORTED` for a model that gives neither answers nor embeddings.
pub(crate) fn pooled(
    file: &str,
    architecture: &str,
    pooling: Option<u64>,
    causal: Option<bool>,
) -> Result<Option<Pooled>, Status> {
    let looks_ahead = LOOK_AHEAD.contains(&architecture) || causal == Some(false);
    let refused = |what: String| {
        let message = format!("{file}: metadata {architecture}.pooling_type {what}");
        Err(Status::unsupported(reason::UNSUPPORTED_MODEL, message))
    };
    match pooling {
        None | Some(NONE) if looks_ahead => refused(
            "is none: it gives rows for tokens, and neither answers nor embeddings of texts".to_owned(),
        ),
        None | Some(NONE) => Ok(None),
        Some(MEAN | FIRST | LAST) => Ok(Some(Pooled {
            whole: looks_ahead || pooling != Some(LAST),
            keeps_nothing: LOOK_AHEAD.contains(&architecture) && architecture != WITH_KV,
        })),
        Some(RANK) => refused("is rank: it scores pairs of texts, which nothing here asks for".to_owned()),
        Some(other) => refused(format!("is {other}, which is not known")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_without_pooling_answers() {
        assert_eq!(pooled("a.gguf", "llama", None, None), Ok(None));
        assert_eq!(pooled("a.gguf", "qwen3", Some(NONE), None), Ok(None));
    }

    #[test]
    fn a_prompt_is_read_whole_where_that_changes_its_embedding() {
        let whole = |architecture, pooling, causal| {
            let pooled = pooled("a.gguf", architecture, Some(pooling), causal).unwrap().unwrap();
            (pooled.whole, pooled.keeps_nothing)
        };
        assert_eq!(whole("qwen3", LAST, None), (false, false));
        assert_eq!(whole("qwen3", MEAN, None), (true, false));
        assert_eq!(whole("qwen3", LAST, Some(false)), (true, false));
        assert_eq!(whole("bert", FIRST, Some(false)), (true, true));
        assert_eq!(whole("nomic-bert", MEAN, Some(false)), (true, true));
        assert_eq!(whole("llama-embed", LAST, None), (true, false));
    }

    #[test]
    fn what_gives_nothing_is_refused_by_name() {
        for (architecture, pooling, named) in
            [("bert", None, "none"), ("bert", Some(RANK), "rank"), ("qwen3", Some(9), "9")]
        {
            let status = pooled("a.gguf", architecture, pooling, None).unwrap_err();
            assert_eq!(status.reason, reason::UNSUPPORTED_MODEL);
            assert!(status.message.contains(named) && status.message.contains("a.gguf"), "{status}");
        }
    }
}
