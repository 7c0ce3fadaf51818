// What linear_matrices and experts_matrices share: tiles of 64 rows and 32 tokens, multiplied by subgroups together, for
// adapters with cooperative matrices. Each of the two says which tile it is (Tile), how columns of it get into the workgroup's
// memory (put), and where `results` go. Weights are f16, which holds what bf16 and MXFP4 do down to 2^-14; activations are two f16 each,
// the second of what the first lacks, so that sums in f32 are much the same as without matrices.
//
// SIZE is that of the adapter's square matrices (8 or 16), THREADS eight subgroups; Left, Right and Sum are their types.

const DEPTH = 32u;
// Of a row or token in the workgroup's memory: a multiple of 16 bytes, and neighbours are in different banks.
const STRIDE = 40u;
const ROWS = 64u;
// Matrices of a tile along its tokens, and of each subgroup.
const ACROSS = 32u / SIZE;
const EACH = (ROWS / SIZE) * ACROSS / 8u;

var<workgroup> weights: array<f16, 64 * 40>;
var<workgroup> inputs: array<f16, 32 * 40>;
var<workgroup> rests: array<f16, 32 * 40>;
// (tokens, rows), and behind them what subgroups beyond the eighth make.
var<workgroup> results: array<f32, 32 * 64 + 64 * SIZE>;

// What is beyond the largest number of f16 counts as that.
fn narrow(x: f32) -> f16 { return f16(clamp(x, -65504.0, 65504.0)); }

fn put_input(at: u32, x: f32) {
    // The first eleven bits, not by rounding: compilers take a number that is rounded and widened again for what it was.
    let first = bitcast<f32>(bitcast<u32>(x) & 0xffffe000u);
    inputs[at] = narrow(first);
    rests[at] = narrow(x - first);
}

struct Place {
    // Of this subgroup's strip of weights, of its first token, and of its first matrix of results.
    left: u32,
    right: u32,
    to: u32,
}

fn place(subgroup: u32) -> Place {
    let first = min(subgroup, 7u) * EACH;
    let strip = first / ACROSS * SIZE;
    let token = first % ACROSS * SIZE;
    return Place(strip * STRIDE, token * STRIDE, select(token * ROWS + strip, 32u * ROWS, subgroup > 7u));
}

// Fills `results` with the products of a tile, all columns of it. To be called by all threads of a workgroup.
fn multiply(tile: Tile, tid: u32, subgroup: u32) {
    let here = place(subgroup);
    for (var i = tid; i < 32u * ROWS; i += THREADS) {
        results[i] = 0.0;
    }
    workgroupBarrier();
    // Matrices side by side: four of 8 rows, or one of 16.
    var sum0 = coopLoad<Sum>(&results[here.to % (32u * ROWS)], ROWS);
    var sum1 = sum0;
    var sum2 = sum0;
    var sum3 = sum0;
    for (var k = 0u; k < a.columns; k += DEPTH) {
        put(tile, tid, k);
        workgroupBarrier();
        for (var c = 0u; c < DEPTH; c += SIZE) {
            let left = coopLoadT<Left>(&weights[here.left + c], STRIDE);
            sum0 = coopMultiplyAdd(left, coopLoad<Right>(&inputs[here.right + c], STRIDE), sum0);
            sum0 = coopMultiplyAdd(left, coopLoad<Right>(&rests[here.right + c], STRIDE), sum0);
            if EACH > 1u {
                sum1 = coopMultiplyAdd(left, coopLoad<Right>(&inputs[here.right + SIZE * STRIDE + c], STRIDE), sum1);
                sum1 = coopMultiplyAdd(left, coopLoad<Right>(&rests[here.right + SIZE * STRIDE + c], STRIDE), sum1);
                sum2 = coopMultiplyAdd(left, coopLoad<Right>(&inputs[here.right + 2u * SIZE * STRIDE + c], STRIDE), sum2);
                sum2 = coopMultiplyAdd(left, coopLoad<Right>(&rests[here.right + 2u * SIZE * STRIDE + c], STRIDE), sum2);
                sum3 = coopMultiplyAdd(left, coopLoad<Right>(&inputs[here.right + 3u * SIZE * STRIDE + c], STRIDE), sum3);
                sum3 = coopMultiplyAdd(left, coopLoad<Right>(&rests[here.right + 3u * SIZE * STRIDE + c], STRIDE), sum3);
            }
        }
        workgroupBarrier();
    }
    // All matrices of subgroups beyond the eighth go to one place, where nobody looks.
    let apart = select(SIZE * ROWS, 0u, here.to == 32u * ROWS);
    coopStore(sum0, &results[here.to], ROWS);
    if EACH > 1u {
        coopStore(sum1, &results[here.to + apart], ROWS);
        coopStore(sum2, &results[here.to + 2u * apart], ROWS);
        coopStore(sum3, &results[here.to + 3u * apart], ROWS);
    }
    workgroupBarrier();
}
