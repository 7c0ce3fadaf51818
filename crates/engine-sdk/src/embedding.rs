//! Makes an embedding a direction: its length becomes 1, so that callers compare them by their product alone.

use crate::{Status, reason};

/// # Errors
/// `INTERNAL` `embedding_not_finite` for one without a direction: a number that is none, or zeros alone.
pub(crate) fn normalize(numbers: &mut [f32]) -> Result<(), Status> {
    // In f64 no square of an f32 is too large or too small.
    let length = numbers.iter().map(|n| f64::from(*n) * f64::from(*n)).sum::<f64>().sqrt();
    if !(length.is_finite() && length > 0.0) {
        let message = format!("the model gave an embedding of length {length}, which has no direction");
        return Err(Status::internal(reason::EMBEDDING_NOT_FINITE, message));
    }
    numbers.iter_mut().for_each(|n| *n = (f64::from(*n) / length) as f32);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_length_becomes_one_and_the_direction_stays() {
        for scale in [1e-30_f32, 1.0, 1e30] {
            let mut numbers = [3.0 * scale, 0.0, -4.0 * scale];
            normalize(&mut numbers).unwrap();
            assert_eq!(numbers.map(|n| (n * 1e6).round()), [6e5, 0.0, -8e5], "{scale}");
        }
    }

    #[test]
    fn what_has_no_direction_is_refused() {
        for mut numbers in [vec![0.0; 3], vec![1.0, f32::NAN], vec![f32::INFINITY, 1.0], vec![]] {
            let status = normalize(&mut numbers).unwrap_err();
            assert_eq!(status.reason, reason::EMBEDDING_NOT_FINITE, "{numbers:?}");
        }
    }
}
