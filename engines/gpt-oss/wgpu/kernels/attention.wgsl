// Attention over the paged KV, of QUERIES consecutive tokens of one sequence together (attention_decode: one,
// attention_prefill: four). The context is cut into parts: each has its own softmax, and attention_combine joins them.

struct Arguments {
    // Pairs: first token, and how many follow one another.
    entries_at: u32,
    positions_at: u32,
    // Of each token, its sequence's row in the next two.
    rows_at: u32,
    // Where the blocks of each row begin in the tables, and the number of the first of them in its sequence.
    starts_at: u32,
    firsts_at: u32,
    tables_at: u32,
    heads: u32,
    kv_heads: u32,
    // Positions a token looks back at, its own included; 0: all.
    window: u32,
    parts: u32,
    scale: f32,
}

@group(0) @binding(0) var<storage, read> step: array<u32>;
@group(0) @binding(1) var<storage, read> q: array<f32>;
// See rope_kv.
@group(0) @binding(2) var<storage, read> kv: array<f32>;
// (tokens, heads, parts, HEAD_DIM): values, divided by nothing yet.
@group(0) @binding(3) var<storage, read_write> values: array<f32>;
// (tokens, heads, parts, 2): largest score, and sum of the weights.
@group(0) @binding(4) var<storage, read_write> sums: array<f32>;
var<immediate> a: Arguments;

// Heads of queries at once: those of one head of keys, of each token.
const HEADS = GROUP * QUERIES;
var<workgroup> queries: array<f32, HEADS * HEAD_DIM>;
var<workgroup> scores: array<f32, HEADS * 64u>;
var<workgroup> factors: array<f32, HEADS>;
var<workgroup> tops: array<f32, HEADS>;

// The first position that the one at `position` looks at.
fn first_seen(position: u32) -> u32 {
    let end = position + 1u;
    return select(0u, end - a.window, a.window != 0u && end > a.window);
}

// A workgroup for each entry (x), head of keys (y) and part (z). A thread is a place of a block while scores are made, and
// a dimension while values are mixed.
@compute @workgroup_size(64)
fn attention(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) tid: u32) {
    let token = step[a.entries_at + 2u * group.x];
    let length = step[a.entries_at + 2u * group.x + 1u];
    let kv_head = group.y;
    let part = group.z;
    let position = step[a.positions_at + token];
    let row = step[a.rows_at + token];
    let page_first = first_seen(position) / 64u;
    let pages = (position + length + 63u) / 64u - page_first;
    let each = (pages + a.parts - 1u) / a.parts;
    let page_begin = page_first + min(part * each, pages);
    let page_end = page_first + min((part + 1u) * each, pages);

    // Tokens beyond the end repeat the last one; what comes of it is not written.
    for (var i = tid; i < HEADS * HEAD_DIM; i += 64u) {
        let head = i / HEAD_DIM;
        let who = token + min(head / GROUP, length - 1u);
        queries[i] = q[(who * a.heads + kv_head * GROUP + head % GROUP) * HEAD_DIM + i % HEAD_DIM] * a.scale;
    }
    // This thread's dimension, of every head.
    var mixed: array<f32, HEADS>;
    // Of head tid.
    var largest = NEVER;
    var weight = 0.0;
    workgroupBarrier();
    for (var page = page_begin; page < page_end; page++) {
        let block = step[a.tables_at + step[a.starts_at + row] + page - step[a.firsts_at + row]];
        let keys = (block * a.kv_heads + kv_head) * 2u * 64u * HEAD_DIM;
        var dots: array<f32, HEADS>;
        for (var d = 0u; d < HEAD_DIM; d++) {
            let key = kv[keys + d * 64u + tid];
            for (var h = 0u; h < HEADS; h++) {
                dots[h] += queries[h * HEAD_DIM + d] * key;
            }
        }
        // Beyond what a token sees there is garbage: nothing is computed with it.
        let here = page * 64u + tid;
        for (var h = 0u; h < HEADS; h++) {
            let at = position + min(h / GROUP, length - 1u);
            scores[h * 64u + tid] = select(NEVER, dots[h], here <= at && here >= first_seen(at));
        }
        workgroupBarrier();
        if tid < HEADS {
            var top = largest;
            for (var i = 0u; i < 64u; i++) {
                top = max(top, scores[tid * 64u + i]);
            }
            // Where nothing was seen so far the factor is not used: everything it is for is 0.
            factors[tid] = select(0.0, exp(largest - top), weight > 0.0);
            tops[tid] = top;
            largest = top;
        }
        workgroupBarrier();
        for (var h = 0u; h < HEADS; h++) {
            let score = scores[h * 64u + tid];
            scores[h * 64u + tid] = select(0.0, exp(score - tops[h]), score > NEVER);
        }
        workgroupBarrier();
        if tid < HEADS {
            weight *= factors[tid];
            for (var i = 0u; i < 64u; i++) {
                weight += scores[tid * 64u + i];
            }
        }
        if tid < HEAD_DIM {
            for (var h = 0u; h < HEADS; h++) {
                mixed[h] *= factors[h];
            }
            // Only places that some of the tokens see: the others may hold anything, and 0 times that is no number.
            let begin = max(first_seen(position), page * 64u) - page * 64u;
            let end = min(position + length - page * 64u, 64u);
            for (var place = begin; place < end; place++) {
                let value = kv[keys + 64u * HEAD_DIM + place * HEAD_DIM + tid];
                for (var h = 0u; h < HEADS; h++) {
                    mixed[h] += scores[h * 64u + place] * value;
                }
            }
        }
        workgroupBarrier();
    }
    for (var h = 0u; h < GROUP * length; h++) {
        let to = ((token + h / GROUP) * a.heads + kv_head * GROUP + h % GROUP) * a.parts + part;
        if tid < HEAD_DIM {
            values[to * HEAD_DIM + tid] = mixed[h];
        }
        if tid == h {
            sums[2u * to] = largest;
            sums[2u * to + 1u] = weight;
        }
    }
}
