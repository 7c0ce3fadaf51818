//! Weights that Metal reads where their file is mapped, in place of a copy. Type-checked; no Mac has run it.

use crate::device::{DeviceError, Gpu};
use crate::metal;
use crate::model::KeptWeights;
use crate::ops::{Piece, Tensor, Weight};
use crate::pages::Pages;
use crate::plan::Extent;

/// The tensors of one weight, one behind the other, where they lie. None where that cannot be: they are uploaded then.
pub(super) fn wrap(
    gpu: &mut Gpu,
    weights: &KeptWeights,
    what: &'static str,
    extent: &Extent,
    tensors: &[String],
) -> Result<Option<Weight>, DeviceError> {
    let mut pieces: Vec<Piece> = Vec::new();
    let mut first = 0;
    for tensor in tensors {
        // Experts that lie apart would be a piece, and a launch, each.
        let [bytes] = weights.parts(tensor)[..] else { return Ok(None) };
        let rows = bytes.len() as u64 / extent.row_bytes;
        let Some(pages) =
            Pages::of(bytes.as_ptr() as usize, bytes.len(), metal::PAGE_BYTES, gpu.buffer_max())
        else {
            return Ok(None);
        };
        // SAFETY: the gpu keeps the weights, whose bytes nobody writes to, until all its work is done.
        let memory = unsafe { gpu.wrap(what, pages, bytes.len() as u64, weights) }?;
        let Some(memory) = memory else { return Ok(None) };
        let rows = first..first + rows as usize;
        first = rows.end;
        pieces.push(Piece { rows, memory, tensor: Tensor::at(memory, pages.offset as u64) });
    }
    Ok(Some(Weight { pieces, in_place: true }))
}
