//! The text of the kernels: what is common, what depends on a model's shape, and each kernel's own file.

use gpt_oss_model::GptOssConfig;

use crate::ops::sample::{ANSWER_WORDS, MOST_LIKELY_MAX};
use crate::plan::CHOSEN_MAX;

const COMMON: &str = include_str!("../kernels/common.wgsl");
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
}

impl Form {
    pub const ALL: [Form; 2] = [Form::Plain, Form::Subgroups];
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
            constants: $constants,
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
    kernel!("linear_tile"),
    kernel!("rope_kv"),
    kernel!("attention_decode", "attention", "const QUERIES = 1u;"),
    kernel!("attention_prefill", "attention", "const QUERIES = 4u;"),
    kernel!("attention_combine"),
    kernel!("route"),
    kernel!("experts_up_gemv", "experts_gemv", "const UP = true;"),
    kernel!("experts_down_gemv", "experts_gemv", "const UP = false;"),
    kernel!("experts_sort"),
    kernel!("experts_up_tile", "experts_tile", "const UP = true;"),
    kernel!("experts_down_tile", "experts_tile", "const UP = false;"),
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
        let (constants, [begin, text]) = (self.constants, self.text);
        let (sums, text) = match (text.contains("joined("), form) {
            (false, _) => ("", text.to_owned()),
            (true, Form::Plain) => (SUMS_PLAIN, text.to_owned()),
            (true, Form::Subgroups) => (SUMS_SUBGROUPS, text.replace(ARGUMENTS_END, ARGUMENTS_END_SUBGROUPS)),
        };
        format!(
            "const HEAD_DIM = {head_dim}u;\nconst GROUP = {group}u;\nconst CHOSEN_MAX = {CHOSEN_MAX}u;\n\
             const MOST_LIKELY_MAX = {MOST_LIKELY_MAX}u;\nconst ANSWER_WORDS = {ANSWER_WORDS}u;\n{constants}\n\
             {COMMON}{sums}{begin}{text}"
        )
    }
}
