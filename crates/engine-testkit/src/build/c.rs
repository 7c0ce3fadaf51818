//! Compiles an engine in C with the system's compiler, against the header alone.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use super::workspace_root;

/// Compiles all `.c` files of a folder to a shared library in `out_dir` and returns its path.
pub fn compile_c_engine(source: &Path, out_dir: &Path) -> Result<PathBuf> {
    compile_c_engine_with(source, out_dir, &mut |_, text| Ok(text))
}

/// The same after `change` had every file's (name, text), headers included: for planting defects.
pub fn compile_c_engine_with(
    source: &Path,
    out_dir: &Path,
    change: &mut dyn FnMut(&str, String) -> Result<String>,
) -> Result<PathBuf> {
    std::fs::create_dir_all(out_dir).with_context(|| format!("cannot create {}", out_dir.display()))?;
    let copies = tempfile::tempdir_in(out_dir).context("no folder for the sources")?;
    let mut sources = Vec::new();
    for entry in std::fs::read_dir(source).with_context(|| format!("cannot list {}", source.display()))? {
        let path = entry?.path();
        let extension = path.extension().and_then(|e| e.to_str()).unwrap_or_default();
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        if extension == "c" || extension == "h" {
            let text = std::fs::read_to_string(&path)?;
            let copy = copies.path().join(name);
            std::fs::write(&copy, change(name, text)?)?;
            if extension == "c" {
                sources.push(copy);
            }
        }
    }
    if sources.is_empty() {
        bail!("no C files in {}", source.display());
    }
    sources.sort();
    // Built in the folder of its own and then moved, so that two processes never write one file.
    let built = copies.path().join("engine.built");
    link(&sources, &built)?;
    let library = out_dir.join("engine.library");
    super::replace_file(&built, &library)?;
    Ok(library)
}

/// A shared library of these sources.
pub(super) fn link(sources: &[PathBuf], library: &Path) -> Result<()> {
    let target = env!("ENGINE_TESTKIT_TARGET");
    let dir = library.parent().context("the library has a folder")?;
    let compiler = cc::Build::new()
        .target(target)
        .host(target)
        .opt_level(1)
        .out_dir(dir)
        .cargo_metadata(false)
        .try_get_compiler()
        .context("no C compiler; install gcc, clang or the Visual Studio build tools")?;
    let mut command = compiler.to_command();
    command.current_dir(dir);
    let include = workspace_root().join("include").join("engine");
    if compiler.is_like_msvc() {
        command.args(["/LD", "/W3", "/WX", "/D_CRT_SECURE_NO_WARNINGS", "/I"]).arg(include).args(sources);
        command.arg(format!("/Fe:{}", library.display()));
    } else {
        command.args(["-std=c99", "-D_POSIX_C_SOURCE=200112L", "-shared", "-fPIC", "-fvisibility=hidden"]);
        command.args(["-Wall", "-Wextra", "-Werror", "-pedantic", "-I"]).arg(include).args(sources);
        command.arg("-o").arg(library).args(["-lm", "-lpthread"]);
    }
    let out = command.output().context("the C compiler cannot be started")?;
    if !out.status.success() {
        let words = [out.stdout, out.stderr].concat();
        bail!(
            "{} does not compile without a warning:\n{}",
            library.display(),
            String::from_utf8_lossy(&words)
        );
    }
    Ok(())
}
