//! Any text as the name of a file: what passes stays in its folder on every system.
#![no_main]

use std::path::{Component, Path};

use libfuzzer_sys::fuzz_target;
use model_formats::check_file_name;

fuzz_target!(|name: &str| {
    if check_file_name(name).is_ok() {
        let path = Path::new(name);
        assert!(path.components().all(|c| matches!(c, Component::Normal(_))));
        assert!(!name.contains(['\\', ':', '\0']));
    }
});
