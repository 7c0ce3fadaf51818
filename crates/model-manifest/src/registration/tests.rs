//! Each reason for refusing a repository, and what a manifest of a good one holds.

use std::collections::BTreeMap;

use super::*;
use crate::Source;

const COMMIT: &str = "6cee5e81ee83917806bbde320786a8fb61efebee";
const INDEX: &str = "model.safetensors.index.json";
const GPT_OSS: &str = r#"{"model_type": "gpt_oss", "max_position_embeddings": 131072}"#;

/// A repository in memory: what it lists and what can be read.
struct Repo {
    snapshot: Snapshot,
    contents: BTreeMap<String, Vec<u8>>,
    request: Request,
    rules: Rules,
    others: Vec<ArtifactSource>,
    gguf: Option<GgufModel>,
}

fn large(path: &str) -> ListedFile {
    ListedFile { path: path.to_owned(), size: 1 << 30, sha256: Some("ab".repeat(32)), git_oid: None }
}

fn repo(id: &str) -> Repo {
    Repo {
        snapshot: Snapshot {
            source: Source::Hub {
                repo: id.to_owned(),
                revision: "main".to_owned(),
                commit: COMMIT.to_owned(),
            },
            files: Vec::new(),
        },
        contents: BTreeMap::new(),
        request: Request { id: id.to_owned(), ..Request::default() },
        rules: Rules::default(),
        others: Vec::new(),
        gguf: None,
    }
}

impl Repo {
    fn small(mut self, path: &str, content: &str) -> Repo {
        self.snapshot.files.retain(|f| f.path != path);
        self.snapshot.files.push(ListedFile {
            path: path.to_owned(),
            size: content.len() as u64,
            sha256: None,
            git_oid: Some("cd".repeat(20)),
        });
        self.contents.insert(path.to_owned(), content.as_bytes().to_vec());
        self
    }

    fn large(mut self, path: &str) -> Repo {
        self.snapshot.files.push(large(path));
        self
    }

    fn without(mut self, path: &str) -> Repo {
        self.snapshot.files.retain(|f| f.path != path);
        self.contents.remove(path);
        self
    }

    fn format(mut self, format: Format) -> Repo {
        self.request.format = Some(format);
        self
    }

    /// The three steps a router goes through.
    fn register(&self) -> Result<Manifest, RegistrationError> {
        files_to_read(&self.request, &self.snapshot)?;
        let gguf = gguf_to_read(&self.request, &self.snapshot)?;
        let registration = Registration {
            request: &self.request,
            snapshot: &self.snapshot,
            rules: &self.rules,
            artifact_sources: &self.others,
            contents: &self.contents,
            gguf: self.gguf.as_ref().filter(|_| gguf.is_some()),
        };
        let hashes = files_to_hash(registration)?.into_iter().map(|f| (f, "ef".repeat(32))).collect();
        build_manifest(registration, &hashes)
    }

    /// What its GGUF files say of themselves.
    fn saying(mut self, architecture: &str, split: Option<(u32, u32)>) -> Repo {
        self.gguf = Some(GgufModel {
            architecture: architecture.to_owned(),
            context_length: Some(4096),
            chat_templates: BTreeMap::new(),
            control_tokens: Vec::new(),
            added_tokens: Vec::new(),
            special_tokens: BTreeMap::new(),
            begins: false,
            embedding_size: None,
            pools: false,
            split,
        });
        self
    }

    fn names(&self) -> Vec<String> {
        self.register().unwrap().files.into_iter().map(|f| f.name).collect()
    }

    #[track_caller]
    fn refused(&self, code: &str, named: &[&str]) {
        let error = self.register().unwrap_err();
        assert_eq!(error.code(), code, "{error}");
        let text = error.message();
        for name in named {
            assert!(text.contains(name), "`{text}` does not name {name}");
        }
    }
}

fn sharded(id: &str) -> Repo {
    repo(id)
        .small("config.json", GPT_OSS)
        .small("tokenizer.json", "{}")
        .small(INDEX, r#"{"weight_map": {"a": "model-00000-of-00001.safetensors", "b": "model-00001-of-00001.safetensors"}}"#)
        .large("model-00000-of-00001.safetensors")
        .large("model-00001-of-00001.safetensors")
}

fn single(id: &str) -> Repo {
    repo(id).small("config.json", GPT_OSS).small("tokenizer.json", "{}").large("model.safetensors")
}

fn gguf(id: &str) -> Repo {
    repo(id).large("model-Q4.gguf").saying("llama", None)
}

#[test]
fn a_file_chooses_among_gguf_files_only() {
    let mut asked = single("org/model");
    asked.request.file = Some("model.safetensors".to_owned());
    asked.refused("file_not_chosen", &["model.safetensors"]);
}

#[test]
fn index_and_shards_are_one_model() {
    let manifest = sharded("org/model")
        .small("generation_config.json", "{}")
        .small("README.md", "hi")
        .register()
        .unwrap();
    assert_eq!(manifest.primary, INDEX);
    assert_eq!((manifest.format, manifest.architecture.as_str()), (Format::Safetensors, "gpt_oss"));
    assert_eq!(manifest.runtimes, ["gpt-oss"]);
    assert_eq!(manifest.context_length_max, Some(131_072));
    let roles: Vec<(&str, FileRole)> = manifest.files.iter().map(|f| (f.name.as_str(), f.role)).collect();
    assert_eq!(
        roles,
        [
            ("config.json", FileRole::Config),
            ("generation_config.json", FileRole::GenerationConfig),
            ("model-00000-of-00001.safetensors", FileRole::Weights),
            ("model-00001-of-00001.safetensors", FileRole::Weights),
            (INDEX, FileRole::WeightIndex),
            ("tokenizer.json", FileRole::Tokenizer),
        ]
    );
    let config = manifest.file("config.json").unwrap();
    assert_eq!(
        config.sha256,
        format!("{}", Sha256::digest(GPT_OSS).iter().map(|b| format!("{b:02x}")).collect::<String>())
    );
    assert_eq!(config.git_oid, Some("cd".repeat(20)));
    assert_eq!(manifest.file("model-00000-of-00001.safetensors").unwrap().git_oid, None);
    assert_eq!(manifest.check(), Ok(()));
}

#[test]
fn other_forms_of_the_weights_stay_out() {
    let names =
        sharded("org/model").large("original/model.safetensors").large("consolidated.safetensors").names();
    assert!(!names.iter().any(|n| n.contains("original") || n.contains("consolidated")), "{names:?}");
}

#[test]
fn one_file_of_weights_needs_no_index() {
    assert_eq!(single("org/model").register().unwrap().primary, "model.safetensors");
}

#[test]
fn a_missing_config_is_named() {
    sharded("org/model").without("config.json").refused("missing_file", &["config.json", "org/model"]);
}

#[test]
fn a_missing_tokenizer_is_named() {
    single("org/model").without("tokenizer.json").refused("missing_file", &["tokenizer.json", "org/model"]);
}

#[test]
fn several_files_without_an_index_are_ambiguous() {
    sharded("org/model").without(INDEX).refused("index_missing", &["model-00000-of-00001.safetensors"]);
}

#[test]
fn several_indexes_are_ambiguous_unless_one_has_the_usual_name() {
    let other = r#"{"weight_map": {"a": "x.safetensors"}}"#;
    assert_eq!(
        sharded("org/model").small("fp32.safetensors.index.json", other).register().unwrap().primary,
        INDEX
    );
    let both =
        single("org/model").small("a.safetensors.index.json", other).small("b.safetensors.index.json", other);
    both.refused("index_ambiguous", &["a.safetensors.index.json", "b.safetensors.index.json"]);
}

#[test]
fn a_shard_that_only_the_index_knows_is_named() {
    sharded("org/model")
        .without("model-00001-of-00001.safetensors")
        .refused("shard_missing", &["model-00001-of-00001.safetensors", INDEX]);
}

#[test]
fn an_index_without_any_shard_names_one() {
    let none = sharded("org/model")
        .without("model-00000-of-00001.safetensors")
        .without("model-00001-of-00001.safetensors");
    none.refused("shard_missing", &["model-00000-of-00001.safetensors"]);
}

#[test]
fn both_formats_and_no_choice_names_both() {
    let both = sharded("org/model").large("model-Q4.gguf");
    both.refused("format_ambiguous", &[INDEX, "model-Q4.gguf", "safetensors", "gguf"]);
    assert_eq!(both.format(Format::Safetensors).register().unwrap().format, Format::Safetensors);
    let gguf = sharded("org/model").large("model-Q4.gguf").format(Format::Gguf).saying("gpt-oss", None);
    let gguf = gguf.register().unwrap();
    assert_eq!((gguf.format, gguf.primary.as_str()), (Format::Gguf, "model-Q4.gguf"));
    assert_eq!(
        (gguf.architecture.as_str(), gguf.context_length_max),
        ("gpt-oss", Some(4096)),
        "the file's own"
    );
    assert!(gguf.files.iter().all(|f| !f.name.ends_with(".safetensors")));
    assert!(gguf.runtimes.is_empty(), "the gpt-oss engine reads no gguf");
}

#[test]
fn a_format_that_is_not_there_points_at_the_other() {
    gguf("org/model").format(Format::Safetensors).refused("format_missing", &["safetensors"]);
    let error = single("org/model").format(Format::Gguf).register().unwrap_err();
    assert_eq!(
        (error.code(), error.hint().as_deref()),
        ("format_missing", Some("register with format=safetensors"))
    );
}

#[test]
fn nothing_usable_is_said() {
    repo("org/model")
        .small("config.json", GPT_OSS)
        .large("pytorch_model.bin")
        .refused("no_weights", &["org/model"]);
}

#[test]
fn a_gguf_needs_neither_config_nor_tokenizer() {
    let manifest = gguf("org/model").register().unwrap();
    assert_eq!((manifest.primary.as_str(), manifest.architecture.as_str()), ("model-Q4.gguf", "llama"));
}

#[test]
fn several_ggufs_need_a_name() {
    let mut several = gguf("org/model").large("model-Q8.gguf").large("mmproj-model.gguf");
    several.refused("gguf_ambiguous", &["model-Q4.gguf", "model-Q8.gguf"]);
    several.request.file = Some("model-Q8.gguf".to_owned());
    assert_eq!(several.names(), ["mmproj-model.gguf", "model-Q8.gguf"]);
    several.request.file = Some("model-Q2.gguf".to_owned());
    several.refused("file_unknown", &["model-Q2.gguf"]);
}

#[test]
fn a_quantization_is_chosen_by_its_exact_name() {
    let repo = || {
        gguf("org/model")
            .without("model-Q4.gguf")
            .large("m-Q4_K_M.gguf")
            .large("m-UD-Q4_K_M.gguf")
            .large("m.IQ4_XS.gguf")
    };
    let chosen = |wanted: &str| {
        let mut repo = repo();
        repo.request.quantization = Some(wanted.to_owned());
        repo.register().map(|manifest| manifest.primary)
    };
    assert_eq!(chosen("Q4_K_M").unwrap(), "m-Q4_K_M.gguf");
    assert_eq!(chosen("UD-Q4_K_M").unwrap(), "m-UD-Q4_K_M.gguf");
    assert_eq!(chosen("IQ4_XS").unwrap(), "m.IQ4_XS.gguf");
    for wrong in ["q4_k_m", "Q4_K", "K_M", "Q4-K-M", "", "m-Q4_K_M.gguf"] {
        let error = chosen(wrong).unwrap_err();
        assert_eq!(error.code(), "quantization_unknown", "{wrong}: {error}");
        assert!(error.message().contains("m-UD-Q4_K_M.gguf"), "{error}");
    }
    let mut two = repo().large("other-Q4_K_M.gguf");
    two.request.quantization = Some("Q4_K_M".to_owned());
    two.refused("gguf_ambiguous", &["m-Q4_K_M.gguf", "other-Q4_K_M.gguf"]);
    let mut safetensors = single("org/model");
    safetensors.request.quantization = Some("Q4_K_M".to_owned());
    safetensors.refused("file_not_chosen", &["Q4_K_M"]);
}

#[test]
fn a_split_gguf_is_one_model_and_needs_every_part() {
    let split = repo("org/model").large("Q4/m-00001-of-00002.gguf").large("Q4/m-00002-of-00002.gguf");
    let mut split = split.saying("llama", Some((0, 2)));
    let manifest = split.register().unwrap();
    assert_eq!((manifest.primary.as_str(), manifest.files.len()), ("Q4/m-00001-of-00002.gguf", 2));
    split.request.quantization = Some("m".to_owned());
    assert_eq!(split.register().unwrap().files.len(), 2);
    split.saying("llama", Some((0, 3))).refused("file_invalid", &["part 1 of 3", "2 files"]);
    let split = repo("org/model").large("Q4/m-00002-of-00002.gguf").saying("llama", Some((0, 2)));
    split.refused("missing_file", &["Q4/m-00001-of-00002.gguf"]);
    gguf("org/model").saying("llama", Some((1, 2))).refused("file_invalid", &["part 2 of 2"]);
}

#[test]
fn projectors_of_images_are_listed_and_fetched_by_nobody_yet() {
    let manifest = gguf("org/model").large("mmproj-model-f16.gguf").register().unwrap();
    let projector = manifest.file("mmproj-model-f16.gguf").unwrap();
    assert_eq!((projector.role, projector.optional), (FileRole::Projector, true));
    assert!(!projector.is_for(&["llama-cpp/cpu", "llama-cpp"]) && projector.is_for(&[VISION]));
}

#[test]
fn broken_small_files_are_named() {
    single("org/model").small("config.json", "{").refused("file_invalid", &["config.json"]);
    single("org/model").small("config.json", "{}").refused("file_invalid", &["config.json"]);
    sharded("org/model").small(INDEX, "[]").refused("file_invalid", &[INDEX]);
}

#[test]
fn a_shard_name_that_leaves_the_folder_is_refused() {
    let index = r#"{"weight_map": {"a": "../../etc/passwd.safetensors"}}"#;
    sharded("org/model")
        .small(INDEX, index)
        .large("../../etc/passwd.safetensors")
        .refused("file_invalid", &["passwd"]);
}

#[test]
fn a_weight_file_with_a_reserved_name_is_refused() {
    single("org/model")
        .without("model.safetensors")
        .large("nul.safetensors")
        .refused("file_name_unsafe", &["nul"]);
}

#[test]
fn a_file_too_large_to_read_is_refused_before_it_is_fetched() {
    let mut repo = single("org/model");
    repo.snapshot.files.iter_mut().find(|f| f.path == "config.json").unwrap().size = READ_BYTES_MAX + 1;
    repo.refused("file_too_large", &["config.json"]);
}

#[test]
fn an_unknown_architecture_waits_for_an_engine_unless_one_is_required() {
    let mut unknown = single("org/model").small("config.json", r#"{"model_type": "mamba9"}"#);
    let manifest = unknown.register().unwrap();
    assert_eq!((manifest.architecture.as_str(), manifest.runtimes.len()), ("mamba9", 0));
    unknown.request.require_engine = true;
    unknown.refused("no_engine", &["mamba9", "safetensors"]);
    unknown.rules.engines.push(KnownEngine {
        runtime: "nine".to_owned(),
        architectures: vec!["mamba9".to_owned()],
        formats: vec![Format::Safetensors],
    });
    assert_eq!(unknown.register().unwrap().runtimes, ["nine"]);
}

#[test]
fn artifacts_come_from_allowed_publishers_only() {
    let with = |id| {
        let repo = single(id).large("metal/model.bin").large("model.directml.bin").large("model.dml.bin");
        repo.register()
            .unwrap()
            .files
            .into_iter()
            .filter(|f| f.role == FileRole::Artifact)
            .collect::<Vec<_>>()
    };
    assert!(with("someone/model").is_empty());
    let artifacts = with("openai/other");
    let facts: Vec<_> =
        artifacts.iter().map(|f| (f.name.as_str(), f.path(), f.optional, f.runtimes.join(","))).collect();
    assert_eq!(
        facts,
        [
            ("model.directml.bin", "model.directml.bin", true, "gpt-oss/directml".to_owned()),
            ("model.dml.bin", "model.dml.bin", true, "gpt-oss/directml".to_owned()),
            ("model.metal.bin", "metal/model.bin", true, "gpt-oss/metal".to_owned()),
        ]
    );
}

#[test]
fn artifacts_never_replace_the_weights() {
    repo("openai/model")
        .small("config.json", GPT_OSS)
        .small("tokenizer.json", "{}")
        .large("metal/model.bin")
        .refused("no_weights", &["openai/model"]);
}

#[test]
fn the_allowlist_can_be_changed() {
    let mut repo = single("me/model").large("metal/model.bin");
    repo.rules.allowlist = Allowlist::new(["me/*".to_owned()]).unwrap();
    assert!(repo.names().contains(&"model.metal.bin".to_owned()));
}

#[test]
fn a_local_folder_has_artifacts_when_local_ones_are_trusted() {
    let mut repo = single("local/model").large("metal/model.bin");
    repo.snapshot.source = Source::Local { path: "/models/x".to_owned() };
    assert!(!repo.names().contains(&"model.metal.bin".to_owned()));
    repo.rules.allowlist = Allowlist::new(["local/*".to_owned()]).unwrap();
    assert!(repo.names().contains(&"model.metal.bin".to_owned()));
}

#[test]
fn an_artifact_may_come_from_a_listed_repository_of_the_same_publisher() {
    let mut repo = single("openai/model");
    repo.rules.supported = SupportedModels::parse(
        r#"{"schema_version": 1, "models": [{"id": "openai/model", "repository": "openai/model", "format": "safetensors",
        "architecture": "gpt_oss", "size": 1, "memory": 2, "context_length_max": 3, "licence": "MIT", "runtimes": ["gpt-oss"],
        "artifacts": [{"name": "model.metal.bin", "path": "model.bin", "repository": "openai/model-metal", "size": 1,
        "runtimes": ["gpt-oss/metal"]}]}]}"#,
    )
    .unwrap();
    let other = FileRepo { repo: "openai/model-metal".to_owned(), commit: "ab".repeat(20) };
    assert!(!repo.names().contains(&"model.metal.bin".to_owned()), "the other repository is not there");
    repo.others = vec![ArtifactSource { repo: other.clone(), files: vec![large("model.bin")] }];
    let manifest = repo.register().unwrap();
    let artifact = manifest.file("model.metal.bin").unwrap();
    assert_eq!((artifact.repo.as_ref(), artifact.path()), (Some(&other), "model.bin"));
    repo.rules.allowlist = Allowlist::new([]).unwrap();
    assert!(!repo.names().contains(&"model.metal.bin".to_owned()), "the publisher is not allowed");
}

#[test]
fn nothing_is_read_or_written_under_the_name_of_a_metadata_file() {
    let names = single("org/model").small("metadata.json", "{}").names();
    assert!(!names.contains(&"metadata.json".to_owned()));
    assert!(
        !files_to_read(&Request::default(), &single("org/model").small("metadata.json", "{}").snapshot)
            .unwrap()
            .contains(&"metadata.json".to_owned())
    );
}

#[test]
fn a_file_without_a_hash_is_asked_for() {
    let mut repo = single("org/model");
    repo.snapshot.files.iter_mut().find(|f| f.path == "model.safetensors").unwrap().sha256 = None;
    let registration = Registration {
        request: &repo.request,
        snapshot: &repo.snapshot,
        rules: &repo.rules,
        artifact_sources: &[],
        contents: &repo.contents,
        gguf: None,
    };
    let wanted = FileToHash { repo: None, path: "model.safetensors".to_owned() };
    assert_eq!(files_to_hash(registration).unwrap(), [wanted]);
    assert_eq!(build_manifest(registration, &BTreeMap::new()).unwrap_err().code(), "hash_unknown");
}
