//! The text of the kernels: what is common, what depends on a model's shape, and each kernel's own file.

use gpt_oss_model::GptOssConfig;

use crate::ops::sample::{ANSWER_WORDS, MOST_LIKELY_MAX};
use crate::plan::CHOSEN_MAX;

const COMMON: &str = include_str!("../kernels/common.wgsl");
const MATRICES: &str = include_str!("../kernels/matrices.wgsl");
const SUMS_PLAIN: &str = include_str!("../kernels/sums_plain.wgsl");
const SUMS_SUBGROUPS: &str = include_str!("../kernels/sums_subgroups.wgsl");
/// How the arguments of a kernel end that adds up numbers of its threads, and how they do where there are subgroups.
const ARGUMENTS_END: &str = "@builtin(local_invocation_index) tid: u32) {";
const ARGUMENTS_END_SUBGROUPS: &str = "@builtin(local_invocation_index) tid: u32, \
    @builtin(subgroup_id) subgroup_of: u32, @builtin(num_subgroups) subgroups_of: u32, \
    @builtin(subgroup_invocation_id) lane_of: u32) {
    subgroup = subgroup_of;
    subgroups = subgroups_of;
    lane = lane_of;";

/// What kernels make use of, chosen by what an adapter has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Nothing that some adapters lack.
    Plain,
    /// Threads that run in step, in whatever number, add up their numbers without memory.
    Subgroups,
    /// The same, and many tokens are multiplied by subgroups together: with square matrices of so many rows of f16, by so many
    /// threads in a workgroup, which are eight subgroups at least.
    Matrices { size: u32, threads: u32 },
}

impl Form {
    /// One of each kind, and matrices of both sizes.
    pub const ALL: [Form; 4] = [
        Form::Plain,
        Form::Subgroups,
        Form::Matrices { size: 8, threads: 256 },
        Form::Matrices { size: 16, threads: 256 },
    ];

    pub fn as_str(self) -> &'static str {
        match self {
            Form::Plain => "plain",
            Form::Subgroups => "subgroups",
            Form::Matrices { .. } => "subgroups and cooperative matrices of f16",
        }
    }
}

/// What kernels know of a model while they are compiled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    pub head_dim: usize,
    /// Query heads that share a head of keys.
    pub group: usize,
}

impl Shape {
    pub fn of(config: &GptOssConfig) -> Shape {
        Shape { head_dim: config.head_dim, group: config.heads / config.kv_heads }
    }
}

/// A kernel by its name.
#[derive(Debug, Clone, Copy)]
pub struct Kernel {
    pub name: &'static str,
    /// The function in its text; two kernels can be made of one text.
    pub entry: &'static str,
    /// What several texts begin with, and its own.
    text: [&'static str; 2],
    /// Its text where there are cooperative matrices, if that is another one.
    matrices: Option<&'static str>,
    /// Constants that set it apart from others of the same text.
    constants: &'static str,
}

macro_rules! kernel {
    ($name:literal) => {
        kernel!($name, $name, "")
    };
    ($name:literal, $file:literal, $constants:literal) => {
        Kernel {
            name: $name,
            entry: $file,
            text: ["", include_str!(concat!("../kernels/", $file, ".wgsl"))],
            matrices: None,
            constants: $constants,
        }
    };
    // One that is written anew for cooperative matrices.
    ($name:literal, $file:literal, $constants:literal, or $matrices:literal) => {
        Kernel {
            matrices: Some(include_str!(concat!("../kernels/", $matrices, ".wgsl"))),
            ..kernel!($name, $file, $constants)
        }
    };
    // One that begins with the text of another file.
    ($name:literal behind $file:literal) => {
        Kernel {
            name: $name,
            entry: $name,
            text: [
                include_str!(concat!("../kernels/", $file, ".wgsl")),
                include_str!(concat!("../kernels/", $name, ".wgsl")),
            ],
            matrices: None,
            constants: "",
        }
    };
}

/// In the order of a pass, behind what a device can do at most.
pub const KERNELS: &[Kernel] = &[
    kernel!("peak_read"),
    kernel!("peak_multiply"),
    kernel!("embed"),
    kernel!("rmsnorm"),
    kernel!("linear_gemv_1", "linear_gemv", "const TOKENS = 1u;"),
    kernel!("linear_gemv_4", "linear_gemv", "const TOKENS = 4u;"),
    kernel!("linear_tile", "linear_tile", "", or "linear_matrices"),
    kernel!("rope_kv"),
    kernel!("attention_decode", "attention", "const QUERIES = 1u;"),
    kernel!("attention_prefill", "attention", "const QUERIES = 4u;"),
    kernel!("attention_combine"),
    kernel!("route"),
    kernel!("experts_up_gemv", "experts_gemv", "const UP = true;"),
    kernel!("experts_down_gemv", "experts_gemv", "const UP = false;"),
    kernel!("experts_sort"),
    kernel!("experts_up_tile", "experts_tile", "const UP = true;", or "experts_matrices"),
    kernel!("experts_down_tile", "experts_tile", "const UP = false;", or "experts_matrices"),
    kernel!("experts_combine"),
    kernel!("sample_top" behind "sample"),
    kernel!("sample_best" behind "sample"),
    kernel!("sample_weigh" behind "sample"),
    kernel!("sample_change" behind "sample"),
    kernel!("sample_pick" behind "sample"),
];

impl Kernel {
    /// The whole WGSL of it.
    pub fn source(&self, shape: Shape, form: Form) -> String {
        let Shape { head_dim, group } = shape;
        let (constants, [mut begin, mut text]) = (self.constants, self.text);
        let mut enabled = String::new();
        if let (Form::Matrices { size, threads }, Some(matrices)) = (form, self.matrices) {
            (begin, text) = (MATRICES, matrices);
            enabled = format!(
                "enable f16;\nenable wgpu_cooperative_matrix;\nconst SIZE = {size}u;\nconst THREADS = {threads}u;\n"
            );
            for (name, number, role) in [("Left", "f16", "A"), ("Right", "f16", "B"), ("Sum", "f32", "C")] {
                enabled += &format!("alias {name} = coop_mat{size}x{size}<{number}, {role}>;\n");
            }
        }
        let (sums, text) = match (text.contains("joined("), form) {
            (false, _) => ("", text.to_owned()),
            (true, Form::Plain) => (SUMS_PLAIN, text.to_owned()),
            (true, _) => (SUMS_SUBGROUPS, text.replace(ARGUMENTS_END, ARGUMENTS_END_SUBGROUPS)),
        };
        format!(
            "{enabled}const HEAD_DIM = {head_dim}u;\nconst GROUP = {group}u;\nconst CHOSEN_MAX = {CHOSEN_MAX}u;\n\
             const MOST_LIKELY_MAX = {MOST_LIKELY_MAX}u;\nconst ANSWER_WORDS = {ANSWER_WORDS}u;\n{constants}\n\
             {COMMON}{sums}{begin}{text}"
        )
    }
}
