//! Which form of its weights a model runs from, before an engine has told: what there is to choose from.

use model_manifest::{FileRole, Manifest};

/// What is known before the first load. `places`: runtime and kind of device of every way to run it here, such as
/// `gpt-oss/metal`. None where there is one form: nothing is to be decided.
pub(super) fn undecided(manifest: &Manifest, places: &[String]) -> Option<String> {
    let artifacts = manifest.files.iter().filter(|file| file.role == FileRole::Artifact);
    // An artifact is for some devices: without any of those the published weights run.
    let names: Vec<&str> =
        artifacts.filter(|file| file.is_for(places)).map(|file| file.name.as_str()).collect();
    (!names.is_empty()).then(|| {
        format!(
            "the manifest has {} beside the {} files: which of them runs is decided at the first load",
            names.join(" and "),
            manifest.format
        )
    })
}

#[cfg(test)]
mod tests {
    use model_manifest::{Format, ManifestFile, Source};

    use super::*;

    fn file(name: &str, role: FileRole, runtimes: &[&str]) -> ManifestFile {
        ManifestFile {
            name: name.to_owned(),
            role,
            size: 1,
            sha256: String::new(),
            git_oid: None,
            repo_path: None,
            repo: None,
            optional: role == FileRole::Artifact,
            runtimes: runtimes.iter().map(|r| (*r).to_owned()).collect(),
        }
    }

    #[test]
    fn what_there_is_to_choose_from_is_said_where_a_device_could_use_it() {
        let manifest = Manifest {
            id: "org/model".to_owned(),
            source: Source::Local { path: "/m".to_owned() },
            format: Format::Safetensors,
            architecture: "gpt_oss".to_owned(),
            runtimes: vec!["gpt-oss".to_owned()],
            primary: "model.safetensors".to_owned(),
            files: vec![
                file("model.metal.bin", FileRole::Artifact, &["gpt-oss/metal"]),
                file("model.dml.bin", FileRole::Artifact, &["gpt-oss/directml"]),
                file("model.safetensors", FileRole::Weights, &[]),
            ],
            context_length_max: None,
            embeds: false,
            embedding_size: None,
        };
        let said = |places: &[&str]| {
            undecided(&manifest, &places.iter().map(|p| (*p).to_owned()).collect::<Vec<_>>())
        };
        assert_eq!(
            said(&["gpt-oss/cpu", "gpt-oss/metal"]).as_deref(),
            Some(
                "the manifest has model.metal.bin beside the safetensors files: which of them runs is decided at the \
                 first load"
            )
        );
        // What no device here could use is not there to choose from.
        assert_eq!(said(&["gpt-oss/cpu", "gpt-oss/vulkan"]), None);
        assert_eq!(said(&[]), None);
    }
}
