//! Which pages hold a tensor that is read where its file is mapped, and where in them its parts begin.

use std::ops::Range;

/// Bytes of a page: Apple silicon has 16 KiB everywhere, and other processors 4.
pub(crate) const PAGE_BYTES: usize =
    if cfg!(all(target_os = "macos", target_arch = "aarch64")) { 16 << 10 } else { 4 << 10 };
/// Words of the kernels: a tensor that begins at no multiple of this cannot be read in place.
const WORD_BYTES: usize = 4;

/// Whole pages of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pages {
    pub(crate) address: usize,
    pub(crate) bytes: usize,
}

impl Pages {
    /// Those that hold a range of addresses. A mapping ends with a whole page, even where its file does not. None where that is
    /// more than a device's buffer has.
    pub(crate) fn of(range: &Range<usize>, page_bytes: usize, buffer_max: u64) -> Option<Pages> {
        let address = range.start / page_bytes * page_bytes;
        let bytes = range.end.checked_next_multiple_of(page_bytes)? - address;
        (bytes as u64 <= buffer_max).then_some(Pages { address, bytes })
    }

    /// Where a range of addresses begins in these pages, if they hold all of it.
    pub(crate) fn offset(self, range: &Range<usize>) -> Option<usize> {
        let holds = self.address <= range.start && range.end <= self.address + self.bytes;
        holds.then(|| range.start - self.address)
    }
}

/// Parts of a tensor, equally long and equally far apart, by their addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Lying {
    /// From the first byte of the first part to the last of the last one.
    pub(crate) range: Range<usize>,
    /// Bytes of all parts.
    pub(crate) bytes: usize,
    /// From one part to the next; of a single part its own bytes.
    pub(crate) stride: usize,
}

impl Lying {
    /// `parts`: address and bytes of each. None where kernels cannot read them: no whole words, or parts that are not alike.
    pub(crate) fn of(parts: &[(usize, usize)]) -> Option<Lying> {
        let &(start, bytes) = parts.first()?;
        let stride = match parts.get(1) {
            Some((second, _)) => second.checked_sub(start)?,
            None => bytes,
        };
        let is_alike = |(n, part): (usize, &(usize, usize))| {
            stride.checked_mul(n).and_then(|behind| start.checked_add(behind)) == Some(part.0)
                && part.1 == bytes
        };
        let (&(last, _), is_words) = (parts.last()?, start.is_multiple_of(WORD_BYTES));
        let is_spaced = parts.len() == 1 || stride.is_multiple_of(WORD_BYTES) && stride >= bytes;
        let fits = bytes > 0 && is_words && is_spaced && parts.iter().enumerate().all(is_alike);
        let end = last.checked_add(bytes)?;
        fits.then_some(Lying { range: start..end, bytes: bytes * parts.len(), stride })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: usize = 16 << 10;

    #[test]
    fn a_tensor_lies_in_whole_pages_at_its_offset() {
        let base = 7 * PAGE;
        // Where it begins and how long it is; which pages those are, and where it begins in them.
        let cases = [
            (base, PAGE, base, PAGE, 0),
            (base, 1, base, PAGE, 0),
            (base + 8, PAGE - 8, base, PAGE, 8),
            (base + 8, PAGE, base, 2 * PAGE, 8),
            (base + PAGE - 4, 4, base, PAGE, PAGE - 4),
            (base + PAGE - 4, 8, base, 2 * PAGE, PAGE - 4),
            (base + 300, 10 * PAGE, base, 11 * PAGE, 300),
        ];
        for (start, bytes, address, length, offset) in cases {
            let range = start..start + bytes;
            let pages = Pages::of(&range, PAGE, u64::MAX).expect("any buffer has room");
            assert_eq!(pages, Pages { address, bytes: length }, "{range:?}");
            assert_eq!(pages.offset(&range), Some(offset), "{range:?}");
        }
    }

    #[test]
    fn pages_hold_what_lies_in_them_alone() {
        let pages = Pages { address: PAGE, bytes: 2 * PAGE };
        assert_eq!(pages.offset(&(2 * PAGE..3 * PAGE)), Some(PAGE));
        assert_eq!(pages.offset(&(2 * PAGE..3 * PAGE + 1)), None);
        assert_eq!(pages.offset(&(PAGE - 1..PAGE + 1)), None);
    }

    #[test]
    fn what_a_buffer_has_no_room_for_is_none() {
        let range = PAGE + 8..2 * PAGE + 8;
        assert_eq!(Pages::of(&range, PAGE, 2 * PAGE as u64 - 1), None);
        assert!(Pages::of(&range, PAGE, 2 * PAGE as u64).is_some());
        assert_eq!(Pages::of(&(usize::MAX - 8..usize::MAX), PAGE, u64::MAX), None);
    }

    /// Matrices of the experts of a `model.bin`: up and down of one, then those of the next.
    #[test]
    fn parts_that_lie_apart_are_one_range_with_a_stride() {
        let of = |first: usize, bytes: usize| (0..3).map(|n| (first + n * 5_000, bytes)).collect::<Vec<_>>();
        let (up, down) = (Lying::of(&of(PAGE + 16, 2_048)), Lying::of(&of(PAGE + 2_320, 1_024)));
        let (up, down) = (up.expect("they are alike"), down.expect("they are alike"));
        assert_eq!((up.range.clone(), up.bytes, up.stride), (PAGE + 16..PAGE + 12_064, 3 * 2_048, 5_000));
        assert_eq!(
            (down.range.clone(), down.bytes, down.stride),
            (PAGE + 2_320..PAGE + 13_344, 3 * 1_024, 5_000)
        );
        // One buffer holds both.
        let both = up.range.start..down.range.end;
        let pages = Pages::of(&both, PAGE, u64::MAX).expect("any buffer has room");
        assert_eq!((pages.offset(&up.range), pages.offset(&down.range)), (Some(16), Some(2_320)));
    }

    #[test]
    fn what_kernels_cannot_read_in_place_is_none() {
        assert_eq!(Lying::of(&[]), None);
        assert_eq!(Lying::of(&[(PAGE, 0)]), None);
        assert_eq!(Lying::of(&[(PAGE + 2, 64)]), None, "no whole words");
        assert_eq!(Lying::of(&[(PAGE, 64), (PAGE + 102, 64)]), None, "no whole words between them");
        assert_eq!(Lying::of(&[(PAGE, 64), (PAGE + 32, 64)]), None, "one in the other");
        assert_eq!(Lying::of(&[(PAGE, 64), (PAGE + 128, 60)]), None, "of two lengths");
        assert_eq!(Lying::of(&[(PAGE, 64), (PAGE + 128, 64), (PAGE + 320, 64)]), None, "of two distances");
        assert_eq!(Lying::of(&[(PAGE + 128, 64), (PAGE, 64)]), None, "from behind");
        assert_eq!(Lying::of(&[(usize::MAX - 3, 8)]), None);
        assert_eq!(Lying::of(&[(PAGE, 6)]).map(|l| l.stride), Some(6), "a single part may end anywhere");
    }
}
