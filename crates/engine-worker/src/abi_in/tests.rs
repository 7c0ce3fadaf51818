//! Structs of other sizes, strange arrays and strange texts.

use super::*;

fn device(struct_size: u32) -> abi::Device {
    let none = abi::Str { data: std::ptr::null(), size: 0 };
    abi::Device {
        struct_size,
        reserved: 0,
        id: none,
        kind: none,
        name: none,
        memory_total: 7,
        memory_free: 9,
    }
}

#[test]
fn a_field_the_writer_does_not_know_is_zero() {
    let without_last = device((size_of::<abi::Device>() - size_of::<u64>()) as u32);
    // SAFETY: a struct of our own.
    let read = unsafe { read_sized(&raw const without_last) }.expect("not null");
    assert_eq!((read.memory_total, read.memory_free), (7, 0));
}

#[test]
fn a_larger_struct_of_a_later_version_is_cut() {
    #[repr(C)]
    struct Later {
        device: abi::Device,
        more: [u64; 2],
    }
    let items = [1u64, 2].map(|n| Later {
        device: abi::Device { memory_total: n, ..device(size_of::<Later>() as u32) },
        more: [u64::MAX; 2],
    });
    // SAFETY: an array of our own with the stride given.
    let read =
        unsafe { read_items::<abi::Device>(items.as_ptr().cast(), 2, size_of::<Later>() as u64, "devices") };
    let read = read.expect("two devices");
    assert_eq!(read.iter().map(|d| d.memory_total).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn arrays_that_cannot_be_are_refused() {
    let one = device(size_of::<abi::Device>() as u32);
    let size = size_of::<abi::Device>() as u64;
    for (items, count, element_size, word) in [
        (std::ptr::null(), 1, size, "null"),
        (&raw const one, 1, 0, "element_size"),
        (&raw const one, 1, 1 << 40, "element_size"),
        (&raw const one, u32::MAX, size, "limit"),
    ] {
        // SAFETY: refused before anything is read.
        let error = unsafe { read_items(items, count, element_size, "devices") }.expect_err(word);
        assert!(error.message.contains(word) && error.message.contains("devices"), "{error}");
    }
}

#[test]
fn text_that_is_not_utf8_is_shown_all_the_same() {
    let bytes = b"a\xffb";
    // SAFETY: three bytes of our own.
    let text = unsafe { read_text(abi::Str { data: bytes.as_ptr().cast(), size: 3 }) };
    assert_eq!(text, "a\u{fffd}b");
}

#[test]
fn a_status_without_words_or_with_a_number_unknown_is_still_a_failure() {
    let status = empty_status();
    assert_eq!(check(abi::OK, &status), Ok(()));
    let error = check(42, &status).expect_err("a failure");
    assert_eq!((error.code, error.reason.as_str()), (StatusCode::Internal, "unspecified"));
    assert!(error.message.contains("42"));
}

#[test]
fn a_status_that_is_not_terminated_is_read_to_its_end() {
    let mut status = empty_status();
    status.message = [b'x' as c_char; abi::MESSAGE_BYTES];
    let error = check(abi::INTERNAL, &status).expect_err("a failure");
    assert_eq!(error.message.len(), abi::MESSAGE_BYTES);
}
