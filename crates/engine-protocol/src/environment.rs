//! Which environment variables a worker gets. Everything else (tokens, keys, proxies) stays with the node.

/// Names copied from the node's environment into a worker's, which starts empty otherwise.
pub const WORKER_ENVIRONMENT: &[&str] = &[
    // What the system's loader and C library need.
    "PATH",
    "LD_LIBRARY_PATH",
    "DYLD_LIBRARY_PATH",
    "SystemRoot",
    "windir",
    "SystemDrive",
    "ProgramData",
    "NUMBER_OF_PROCESSORS",
    "PROCESSOR_ARCHITECTURE",
    "LANG",
    "LC_ALL",
    "TZ",
    // Where drivers keep their caches of compiled kernels, and temporary files.
    "HOME",
    "USERPROFILE",
    "LOCALAPPDATA",
    "APPDATA",
    "XDG_CACHE_HOME",
    "TMPDIR",
    "TMP",
    "TEMP",
    // Which devices drivers show, and how.
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "CUDA_CACHE_PATH",
    "CUDA_CACHE_MAXSIZE",
    "NVIDIA_VISIBLE_DEVICES",
    "NVIDIA_DRIVER_CAPABILITIES",
    "VK_ICD_FILENAMES",
    "VK_DRIVER_FILES",
    "VK_LAYER_PATH",
    "GGML_VK_VISIBLE_DEVICES",
    // For whoever looks for a fault.
    "RUST_BACKTRACE",
    "LLVM_PROFILE_FILE",
];

/// Whether a variable is on the list; names have no case on Windows.
pub fn is_worker_variable(name: &str) -> bool {
    WORKER_ENVIRONMENT
        .iter()
        .any(|allowed| if cfg!(windows) { allowed.eq_ignore_ascii_case(name) } else { *allowed == name })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_of_the_node_are_not_on_the_list() {
        for name in ["HF_TOKEN", "LLM_ROUTER_JOIN", "HTTPS_PROXY", "AWS_SECRET_ACCESS_KEY", "LD_PRELOAD"] {
            assert!(!is_worker_variable(name), "{name}");
        }
        assert!(is_worker_variable("PATH"));
    }
}
