// Chooses the token of each row, from what is known of its parts, and undoes the changes.

@group(0) @binding(0) var<storage, read_write> logits: array<u32>;
@group(0) @binding(3) var<storage, read> requests: array<u32>;
// Of each row: status, token, its logit as the model gave it, the highest of those and the sum of weights beside it, high
// word first; then number and logit of the most likely ones.
@group(0) @binding(4) var<storage, read_write> answers: array<u32>;

const DONE = 0u;
const NOT_FINITE = 1u;
const NONE_POSSIBLE = 2u;
// Nearer to the border between two tokens than sums are exact.
const UNDECIDED = 3u;

var<workgroup> bad: atomic<u32>;
var<workgroup> sums: array<vec2<u32>, THREADS>;
// Where the drawn number lies, the part it falls into, and the weights before that.
var<workgroup> target_sum: vec2<u32>;
var<workgroup> before_part: vec2<u32>;
var<workgroup> margin: vec2<u32>;
var<workgroup> part: u32;

fn sum_of(row_state: u32, stage: u32, of_part: u32) -> vec2<u32> {
    let at = row_state + stage * STAGE_WORDS + of_part * PART_WORDS + 3u;
    return vec2<u32>(state[at], state[at + 1u]);
}

// A workgroup for each row.
@compute @workgroup_size(256)
fn sample_pick(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) tid: u32) {
    let row = group.x * ROW_WORDS;
    let row_state = group.x * STATE_WORDS;
    let row_logits = group.x * a.vocabulary;
    let answer = group.x * ANSWER_WORDS;
    let temperature = requests[row + TEMPERATURE];
    if tid == 0u {
        atomicStore(&bad, NOBODY);
    }
    workgroupBarrier();
    var key = 0u;
    var token = NOBODY;
    if tid < PARTS {
        let at = row_state + STAGE_WORDS + tid * PART_WORDS;
        key = state[at];
        token = state[at + 1u];
        atomicMin(&bad, state[at + 2u]);
        if a.has_raw != 0u {
            atomicMin(&bad, state[row_state + tid * PART_WORDS + 2u]);
        }
    }
    find_best(tid, key, token);
    let top = bits_of(keys[0]);
    token = tokens[0];
    var status = select(DONE, NONE_POSSIBLE, token == NOBODY);

    if temperature != 0u {
        if tid == 0u {
            var all = vec2<u32>(0u, 0u);
            for (var p = 0u; p < PARTS; p++) {
                all = plus(all, sum_of(row_state, 1u, p));
            }
            let drawn = uniform_of(requests[row + SEED], requests[row + SEED + 1u], requests[row + POSITION]);
            target_sum = product_high(drawn, all);
            // Of each weight half a step, and what the SDK loses in sums of f64.
            margin = plus(vec2<u32>(0u, requests[row + MARGIN]), vec2<u32>(0u, all.x >> 2u));
            var before = vec2<u32>(0u, 0u);
            var p = 0u;
            for (; p + 1u < PARTS; p++) {
                let behind = plus(before, sum_of(row_state, 1u, p));
                if is_less(target_sum, behind) {
                    break;
                }
                before = behind;
            }
            part = p;
            before_part = before;
        }
        workgroupBarrier();
        // Each thread has a stretch of the part.
        let stretch = (a.part_tokens + THREADS - 1u) / THREADS;
        let part_end = min((part + 1u) * a.part_tokens, a.vocabulary);
        let begin = min(part * a.part_tokens + tid * stretch, part_end);
        let end = min(begin + stretch, part_end);
        var sum = vec2<u32>(0u, 0u);
        for (var i = begin; i < end; i++) {
            if is_known(i) {
                sum = plus(sum, weight_beside(logits[row_logits + i], top, temperature));
            }
        }
        sums[tid] = sum;
        workgroupBarrier();
        if tid == 0u && status == DONE {
            var before = before_part;
            var t = 0u;
            for (; t + 1u < THREADS; t++) {
                let behind = plus(before, sums[t]);
                if is_less(target_sum, behind) {
                    break;
                }
                before = behind;
            }
            status = UNDECIDED;
            for (var i = part * a.part_tokens + t * stretch; i < part_end; i++) {
                var weight = vec2<u32>(0u, 0u);
                if is_known(i) {
                    weight = weight_beside(logits[row_logits + i], top, temperature);
                }
                let behind = plus(before, weight);
                if is_less(target_sum, behind) {
                    token = i;
                    // As far inside as is sure.
                    if is_less(plus(before, margin), target_sum) && is_less(plus(target_sum, margin), behind) {
                        status = DONE;
                    }
                    break;
                }
                before = behind;
            }
        }
    }

    var last = NOBODY;
    var last_token = 0u;
    let wanted = requests[row + WANTED];
    for (var n = 0u; n + 1u < wanted; n++) {
        var best = 0u;
        var best_token = NOBODY;
        for (var i = tid; i < PARTS * (wanted - 1u); i += THREADS) {
            let entry = i / (wanted - 1u) * MOST_LIKELY_MAX + i % (wanted - 1u);
            let at = row_state + 2u * STAGE_WORDS + 2u * entry;
            let other = state[at];
            let key = key_of(state[at + 1u]);
            let is_behind = key < last || (key == last && other > last_token);
            if other != NOBODY && is_behind && (key > best || (key == best && other < best_token)) {
                best = key;
                best_token = other;
            }
        }
        find_best(tid, best, best_token);
        last = keys[0];
        last_token = tokens[0];
        if tid == 0u {
            answers[answer + 6u + 2u * n] = last_token;
            answers[answer + 7u + 2u * n] = bits_of(last);
        }
    }

    let first = a.rows * ROW_WORDS + requests[row + CHANGE_FIRST] * CHANGE_WORDS;
    for (var i = tid; i < requests[row + CHANGES]; i += THREADS) {
        let change = first + i * CHANGE_WORDS;
        logits[row_logits + requests[change]] = requests[change + 6u];
    }
    storageBarrier();
    if tid == 0u {
        let no_number = atomicLoad(&bad);
        if no_number != NOBODY {
            status = NOT_FINITE;
            token = no_number;
        }
        answers[answer] = status;
        answers[answer + 1u] = token;
        if token != NOBODY {
            answers[answer + 2u] = logits[row_logits + token];
        }
        if wanted != 0u {
            var highest = 0u;
            var all = vec2<u32>(0u, 0u);
            for (var p = 0u; p < PARTS; p++) {
                highest = max(highest, state[row_state + p * PART_WORDS]);
                all = plus(all, sum_of(row_state, 0u, p));
            }
            answers[answer + 3u] = bits_of(highest);
            answers[answer + 4u] = all.x;
            answers[answer + 5u] = all.y;
        }
    }
}
