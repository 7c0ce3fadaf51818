//! What a person meant by the source of a model: a repository, its page or a file's address, a folder, or a GGUF file.

use std::path::Path;

use admin_api::RegisterModel;
use anyhow::{Context, Result, bail};

const HINT: &str =
    "hint: name a folder with config.json and the weights, a gguf file, or a repository as org/name";

/// Sets the one field of `body` that names the source. Nothing is guessed: `org/name` that is a folder here too is an
/// error that names both ways to say it.
pub fn fill(source: &str, body: &mut RegisterModel) -> Result<()> {
    if source.contains("://") {
        body.url = Some(source.to_owned());
        return Ok(());
    }
    let path = Path::new(source);
    if is_path(source) {
        let folder = std::path::absolute(path).with_context(|| format!("`{source}` is no path"))?;
        let shown = folder.display();
        let attributes =
            std::fs::metadata(&folder).with_context(|| format!("cannot read {shown}\n{HINT}"))?;
        let is_gguf = folder.extension().is_some_and(|ending| ending.eq_ignore_ascii_case("gguf"));
        if !(attributes.is_dir() || is_gguf && attributes.is_file()) {
            bail!("{shown} is neither a folder nor a gguf file\n{HINT}");
        }
        let folder = std::fs::canonicalize(&folder).unwrap_or(folder);
        let text = folder.to_str().with_context(|| format!("the path {} is no UTF-8", folder.display()))?;
        body.path = Some(text.to_owned());
        return Ok(());
    }
    if path.is_dir() {
        bail!(
            "`{source}` is a folder here and could be a repository of the hub too\n\
             hint: write ./{source} for the folder, or the address of its page for the repository"
        );
    }
    if source.split('/').count() != 2 || source.split('/').any(str::is_empty) {
        bail!(
            "`{source}` is no repository\nhint: write org/name, the address of its page, or a folder like ./{source}"
        );
    }
    body.repo = Some(source.to_owned());
    Ok(())
}

/// Words that can only be a path.
fn is_path(source: &str) -> bool {
    let starts = [".", "/", "~", "\\"];
    starts.iter().any(|s| source.starts_with(s)) || source.contains('\\') || Path::new(source).is_absolute()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(source: &str) -> Result<RegisterModel> {
        let mut body = RegisterModel::default();
        fill(source, &mut body).map(|()| body)
    }

    #[test]
    fn repositories_pages_and_folders() {
        assert_eq!(
            filled("openai/gpt-oss-20b").expect("a repository").repo.as_deref(),
            Some("openai/gpt-oss-20b")
        );
        let page = "https://example.com/org/name/tree/v1";
        assert_eq!(filled(page).expect("a page").url.as_deref(), Some(page));
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().to_str().expect("UTF-8");
        assert!(filled(path).expect("a folder").path.is_some());
        let file = dir.path().join("m.gguf");
        std::fs::write(&file, "GGUF").expect("the folder is writable");
        assert!(filled(file.to_str().expect("UTF-8")).expect("a file").path.is_some());
        let quantized = filled("org/name:Q4_K_M").expect("a quantization");
        assert_eq!(quantized.repo.as_deref(), Some("org/name:Q4_K_M"));
    }

    #[test]
    fn what_is_neither_is_refused_with_what_to_write() {
        for source in ["gpt-oss", "a/b/c", "/no/such/folder", "./no-such-folder", "a/", ""] {
            let error = filled(source).expect_err(source);
            assert!(error.to_string().contains("hint: "), "{source}: {error}");
        }
    }

    #[test]
    fn a_path_that_is_not_there_is_told_from_one_that_is_no_model() {
        let dir = tempfile::tempdir().expect("a temporary folder");
        let path = dir.path().join("model.gguf");
        let source = path.to_str().expect("UTF-8");
        let missing = filled(source).expect_err("nothing is there");
        assert!(format!("{missing:#}").contains("cannot read"), "{missing:#}");
        let kind = missing.downcast_ref::<std::io::Error>().map(std::io::Error::kind);
        assert_eq!(kind, Some(std::io::ErrorKind::NotFound), "{missing:#}");
        let text = dir.path().join("notes.txt");
        std::fs::write(&text, "words").expect("the folder is writable");
        let other = filled(text.to_str().expect("UTF-8")).expect_err("it is no model");
        assert!(other.to_string().contains("neither a folder nor a gguf file"), "{other:#}");
    }
}
