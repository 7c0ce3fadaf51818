//! Which pages hold a tensor that is read where its file is mapped, and where in them it begins.

/// Words of the kernels: a tensor that begins at no multiple of this cannot be read in place.
const WORD_BYTES: usize = 4;

/// Whole pages of memory. Bindings begin at the multiple of 256 before `offset`, and kernels are told the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pages {
    pub(crate) address: usize,
    pub(crate) bytes: usize,
    /// Where the tensor begins in them.
    pub(crate) offset: usize,
}

impl Pages {
    /// Those that hold `bytes` bytes at an address. A mapping ends with a whole page, even where its file does not. None where
    /// kernels cannot read them: no whole words, or more than a device's buffer has.
    pub(crate) fn of(address: usize, bytes: usize, page_bytes: usize, buffer_max: u64) -> Option<Pages> {
        if bytes == 0 || !address.is_multiple_of(WORD_BYTES) {
            return None;
        }
        let begin = address / page_bytes * page_bytes;
        let end = address.checked_add(bytes)?.checked_next_multiple_of(page_bytes)?;
        let pages = Pages { address: begin, bytes: end - begin, offset: address - begin };
        (pages.bytes as u64 <= buffer_max).then_some(pages)
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
        for (address, bytes, begin, length, offset) in cases {
            let pages = Pages::of(address, bytes, PAGE, u64::MAX).expect("it can be read in place");
            assert_eq!(pages, Pages { address: begin, bytes: length, offset }, "{address} {bytes}");
            assert!(pages.offset + bytes <= pages.bytes);
        }
    }

    #[test]
    fn what_kernels_cannot_read_in_place_is_none() {
        assert_eq!(Pages::of(PAGE + 2, 64, PAGE, u64::MAX), None);
        assert_eq!(Pages::of(PAGE, 0, PAGE, u64::MAX), None);
        assert_eq!(Pages::of(PAGE + 8, PAGE, PAGE, 2 * PAGE as u64 - 1), None);
        assert!(Pages::of(PAGE + 8, PAGE, PAGE, 2 * PAGE as u64).is_some());
        assert_eq!(Pages::of(usize::MAX - 3, 8, PAGE, u64::MAX), None);
    }
}
