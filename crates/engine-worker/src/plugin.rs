//! Opens a plugin's library and checks that it is what its manifest says, before anything of it is used.

use std::path::Path;

use engine_abi as abi;
use engine_protocol::{Open, Status, StatusCode};
use libloading::Library;

use crate::abi_in::{read_sized, read_text};

/// The first words of the table, which are the same in every version.
const TABLE_HEAD_BYTES: u32 = 16;

/// Opens the library, for good, and returns its table with no function missing.
pub fn open(open: &Open) -> Result<abi::EngineApi, Status> {
    let path = Path::new(&open.library);
    if !path.is_absolute() {
        return Err(not_opened(path, "the path is not absolute"));
    }
    let library = load(path).map_err(|error| not_opened(path, &chain(&error)))?;
    // Leaked before anything can fail: closing a library whose constructors started threads would crash.
    let library: &'static Library = Box::leak(Box::new(library));
    // SAFETY: the header fixes the type of this symbol.
    let entry = unsafe { library.get::<abi::EntryFn>(abi::ENTRY_SYMBOL.as_bytes()) }.map_err(|_| {
        mismatch(format!(
            "{} exports no {}: it is not an engine of llm-router",
            path.display(),
            abi::ENTRY_SYMBOL
        ))
    })?;
    // SAFETY: by the header it may be called at any time and returns a static table.
    let table = unsafe { entry() };
    check_table(table, path).and_then(|table| check_identity(table, open))
}

#[cfg(unix)]
fn load(path: &Path) -> Result<Library, libloading::Error> {
    use libloading::os::unix::{Library as Unix, RTLD_LOCAL, RTLD_NOW};
    // Everything bound now: a symbol that is missing is an error here and not a crash at its first use.
    // SAFETY: the library's constructors run, in the process that exists for them.
    unsafe { Unix::open(Some(path), RTLD_NOW | RTLD_LOCAL) }.map(Library::from)
}

#[cfg(windows)]
fn load(path: &Path) -> Result<Library, libloading::Error> {
    use libloading::os::windows::{
        LOAD_LIBRARY_SEARCH_DEFAULT_DIRS, LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR, Library as Windows,
    };
    // Libraries beside the plugin are found, those of the current directory are not.
    // SAFETY: the library's DllMain runs, in the process that exists for it.
    unsafe {
        Windows::load_with_flags(path, LOAD_LIBRARY_SEARCH_DLL_LOAD_DIR | LOAD_LIBRARY_SEARCH_DEFAULT_DIRS)
    }
    .map(Library::from)
}

fn check_table(table: *const abi::EngineApi, path: &Path) -> Result<abi::EngineApi, Status> {
    // SAFETY: by the header the entry returns a table that begins with its size.
    let Some(api) = (unsafe { read_sized(table) }) else {
        return Err(mismatch(format!("{} returned no table", path.display())));
    };
    // The version first: of another major version nothing else is known.
    if api.struct_size < TABLE_HEAD_BYTES || api.abi_major != abi::ABI_MAJOR {
        return Err(mismatch(format!(
            "{} was built for version {}.{} of the engine ABI, this host speaks {}.{}; install an engine of this \
             version",
            path.display(),
            api.abi_major,
            api.abi_minor,
            abi::ABI_MAJOR,
            abi::ABI_MINOR,
        ))
        .with_numbers(u64::from(abi::ABI_MAJOR), u64::from(api.abi_major)));
    }
    let functions = [
        ("info", api.info.is_some()),
        ("open", api.open.is_some()),
        ("close", api.close.is_some()),
        ("devices", api.devices.is_some()),
        ("estimate", api.estimate.is_some()),
        ("load", api.load.is_some()),
        ("unload", api.unload.is_some()),
        ("tokenize", api.tokenize.is_some()),
        ("submit", api.submit.is_some()),
        ("cancel", api.cancel.is_some()),
        ("step", api.step.is_some()),
        ("stats", api.stats.is_some()),
        ("get_extension", api.get_extension.is_some()),
    ];
    let missing: Vec<&str> = functions.iter().filter(|(_, there)| !there).map(|(name, _)| *name).collect();
    if missing.is_empty() {
        return Ok(api);
    }
    Err(mismatch(format!(
        "the table of {} ({} bytes) has no function {}",
        path.display(),
        api.struct_size,
        missing.join(", ")
    )))
}

fn check_identity(api: abi::EngineApi, open: &Open) -> Result<abi::EngineApi, Status> {
    let info = api.info.expect("the table was checked");
    // SAFETY: by the header it may be called at any time and returns a static struct that begins with its size.
    let Some(info) = (unsafe { read_sized(info()) }) else {
        return Err(mismatch(format!("{} says nothing of itself: info returned NULL", open.library)));
    };
    // SAFETY: strings of that static struct.
    let (id, version) = unsafe { (read_text(info.id), read_text(info.version)) };
    if (&id, &version) != (&open.engine_id, &open.engine_version) {
        return Err(Status::new(
            StatusCode::AbiMismatch,
            "manifest_mismatch",
            format!(
                "manifest.json says engine {} version {}, the library {} says {id} version {version}; reinstall the \
                 engine, its files do not belong together",
                open.engine_id, open.engine_version, open.library
            ),
        ));
    }
    Ok(api)
}

fn mismatch(message: String) -> Status {
    Status::new(StatusCode::AbiMismatch, abi::REASON_ABI_MISMATCH, message)
}

fn not_opened(path: &Path, why: &str) -> Status {
    Status::new(
        StatusCode::LoadFailed,
        "library_not_opened",
        format!("the engine's library {} cannot be opened: {why}", path.display()),
    )
}

/// An error and its causes in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut out = error.to_string();
    let mut cause = error.source();
    while let Some(c) = cause {
        out.push_str(&format!(": {c}"));
        cause = c.source();
    }
    out
}
