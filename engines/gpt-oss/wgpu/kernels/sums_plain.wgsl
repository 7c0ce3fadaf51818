// How the threads of a workgroup add up numbers, for every adapter: each puts its own into the workgroup's memory. The other
// form is sums_subgroups.wgsl.

// A number of this thread, joined with those of the threads beside it.
fn joined(x: f32) -> f32 { return x; }

// Whether this thread puts the joined number into the workgroup's memory, and where. `sum_slots` places are filled.
fn puts_sum() -> bool { return true; }

fn sum_slot(tid: u32) -> u32 { return tid; }

fn sum_slots(threads: u32) -> u32 { return threads; }
