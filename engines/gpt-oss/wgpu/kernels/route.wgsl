// Which experts each token goes to, and how much each counts: the largest of the router's logits, of equals the one with the
// lower number, and the softmax over the chosen ones alone.

struct Arguments {
    experts: u32,
    chosen: u32,
}

// (tokens, experts)
@group(0) @binding(0) var<storage, read> logits: array<f32>;
// (tokens, chosen)
@group(0) @binding(1) var<storage, read_write> numbers: array<u32>;
@group(0) @binding(2) var<storage, read_write> weights: array<f32>;
var<immediate> a: Arguments;

const NOBODY = 0xffffffffu;
var<workgroup> best: array<f32, 64>;
var<workgroup> who: array<u32, 64>;
var<workgroup> picked: array<f32, CHOSEN_MAX>;

// Whether `b` of expert `j` goes before `a` of expert `i`.
fn goes_before(b: f32, j: u32, a: f32, i: u32) -> bool {
    return j != NOBODY && (i == NOBODY || b > a || (b == a && j < i));
}

// A workgroup for each token; each thread looks after the experts tid, tid + 64, ...
@compute @workgroup_size(64)
fn route(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) tid: u32) {
    // A bit for each of its experts that is taken.
    var taken = 0u;
    for (var c = 0u; c < a.chosen; c++) {
        var value = 0.0;
        var number = NOBODY;
        for (var e = tid; e < a.experts; e += 64u) {
            let logit = logits[group.x * a.experts + e];
            if ((taken >> (e / 64u)) & 1u) == 0u && goes_before(logit, e, value, number) {
                value = logit;
                number = e;
            }
        }
        best[tid] = value;
        who[tid] = number;
        workgroupBarrier();
        for (var half = 32u; half > 0u; half /= 2u) {
            if tid < half && goes_before(best[tid + half], who[tid + half], best[tid], who[tid]) {
                best[tid] = best[tid + half];
                who[tid] = who[tid + half];
            }
            workgroupBarrier();
        }
        let chosen = who[0];
        if chosen % 64u == tid {
            taken |= 1u << (chosen / 64u);
        }
        if tid == 0u {
            numbers[group.x * a.chosen + c] = chosen;
            picked[c] = best[0];
        }
        workgroupBarrier();
    }
    if tid == 0u {
        var sum = 0.0;
        for (var c = 0u; c < a.chosen; c++) {
            sum += exp(picked[c] - picked[0]);
        }
        for (var c = 0u; c < a.chosen; c++) {
            weights[group.x * a.chosen + c] = exp(picked[c] - picked[0]) / sum;
        }
    }
}
