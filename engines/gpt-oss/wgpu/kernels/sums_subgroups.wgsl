// As sums_plain.wgsl, for adapters with subgroups, of whatever size: those join their numbers without memory, and the first
// thread of each puts what came of it into the workgroup's memory.

// Set where a kernel begins.
var<private> subgroup: u32;
var<private> subgroups: u32;
var<private> lane: u32;

fn joined(x: f32) -> f32 { return subgroupAdd(x); }

fn puts_sum() -> bool { return lane == 0u; }

fn sum_slot(tid: u32) -> u32 { return subgroup; }

fn sum_slots(threads: u32) -> u32 { return subgroups; }
