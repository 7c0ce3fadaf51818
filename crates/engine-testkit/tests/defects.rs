//! Each defect planted in a copy of `echo-c` fails the case that is there for it, so no case is for show.
//!
//! A defect is a change of the source in one place. The text to be replaced must occur exactly once, so a defect cannot
//! silently plant nothing.

use std::cell::Cell;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use engine_testkit::build::{compile_c_engine_with, workspace_root};
use engine_testkit::manifest::Manifest;
use engine_testkit::model::write_echo_model;
use engine_testkit::suite::{Subject, cases, run_named};

#[path = "defects/list.rs"]
mod list;

use list::{DEFECTS, Defect};

/// Cases that test the worker, whatever the engine does: see `crates/engine-worker/tests`.
const OF_THE_WORKER: [&str; 2] = ["hello_comes_first", "the_worker_ends_with_its_node"];

/// An engine folder with a copy of `echo-c` in which `from` has become `to`.
pub fn plant(dir: &Path, defect: &Defect) -> Result<PathBuf> {
    let source = workspace_root().join("engines").join("echo-c");
    let planted = Cell::new(0);
    let library = compile_c_engine_with(&source, &dir.join("build"), &mut |name, text| {
        if name != defect.file {
            return Ok(text);
        }
        planted.set(planted.get() + text.matches(defect.from).count());
        Ok(text.replace(defect.from, defect.to))
    })?;
    anyhow::ensure!(
        planted.get() == 1,
        "{:?} occurs {} times in {}",
        defect.from,
        planted.get(),
        defect.file
    );
    let engine = dir.join("engine");
    std::fs::create_dir_all(&engine)?;
    std::fs::copy(source.join("manifest.json"), engine.join("manifest.json"))?;
    let manifest = Manifest::read(&engine)?;
    std::fs::rename(library, engine.join(manifest.library)).context("the library is put in place")?;
    Ok(engine)
}

/// Why the defect was not caught, if it was not.
fn missed(defect: &Defect) -> Option<String> {
    let dir = tempfile::tempdir().expect("a temporary folder");
    write_echo_model(dir.path(), 1 << 16).expect("a model");
    let engine = match plant(dir.path(), defect) {
        Ok(engine) => engine,
        Err(error) => return Some(format!("{:?} cannot be planted: {error:#}", defect.to)),
    };
    let verdict = run_named(defect.case, &Subject::new(engine, dir.path())).expect("the case exists");
    match verdict.result {
        Err(_) => None,
        Ok(outcome) => Some(format!("{} does not catch {:?}: {outcome:?}", defect.case, defect.to)),
    }
}

/// A part of the list, so that parts run at the same time.
fn check(part: usize, parts: usize) {
    let missed: Vec<String> = DEFECTS.iter().skip(part).step_by(parts).filter_map(missed).collect();
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

#[test]
fn every_defect_is_caught_by_its_case_part_1() {
    check(0, 2);
}

#[test]
fn every_defect_is_caught_by_its_case_part_2() {
    check(1, 2);
}

#[test]
fn every_case_has_a_defect() {
    let without: Vec<&str> = cases()
        .iter()
        .map(|c| c.name)
        .filter(|name| !OF_THE_WORKER.contains(name) && !DEFECTS.iter().any(|d| d.case == *name))
        .collect();
    assert!(without.is_empty(), "cases that nothing shows to work: {without:?}");
}
