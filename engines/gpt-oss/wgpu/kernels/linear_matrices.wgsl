// linear_tile for adapters with cooperative matrices, which matrices.wgsl multiplies.

struct Arguments {
    rows: u32,
    columns: u32,
    tokens: u32,
    add: u32,
    has_bias: u32,
    weight_base: u32,
    bias_base: u32,
    stride: u32,
    first: u32,
    out_rows: u32,
}

@group(0) @binding(0) var<storage, read> weight: array<u32>;
@group(0) @binding(1) var<storage, read> bias: array<u32>;
@group(0) @binding(2) var<storage, read> t: array<f32>;
@group(0) @binding(3) var<storage, read_write> out: array<f32>;
var<immediate> a: Arguments;

// The first row and token.
struct Tile {
    row: u32,
    token: u32,
}

fn put(tile: Tile, tid: u32, k: u32) {
    for (var i = tid; i < 1024u; i += THREADS) {
        let r = i / 16u;
        let c = i % 16u;
        let word = weight[a.weight_base + min(tile.row + r, a.rows - 1u) * (a.columns / 2u) + k / 2u + c];
        weights[r * STRIDE + 2u * c] = narrow(low(word));
        weights[r * STRIDE + 2u * c + 1u] = narrow(high(word));
    }
    for (var i = tid; i < 1024u; i += THREADS) {
        let m = i / 32u;
        let c = i % 32u;
        put_input(m * STRIDE + c, t[min(tile.token + m, a.tokens - 1u) * a.columns + k + c]);
    }
}

// A workgroup for each 64 rows (x) and 32 tokens (y).
@compute @workgroup_size(THREADS)
fn linear_tile(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(local_invocation_index) tid: u32,
    @builtin(subgroup_id) subgroup: u32
) {
    let tile = Tile(group.x * ROWS, group.y * 32u);
    multiply(tile, tid, subgroup);
    for (var i = tid; i < 32u * ROWS; i += THREADS) {
        let row = tile.row + i % ROWS;
        let token = tile.token + i / ROWS;
        if row < a.rows && token < a.tokens {
            let at = token * a.out_rows + a.first + row;
            var sum = results[i];
            if a.has_bias != 0u {
                sum += half_of(bias[a.bias_base + row / 2u], row);
            }
            if a.add != 0u {
                sum += out[at];
            }
            out[at] = sum;
        }
    }
}
