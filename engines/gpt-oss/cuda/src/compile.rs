//! Compiles the kernels by NVRTC, NVIDIA's compiler as a library: ahead of time into this build, or anew where a kernel is
//! being worked on. Needs neither a GPU nor a driver.

use std::ffi::{CStr, CString, c_char};

use cudarc::nvrtc::sys;

include!(concat!(env!("OUT_DIR"), "/sources.rs"));

/// The file that includes the others.
const ROOT: &str = "all.cu";
/// What is shipped: machine code of each generation, and what a driver compiles for later ones.
pub const TARGETS: [&str; 7] = ["sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120", "compute_80"];

/// A compiled image.
#[derive(Debug)]
pub struct Compiled {
    /// `sm_90a.cubin` or `compute_80.ptx`.
    pub name: String,
    pub image: Vec<u8>,
    /// Of each kernel; empty for what the driver compiles.
    pub uses: Vec<Uses>,
}

/// What a kernel takes of a processor, as the assembler reports it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Uses {
    pub kernel: String,
    /// Of each thread.
    pub registers: u32,
    /// Bytes of each thread that did not fit registers: stack, and stores and loads of it.
    pub stack: u32,
    pub spills: u32,
}

/// Why there is no image.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    #[error(
        "no NVRTC library (libnvrtc.so.12 or .13, nvrtc64_120_0.dll) was found\n\
         hint: `cargo xtask cuda-kernels` installs it into build/; elsewhere name its folder in LD_LIBRARY_PATH, or PATH \
         on Windows"
    )]
    NoCompiler,
    #[error("{operation} of the kernels for {target} failed: {log}")]
    Failed { operation: &'static str, target: String, log: String },
}

/// The kernels of this build, as one text.
pub fn program() -> String {
    inline(|name| SOURCES.iter().find(|(n, _)| *n == name).map(|(_, text)| (*text).to_owned()))
        .expect("all.cu names files that are there, as a test checks")
}

/// The kernels of a folder, which has to have every file of this build's.
///
/// # Errors
/// Names the file that cannot be read.
pub fn program_of(folder: &std::path::Path) -> Result<String, String> {
    inline(|name| std::fs::read_to_string(folder.join(name)).ok())
        .map_err(|name| format!("cannot read {}", folder.join(name).display()))
}

/// Puts the files in the places where they are included.
fn inline(read: impl Fn(&str) -> Option<String>) -> Result<String, String> {
    let mut program = String::new();
    for line in read(ROOT).ok_or(ROOT)?.lines() {
        match line.strip_prefix("#include \"").and_then(|rest| rest.strip_suffix('"')) {
            Some(name) => {
                let text = read(name).ok_or(name)?;
                program += &format!("#line 1 \"{name}\"\n{text}");
            }
            None => program += line,
        }
        program.push('\n');
    }
    Ok(program)
}

/// Compiles for a target: `sm_90a` to machine code, `compute_80` to PTX.
///
/// # Errors
/// There is no compiler, or it does not take the program: then with its words.
pub fn compile(program: &str, target: &str) -> Result<Compiled, CompileError> {
    // SAFETY: opens the library, if it is there, which runs no code but its own.
    if !unsafe { sys::is_culib_present() } {
        return Err(CompileError::NoCompiler);
    }
    let failed = |operation, log: String| CompileError::Failed { operation, target: target.to_owned(), log };
    let text = CString::new(program).map_err(|_| failed("reading", "a zero in the text".to_owned()))?;
    let options = [format!("--gpu-architecture={target}"), "--std=c++17".into(), "--ptxas-options=-v".into()];
    let options = options.map(|o| CString::new(o).expect("options have no zeros"));
    let options: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();
    let mut handle = std::ptr::null_mut();
    let none = std::ptr::null();
    // SAFETY: the text ends with a zero and outlives the program, which is destroyed below.
    let made =
        unsafe { sys::nvrtcCreateProgram(&mut handle, text.as_ptr(), c"all.cu".as_ptr(), 0, none, none) };
    made.result().map_err(|error| failed("reading", error.to_string()))?;
    // SAFETY: the options end with zeros and are as many as is said.
    let compiled = unsafe { sys::nvrtcCompileProgram(handle, options.len() as i32, options.as_ptr()) };
    // SAFETY: both functions are for this program; they write as many bytes as they said.
    let log = unsafe { read_out(handle, sys::nvrtcGetProgramLogSize, sys::nvrtcGetProgramLog) };
    let log = CStr::from_bytes_until_nul(&log).map_or_else(|_| String::new(), |l| l.to_string_lossy().into());
    let is_text = target.starts_with("compute_");
    let image = compiled.result().map(|()| {
        // SAFETY: as above.
        unsafe {
            if is_text {
                read_out(handle, sys::nvrtcGetPTXSize, sys::nvrtcGetPTX)
            } else {
                read_out(handle, sys::nvrtcGetCUBINSize, sys::nvrtcGetCUBIN)
            }
        }
    });
    // SAFETY: made above, and used no more.
    let _ = unsafe { sys::nvrtcDestroyProgram(&mut handle) };
    let image = image.map_err(|error| failed("compilation", format!("{error}: {log}")))?;
    let name = format!("{target}.{}", if is_text { "ptx" } else { "cubin" });
    Ok(Compiled { name, image, uses: uses(&log) })
}

/// # Safety
/// `size` tells how many bytes `get` writes for this program.
unsafe fn read_out(
    program: sys::nvrtcProgram,
    size: unsafe fn(sys::nvrtcProgram, *mut usize) -> sys::nvrtcResult,
    get: unsafe fn(sys::nvrtcProgram, *mut c_char) -> sys::nvrtcResult,
) -> Vec<u8> {
    let mut bytes = 0;
    // SAFETY: the caller's promise.
    unsafe {
        if size(program, &mut bytes).result().is_err() {
            return Vec::new();
        }
        let mut out = vec![0u8; bytes];
        if get(program, out.as_mut_ptr().cast()).result().is_err() {
            out.clear();
        }
        out
    }
}

/// The assembler's report, kernel by kernel.
fn uses(log: &str) -> Vec<Uses> {
    let mut all: Vec<Uses> = Vec::new();
    for line in log.lines() {
        if let Some(kernel) =
            line.split_once("Compiling entry function '").and_then(|(_, r)| r.split('\'').next())
        {
            all.push(Uses { kernel: kernel.to_owned(), ..Uses::default() });
        }
        let Some(last) = all.last_mut() else { continue };
        // "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"; "Used 52 registers, used 1 barriers".
        for part in line.split(',') {
            let before = |word: &str| {
                let number = part.split_once(word)?.0.split_whitespace().next_back()?;
                number.parse::<u32>().ok()
            };
            last.stack += before(" bytes stack frame").unwrap_or(0);
            last.spills += before(" bytes spill").unwrap_or(0);
            last.registers = before(" registers").unwrap_or(last.registers);
        }
    }
    all
}

#[cfg(test)]
mod tests;
