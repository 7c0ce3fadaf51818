//! One matrix times some tokens by itself: a benchmark measures here what the model runs.

use crate::kernel::{Activations, Isa, Order, Rows};
use crate::linear::{Affine, Compute, Inputs, linear};
use crate::pool::Pool;

/// `out`, (tokens, rows), = `tokens`, (tokens, columns), times the matrix. Activations are brought into the form that the
/// kernels take first, which the model does once for several matrices.
///
/// # Panics
/// When the lengths do not fit the matrix, or the processor lacks `isa`.
pub fn product(
    pool: &Pool,
    isa: Isa,
    activations: Activations,
    weights: Rows<'_>,
    tokens: &[f32],
    out: &mut [f32],
) {
    let order = Order::Fastest;
    let compute = Compute { pool, isa, order, activations: activations.with(isa, order) };
    assert_eq!(tokens.len() / weights.columns() * weights.count(), out.len(), "tokens of another length");
    let eight_bits = !matches!(weights, Rows::Bf16 { .. });
    let tokens = Inputs::new(compute, tokens, weights.columns(), eight_bits);
    linear(compute, &[Affine { weights, bias: None }], &tokens, false, out);
}
