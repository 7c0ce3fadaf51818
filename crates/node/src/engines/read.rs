//! Reads one engine folder: who may write to it, its manifest, its files into a copy.

use std::fs::File;
use std::io::Read as _;
use std::sync::Arc;

use super::copy::Copies;
use super::manifest::MANIFEST_BYTES_MAX;
use super::print::Place;
use super::trust::distrust;
use super::{Engine, EngineManifest, RefusedEngine};

/// What a folder holds. Not tried yet.
#[derive(Debug)]
pub enum Reading {
    Engine(Box<Engine>),
    Refused(Box<RefusedEngine>),
}

pub fn read(place: &Place, copies: &mut Copies) -> Reading {
    let mut manifest = None;
    match engine(place, copies, &mut manifest) {
        Ok(engine) => Reading::Engine(Box::new(engine)),
        Err(reason) => Reading::Refused(Box::new(RefusedEngine {
            folder: place.folder.clone(),
            manifest,
            sha256: String::new(),
            reason,
        })),
    }
}

fn engine(place: &Place, copies: &mut Copies, parsed: &mut Option<EngineManifest>) -> Result<Engine, String> {
    // The manifest is data, and its name helps whoever reads the refusal; nothing else is touched before it is trusted.
    let path = place.folder.join("manifest.json");
    let mut bytes = Vec::new();
    let file = File::open(&path).map_err(|e| format!("manifest.json cannot be opened: {e}"))?;
    file.take(MANIFEST_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| format!("manifest.json cannot be read: {e}"))?;
    if bytes.len() as u64 > MANIFEST_BYTES_MAX {
        return Err(format!("manifest.json is longer than {MANIFEST_BYTES_MAX} bytes"));
    }
    let manifest = EngineManifest::parse(&bytes).map_err(|e| e.to_string())?;
    *parsed = Some(manifest.clone());
    manifest.check().map_err(|e| e.to_string())?;
    if let Some(reason) = distrust(&place.dir, &place.folder) {
        return Err(reason);
    }
    let copied = copies.make(&place.folder, &manifest.library)?;
    Ok(Engine {
        manifest,
        folder: place.folder.clone(),
        library: copied.library,
        sha256: copied.sha256,
        content: copied.content,
        copy: Some(Arc::clone(&copied.copy)),
    })
}
