//! Weights that are read where their file is mapped, in place of a copy: on Metal. Type-checked; no Mac has run it. What is bound
//! where, and what kernels are told, is the same in the tests, where a copy of the pages stands in for them.

use std::ops::Range;

use crate::device::{DeviceError, Gpu, Memory};
use crate::model::KeptWeights;
use crate::ops::{Piece, Tensor, Weight};
use crate::pages::{Lying, PAGE_BYTES, Pages};
use crate::plan::Extent;

/// A tensor where it lies.
struct Found<'w> {
    parts: Vec<&'w [u8]>,
    lying: Lying,
    /// It, and whatever lies among its parts: one buffer holds them.
    among: Range<usize>,
}

/// The tensors of one weight, one behind the other, where they lie. None where that cannot be: they are uploaded then. `beside`:
/// tensors whose parts may lie among those.
pub(super) fn in_place(
    gpu: &mut Gpu,
    weights: &KeptWeights,
    what: &'static str,
    extent: &Extent,
    tensors: &[String],
    beside: &[String],
) -> Result<Option<Weight>, DeviceError> {
    let found: Option<Vec<Found<'_>>> = tensors.iter().map(|tensor| find(weights, tensor, beside)).collect();
    let Some(found) = found else { return Ok(None) };
    let mut pieces: Vec<Piece> = Vec::new();
    for Found { parts, lying, among } in found {
        let Some(pages) = Pages::of(&among, PAGE_BYTES, gpu.buffer_max()) else { return Ok(None) };
        let buffer = match gpu.holds(&lying.range, lying.bytes as u64, what)? {
            Some(buffer) => Some(buffer),
            None => made(gpu, what, pages, &lying, weights)?,
        };
        let Some((memory, offset)) = buffer else { return Ok(None) };
        stand_in(gpu, memory, offset, &lying, &parts)?;
        let first = pieces.last().map_or(0, |piece| piece.rows.end);
        let rows = first..first + lying.bytes / extent.row_bytes as usize;
        // Of a tensor in parts each is a row.
        let row_stride = if parts.len() > 1 { lying.stride as u64 } else { extent.row_bytes };
        pieces.push(Piece { rows, memory, tensor: Tensor::at(memory, offset), row_stride });
    }
    Ok(Some(Weight { pieces, in_place: true }))
}

fn find<'w>(weights: &'w KeptWeights, tensor: &str, beside: &[String]) -> Option<Found<'w>> {
    let lying = |tensor: &str| {
        let parts = weights.parts(tensor);
        let places: Vec<_> = parts.iter().map(|part| (part.as_ptr() as usize, part.len())).collect();
        weights.are_of_a_file(tensor).then(|| Lying::of(&places)).flatten().map(|lying| (parts, lying))
    };
    let (parts, own) = lying(tensor)?;
    let mut among = own.range.clone();
    if parts.len() > 1 {
        for (_, other) in beside.iter().filter_map(|tensor| lying(tensor)) {
            among = among.start.min(other.range.start)..among.end.max(other.range.end);
        }
    }
    Some(Found { parts, lying: own, among })
}

/// A new buffer of these pages, and where in it the tensor begins. None where the system refuses.
fn made(
    gpu: &mut Gpu,
    what: &str,
    pages: Pages,
    lying: &Lying,
    weights: &KeptWeights,
) -> Result<Option<(Memory, u64)>, DeviceError> {
    #[cfg(target_os = "macos")]
    // SAFETY: the gpu keeps the weights, whose bytes nobody writes to, until all its work is done.
    return unsafe { gpu.wrap(what, pages, lying, weights) };
    #[cfg(not(target_os = "macos"))]
    let _ = weights;
    #[cfg(not(target_os = "macos"))]
    gpu.stand_in(what, pages, lying).map(Some)
}

/// Where a buffer is no more than like the pages, it gets the bytes of the tensor.
fn stand_in(
    gpu: &mut Gpu,
    memory: Memory,
    offset: u64,
    lying: &Lying,
    parts: &[&[u8]],
) -> Result<(), DeviceError> {
    if cfg!(target_os = "macos") {
        return Ok(());
    }
    for (n, part) in parts.iter().enumerate() {
        gpu.upload(memory, offset + (n * lying.stride) as u64, part)?;
    }
    Ok(())
}
