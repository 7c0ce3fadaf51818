// x (tokens, hidden) = the tokens' rows of the embedding.

struct Arguments {
    hidden: u32,
    // Where tokens begin in the step.
    tokens_at: u32,
    // Words of the binding before the tensor, here and below.
    embedding_base: u32,
    vocabulary: u32,
    // Rows of the embedding that are bound: the first, and how many.
    first: u32,
    rows: u32,
}

// A token of the step that is not known yet: what the pass before chose with the draw in the other bits.
const CHOSEN = 0x80000000u;

@group(0) @binding(0) var<storage, read> step: array<u32>;
@group(0) @binding(1) var<storage, read> embedding: array<u32>;
@group(0) @binding(2) var<storage, read_write> x: array<f32>;
// See sample_pick.
@group(0) @binding(3) var<storage, read> answers: array<u32>;
var<immediate> a: Arguments;

// A workgroup for each token.
@compute @workgroup_size(64)
fn embed(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) tid: u32) {
    let words = a.hidden / 2u;
    var token = step[a.tokens_at + group.x];
    if (token & CHOSEN) != 0u {
        // Where nothing could be chosen there is no token, and nobody looks at what comes of it.
        token = min(answers[(token & ~CHOSEN) * ANSWER_WORDS + 1u], a.vocabulary - 1u);
    }
    // One before the first of them is beyond the last, too.
    if token - a.first >= a.rows {
        return;
    }
    let row = a.embedding_base + (token - a.first) * words;
    for (var i = tid; i < words; i += 64u) {
        let word = embedding[row + i];
        x[group.x * a.hidden + 2u * i] = low(word);
        x[group.x * a.hidden + 2u * i + 1u] = high(word);
    }
}
