use super::*;

#[test]
fn the_program_has_every_file_and_includes_nothing() {
    let program = program();
    for (name, _) in SOURCES.iter().filter(|(name, _)| *name != ROOT && !name.ends_with(".txt")) {
        assert!(program.contains(&format!("#line 1 \"{name}\"\n")), "{name} is not in {ROOT}");
    }
    assert!(!program.contains("#include"), "kernels include nothing");
}

#[test]
fn a_folder_without_a_file_is_refused_by_its_name() {
    let error = program_of(std::path::Path::new("/nonexistent")).expect_err("it is not there");
    assert!(error.contains("all.cu"), "{error}");
}

#[test]
fn the_assemblers_report_is_read() {
    let log = "ptxas info    : 0 bytes gmem\n\
        ptxas info    : Compiling entry function 'sample' for 'sm_90a'\n\
        ptxas info    : Function properties for sample\n\
        ptxas         .     16 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads\n\
        ptxas info    : Used 52 registers, used 1 barriers, 256 bytes smem\n\
        ptxas info    : Compiling entry function 'embed' for 'sm_90a'\n\
        ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\n\
        ptxas info    : Used 24 registers, used 0 barriers\n";
    let one =
        |kernel: &str, registers, stack, spills| Uses { kernel: kernel.into(), registers, stack, spills };
    assert_eq!(uses(log), [one("sample", 52, 16, 12), one("embed", 24, 0, 0)]);
    assert_eq!(uses(""), []);
}
