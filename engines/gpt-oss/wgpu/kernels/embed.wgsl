// x (tokens, hidden) = the tokens' rows of the embedding.

struct Arguments {
    hidden: u32,
    // Where tokens begin in the step.
    tokens_at: u32,
    // Words of the binding before the tensor, here and below.
    embedding_base: u32,
}

@group(0) @binding(0) var<storage, read> step: array<u32>;
@group(0) @binding(1) var<storage, read> embedding: array<u32>;
@group(0) @binding(2) var<storage, read_write> x: array<f32>;
var<immediate> a: Arguments;

// A workgroup for each token.
@compute @workgroup_size(64)
fn embed(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) tid: u32) {
    let words = a.hidden / 2u;
    let row = a.embedding_base + step[a.tokens_at + group.x] * words;
    for (var i = tid; i < words; i += 64u) {
        let word = embedding[row + i];
        x[group.x * a.hidden + 2u * i] = low(word);
        x[group.x * a.hidden + 2u * i + 1u] = high(word);
    }
}
