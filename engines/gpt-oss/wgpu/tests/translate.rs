//! Every kernel is valid WGSL, and naga translates it to what each system's driver takes: SPIR-V (which `spirv-val` checks,
//! where it is installed), Metal's language and Direct3D's. That Apple's and Microsoft's compilers take the result is not
//! shown by this.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use gpt_oss_wgpu::shaders::{Form, KERNELS, Kernel, Shape};
use naga::back::{hlsl, msl, spv};
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};

const SHAPES: [Shape; 2] = [Shape { head_dim: 64, group: 8 }, Shape { head_dim: 32, group: 3 }];

/// What a `spirv-val` says that is older than cooperative matrices.
const UNKNOWN: &str = "Invalid capability operand: 6022";

/// Every kernel in every form.
fn each(mut check: impl FnMut(&Kernel, Form, &naga::Module, &ModuleInfo)) {
    for (shape, form) in SHAPES.into_iter().flat_map(|shape| Form::ALL.map(|form| (shape, form))) {
        for kernel in KERNELS {
            let source = kernel.source(shape, form);
            let module = naga::front::wgsl::parse_str(&source)
                .unwrap_or_else(|error| panic!("{}: {}", kernel.name, error.emit_to_string(&source)));
            // Nothing beyond arguments of launches, and what the form is named for: f16 with matrices alone.
            let may = match form {
                Form::Plain => Capabilities::IMMEDIATES,
                Form::Subgroups => Capabilities::IMMEDIATES | Capabilities::SUBGROUP,
                Form::Matrices { .. } => {
                    Capabilities::IMMEDIATES
                        | Capabilities::SUBGROUP
                        | Capabilities::SHADER_FLOAT16
                        | Capabilities::COOPERATIVE_MATRIX
                }
            };
            let mut validator = Validator::new(ValidationFlags::all(), may);
            let info = validator.validate(&module);
            let info =
                info.unwrap_or_else(|error| panic!("{}: {}", kernel.name, error.emit_to_string(&source)));
            check(kernel, form, &module, &info);
        }
    }
}

/// The one that the set-up installs, which knows cooperative matrices, before this machine's own.
fn validator() -> Option<PathBuf> {
    let packages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../build/venv/lib");
    let pythons = std::fs::read_dir(packages).into_iter().flatten().filter_map(Result::ok);
    let installed = pythons.map(|python| python.path().join("site-packages/cmeel.prefix/bin/spirv-val"));
    let all = installed.filter(|path| path.is_file()).chain([PathBuf::from("spirv-val")]);
    all.into_iter().find(|path| Command::new(path).arg("--version").output().is_ok())
}

/// naga says of every array how far apart its elements are. Of a workgroup's memory, which has a layout of the driver's own,
/// nobody may say that; validators refuse it since 2025, and the drivers that were seen take no notice. Only such arrays have a
/// fixed size here.
fn without_strides(words: Vec<u32>) -> Vec<u32> {
    const HEAD: usize = 5;
    const TYPE_ARRAY: u32 = 28;
    const DECORATE: u32 = 71;
    const ARRAY_STRIDE: u32 = 6;
    let mut instructions = Vec::new();
    let mut rest = &words[HEAD..];
    while let Some(first) = rest.first() {
        let (instruction, behind) = rest.split_at((first >> 16) as usize);
        instructions.push(instruction);
        rest = behind;
    }
    let arrays: HashSet<u32> =
        instructions.iter().filter(|i| i[0] & 0xffff == TYPE_ARRAY).map(|i| i[1]).collect();
    let is_kept = |i: &&[u32]| i[0] & 0xffff != DECORATE || i[2] != ARRAY_STRIDE || !arrays.contains(&i[1]);
    let kept = instructions.into_iter().filter(is_kept).flatten();
    words[..HEAD].iter().chain(kept).copied().collect()
}

#[test]
fn every_kernel_becomes_spir_v_that_is_valid() {
    let validator = validator();
    if validator.is_none() {
        println!("skipped in part: no spirv-val (`cargo xtask setup` installs one)");
    }
    let dir = tempfile::tempdir().unwrap();
    each(|kernel, form, module, info| {
        // As wgpu has it: 1.4 where Vulkan has cooperative matrices.
        let (version, environment) = match form {
            Form::Plain | Form::Subgroups => ((1, 3), "vulkan1.1"),
            Form::Matrices { .. } => ((1, 4), "vulkan1.2"),
        };
        let options = spv::Options { lang_version: version, ..spv::Options::default() };
        let words = without_strides(spv::write_vec(module, info, &options, None).unwrap());
        assert!(words.len() > 100, "{}", kernel.name);
        if let Some(validator) = &validator {
            let file = dir.path().join(kernel.name);
            std::fs::write(&file, words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<u8>>()).unwrap();
            let output =
                Command::new(validator).args(["--target-env", environment]).arg(&file).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr);
            if matches!(form, Form::Matrices { .. }) && said.contains(UNKNOWN) {
                println!("skipped in part: this spirv-val does not know cooperative matrices");
                return;
            }
            assert!(output.status.success(), "{}: {said}", kernel.name);
        }
    });
}

#[test]
fn every_kernel_becomes_metals_language() {
    each(|kernel, _, module, info| {
        let bind = |buffer: u8, mutable: bool| msl::BindTarget {
            buffer: Some(buffer),
            mutable,
            ..msl::BindTarget::default()
        };
        let mut resources = msl::EntryPointResources {
            immediates_buffer: Some(20),
            sizes_buffer: Some(21),
            ..msl::EntryPointResources::default()
        };
        for (_, variable) in module.global_variables.iter() {
            if let Some(binding) = variable.binding {
                resources.resources.insert(binding, bind(binding.binding as u8, true));
            }
        }
        let options = msl::Options {
            lang_version: (2, 4),
            per_entry_point_map: [(kernel.entry.to_owned(), resources)].into(),
            ..msl::Options::default()
        };
        let (text, translated) =
            msl::write_string(module, info, &options, &msl::PipelineOptions::default()).unwrap();
        assert!(
            translated.entry_point_names.iter().all(Result::is_ok),
            "{}: {:?}",
            kernel.name,
            translated.entry_point_names
        );
        assert!(text.contains("kernel void"), "{}", kernel.name);
    });
}

#[test]
fn every_kernel_becomes_direct3ds_language() {
    each(|kernel, form, module, info| {
        let options = hlsl::Options {
            shader_model: match form {
                // naga does not translate cooperative matrices, and Direct3D 12 has none that wgpu knows.
                Form::Matrices { .. } => return,
                // What FXC takes as well, without a library to be shipped.
                Form::Plain => hlsl::ShaderModel::V5_1,
                Form::Subgroups => hlsl::ShaderModel::V6_0,
            },
            immediates_target: Some(hlsl::BindTarget { space: 1, ..hlsl::BindTarget::default() }),
            ..hlsl::Options::default()
        };
        let mut text = String::new();
        let pipeline = hlsl::PipelineOptions::default();
        let translated = hlsl::Writer::new(&mut text, &options, &pipeline).write(module, info, None).unwrap();
        assert!(
            translated.entry_point_names.iter().all(Result::is_ok),
            "{}: {:?}",
            kernel.name,
            translated.entry_point_names
        );
        assert!(text.contains("numthreads"), "{}", kernel.name);
    });
}
