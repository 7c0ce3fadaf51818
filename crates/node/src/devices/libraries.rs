//! Libraries of Microsoft's that some devices want and that nobody may ship along: whether they are here, and where to get them.

use std::path::{Path, PathBuf};

use super::DIRECTML;

/// A library, and what an operator has to know of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Library {
    pub file: &'static str,
    pub published: &'static str,
}

/// Runs models compiled for DirectML.
pub const DIRECTML_RUNTIME: Library = Library {
    file: "DirectML.dll",
    published: "https://www.nuget.org/packages/Microsoft.AI.DirectML (bin/x64-win/DirectML.dll); Windows 10 and later have one",
};
/// Translates the kernels for Direct3D 12: the compiler that is a part of Windows knows neither subgroups nor f16.
pub const SHADER_COMPILER: Library = Library {
    file: "dxcompiler.dll",
    published: "https://github.com/microsoft/DirectXShaderCompiler/releases (1.8.2502 or later, bin/x64/dxcompiler.dll)",
};

/// Comes with the drivers of all GPUs that speak Vulkan.
pub const VULKAN_LOADER: Library =
    Library { file: "vulkan-1.dll", published: "the driver's own page: it is a part of the graphics driver" };

impl Library {
    /// In the order in which Windows looks: beside this program, in the system's folder, in those of PATH.
    pub fn find(&self) -> Option<PathBuf> {
        let beside = std::env::current_exe().ok().and_then(|program| program.parent().map(Path::to_owned));
        let system = std::env::var_os("SystemRoot").map(|root| PathBuf::from(root).join("System32"));
        let path = std::env::var_os("PATH").unwrap_or_default();
        self.find_in(beside.into_iter().chain(system).chain(std::env::split_paths(&path)))
    }

    fn find_in(&self, dirs: impl Iterator<Item = PathBuf>) -> Option<PathBuf> {
        dirs.map(|dir| dir.join(self.file)).find(|path| path.is_file())
    }
}

/// Why nothing runs on DirectML, in words for who asked for it. It is experimental, and no reader of its artifacts exists.
pub fn directml_refusal(runtime: Option<&Path>) -> String {
    let Library { file, published } = DIRECTML_RUNTIME;
    let problem = match runtime {
        None => format!("its runtime {file} is not on this machine; it is published at {published}"),
        Some(path) => format!(
            "its runtime {} is here, but the form of model.directml.bin and model.dml.bin is not published and no engine \
             here reads it ({file} is published at {published})",
            path.display()
        ),
    };
    format!("device {DIRECTML} is experimental: {problem}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_found_in_the_first_folder_that_has_it() {
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let dirs = || [first.path().to_owned(), second.path().to_owned()].into_iter();
        assert_eq!(SHADER_COMPILER.find_in(dirs()), None);
        // A folder of that name is no library.
        std::fs::create_dir(first.path().join("dxcompiler.dll")).unwrap();
        let path = second.path().join("dxcompiler.dll");
        std::fs::write(&path, "").unwrap();
        assert_eq!(SHADER_COMPILER.find_in(dirs()), Some(path));
    }

    #[test]
    fn a_refusal_names_the_library_and_where_it_is_published() {
        for runtime in [None, Some(Path::new("C:/DirectML.dll"))] {
            let message = directml_refusal(runtime);
            for part in
                ["DirectML.dll", "https://www.nuget.org/packages/Microsoft.AI.DirectML", "experimental"]
            {
                assert!(message.contains(part), "{part}: {message}");
            }
        }
    }
}
