//! Which files hold the weights: one format, one index or one file, or the reason why that cannot be told.

use std::collections::BTreeMap;

use model_formats::shard_index::INDEX_FILE;
use model_formats::{GgufModel, ShardIndex};

use super::{CONFIG, RegistrationError, Request, TOKENIZER};
use crate::{Format, ListedFile, Snapshot};

/// The weights as far as the list tells.
#[derive(Debug)]
pub(super) struct Weights {
    pub format: Format,
    /// Whose shards are the weights; `files` is then empty until it is read.
    pub index: Option<String>,
    /// In the order engines expect them, the primary one first.
    pub files: Vec<String>,
}

impl Weights {
    pub fn choose(request: &Request, snapshot: &Snapshot) -> Result<Weights, RegistrationError> {
        let repo = || snapshot.name().to_owned();
        let in_top = |ending: &str| -> Vec<&str> {
            snapshot
                .files
                .iter()
                .map(|f| f.path.as_str())
                .filter(|p| !p.contains('/') && p.ends_with(ending))
                .collect()
        };
        // Other folders hold other forms of the same model, such as `original/`.
        let safetensors = in_top(".safetensors");
        let indexes = in_top(".safetensors.index.json");
        let gguf = gguf_models(snapshot);
        let has_safetensors = !safetensors.is_empty() || !indexes.is_empty();
        let format = match (request.format, has_safetensors, gguf.keys().next()) {
            (None, true, Some(gguf)) => {
                let safetensors =
                    indexes.first().or(safetensors.first()).map_or(String::new(), |s| (*s).to_owned());
                return Err(RegistrationError::FormatAmbiguous {
                    repo: repo(),
                    safetensors,
                    gguf: gguf.clone(),
                });
            }
            (None, false, None) => return Err(RegistrationError::NoWeights { repo: repo() }),
            (Some(format @ Format::Safetensors), false, other) => {
                let other = other.map(|_| Format::Gguf);
                return Err(RegistrationError::FormatMissing { repo: repo(), format, other });
            }
            (Some(format @ Format::Gguf), other, None) => {
                let other = other.then_some(Format::Safetensors);
                return Err(RegistrationError::FormatMissing { repo: repo(), format, other });
            }
            (Some(Format::Safetensors), true, _) | (None, true, None) => Format::Safetensors,
            (Some(Format::Gguf), _, Some(_)) | (None, false, Some(_)) => Format::Gguf,
        };
        match format {
            Format::Safetensors => match request.file.as_ref().or(request.quantization.as_ref()) {
                Some(file) => Err(RegistrationError::FileNotChosen { file: file.clone() }),
                None => choose_safetensors(snapshot, &safetensors, &indexes),
            },
            Format::Gguf => choose_gguf(request, snapshot, gguf),
        }
    }
}

fn choose_safetensors(
    snapshot: &Snapshot,
    files: &[&str],
    indexes: &[&str],
) -> Result<Weights, RegistrationError> {
    let repo = || snapshot.name().to_owned();
    let owned = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
    for file in [CONFIG, TOKENIZER] {
        if snapshot.file(file).is_none() {
            return Err(RegistrationError::MissingFile { file: file.to_owned(), repo: repo() });
        }
    }
    let index = match indexes {
        [] => None,
        [one] => Some((*one).to_owned()),
        several if several.contains(&INDEX_FILE) => Some(INDEX_FILE.to_owned()),
        several => return Err(RegistrationError::IndexAmbiguous { repo: repo(), files: owned(several) }),
    };
    let files = match (&index, files) {
        (Some(_), _) => Vec::new(),
        (None, [one]) => vec![(*one).to_owned()],
        (None, several) => {
            return Err(RegistrationError::IndexMissing { repo: repo(), files: owned(several) });
        }
    };
    Ok(Weights { format: Format::Safetensors, index, files })
}

/// The shards that an index names, in name order; each has to be in the list.
pub(super) fn shards(
    snapshot: &Snapshot,
    index: &str,
    content: &[u8],
) -> Result<Vec<String>, RegistrationError> {
    let parsed = ShardIndex::parse(index, content)
        .map_err(|e| RegistrationError::BadFile { file: index.to_owned(), source: Box::new(e) })?;
    let shards = parsed.shards();
    match shards.iter().find(|shard| snapshot.file(shard).is_none()) {
        Some(shard) => Err(RegistrationError::ShardMissing {
            shard: (*shard).to_owned(),
            index: index.to_owned(),
            repo: snapshot.name().to_owned(),
        }),
        None => Ok(shards.into_iter().map(str::to_owned).collect()),
    }
}

/// The models in GGUF form: their first file, and all of their files in order. Parts of one split model
/// (`x-00001-of-00003.gguf`) are one; projectors of images (`mmproj-…`) are none.
fn gguf_models(snapshot: &Snapshot) -> BTreeMap<String, Vec<String>> {
    let mut models: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let mut files: Vec<&str> = snapshot
        .files
        .iter()
        .map(|f| f.path.as_str())
        .filter(|p| p.to_ascii_lowercase().ends_with(".gguf"))
        .collect();
    files.sort_unstable();
    for path in files {
        if is_projector(path) {
            continue;
        }
        match split_part(path) {
            Some(part) => models.entry(part.name_of(1)).or_default().push(path.to_owned()),
            None => {
                models.insert(path.to_owned(), vec![path.to_owned()]);
            }
        }
    }
    models
}

/// Projectors of images are named `mmproj-model-f16.gguf`, or `model.mmproj-f16.gguf`.
fn is_projector(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path).to_ascii_lowercase();
    name.ends_with(".gguf")
        && (name.starts_with("mmproj") || name.contains(".mmproj") || name.contains("-mmproj"))
}

pub(super) fn projectors(snapshot: &Snapshot) -> impl Iterator<Item = &ListedFile> {
    snapshot.files.iter().filter(|file| is_projector(&file.path))
}

/// Whether the file agrees with the names about how many files the model is split into.
pub(super) fn check_split(primary: &str, files: usize, gguf: &GgufModel) -> Result<(), RegistrationError> {
    let (number, count) = gguf.split.unwrap_or((0, 1));
    if number == 0 && usize::try_from(count).ok() == Some(files) {
        return Ok(());
    }
    let file = primary.to_owned();
    Err(RegistrationError::SplitContradiction { file, number: u64::from(number) + 1, count, files })
}

struct SplitPart<'a> {
    stem: &'a str,
    count: u32,
}

impl SplitPart<'_> {
    fn name_of(&self, number: u32) -> String {
        format!("{}-{number:05}-of-{:05}.gguf", self.stem, self.count)
    }
}

/// Reads `stem-00002-of-00003.gguf`.
fn split_part(path: &str) -> Option<SplitPart<'_>> {
    let (rest, count) = path.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let five_digits = |text: &str| (text.len() == 5).then(|| text.parse::<u32>().ok()).flatten();
    let (number, count) = (five_digits(number)?, five_digits(count)?);
    (1 <= number && number <= count).then_some(SplitPart { stem, count })
}

fn choose_gguf(
    request: &Request,
    snapshot: &Snapshot,
    mut models: BTreeMap<String, Vec<String>>,
) -> Result<Weights, RegistrationError> {
    let repo = || snapshot.name().to_owned();
    let ambiguous = |names: Vec<&String>| RegistrationError::GgufAmbiguous {
        repo: repo(),
        files: names.into_iter().cloned().collect(),
    };
    let files = match (&request.file, &request.quantization) {
        (Some(file), _) => models
            .into_values()
            .find(|files| files.contains(file))
            .ok_or_else(|| RegistrationError::FileUnknown { repo: repo(), file: file.clone() })?,
        (None, Some(wanted)) => match quantized(models.keys(), wanted).as_slice() {
            [one] => models[*one].clone(),
            [] => {
                let files = models.into_keys().collect();
                return Err(RegistrationError::QuantizationUnknown {
                    repo: repo(),
                    wanted: wanted.clone(),
                    files,
                });
            }
            several => return Err(ambiguous(several.to_vec())),
        },
        (None, None) if models.len() > 1 => return Err(ambiguous(models.keys().collect())),
        (None, None) => models.pop_first().map(|(_, files)| files).unwrap_or_default(),
    };
    if let Some(part) = files.first().and_then(|first| split_part(first)) {
        let missing = (1..=part.count).map(|n| part.name_of(n)).find(|name| !files.contains(name));
        if let Some(file) = missing {
            return Err(RegistrationError::MissingFile { file, repo: repo() });
        }
    }
    Ok(Weights { format: Format::Gguf, index: None, files })
}

/// The models whose name ends in this quantization, by its exact spelling: `Q4_K_M` is the end of `x-Q4_K_M.gguf` and of
/// `x.Q4_K_M.gguf`. Where one name is another with something put in before the end (`x-Q4_K_M`, `x-UD-Q4_K_M`), it is the
/// shorter: the longer has a name of its own.
fn quantized<'a>(models: impl Iterator<Item = &'a String>, wanted: &str) -> Vec<&'a String> {
    fn before<'a>(path: &'a str, wanted: &str) -> Option<&'a str> {
        let name = path.rsplit('/').next().unwrap_or(path);
        let stem = split_part(name)
            .map_or_else(|| name.get(..name.len() - ".gguf".len()), |part| Some(part.stem))?;
        let before = stem.strip_suffix(wanted)?;
        (before.is_empty() || before.ends_with(['-', '.'])).then_some(before)
    }
    let found: Vec<(&String, &str)> = models.filter_map(|path| Some((path, before(path, wanted)?))).collect();
    let shortest =
        found.iter().map(|(_, before)| *before).min_by_key(|before| before.len()).unwrap_or_default();
    let keep = |before: &str| before == shortest || !before.starts_with(shortest);
    found.into_iter().filter(|(_, before)| keep(before)).map(|(path, _)| path).collect()
}
