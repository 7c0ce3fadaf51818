//! A version that can be changed in a built library: tests have the same engine in many versions without building it often.

use std::hint::black_box;

/// What stands before the version in the library's bytes. `engine-testkit` looks for it.
const MARK: &[u8; 33] = b"\0llm-router engine version stamp:";
/// Bytes of a version at most: what a manifest allows.
const VERSION_BYTES: usize = 64;

/// A static of an engine whose version tests change. Engines that are not test subjects say their version themselves.
#[derive(Debug)]
#[repr(C)]
pub struct VersionStamp {
    mark: [u8; MARK.len()],
    /// UTF-8, then NUL to the end.
    version: [u8; VERSION_BYTES],
}

impl VersionStamp {
    /// # Panics
    /// When compiling: a version that is too long.
    pub const fn new(version: &str) -> VersionStamp {
        let text = version.as_bytes();
        assert!(text.len() <= VERSION_BYTES, "a version has 64 bytes at most");
        let mut bytes = [0; VERSION_BYTES];
        let mut at = 0;
        while at < text.len() {
            bytes[at] = text[at];
            at += 1;
        }
        VersionStamp { mark: *MARK, version: bytes }
    }

    /// As it stands in the library now.
    pub fn version(&'static self) -> &'static str {
        // Otherwise the compiler puts the version it knows in the place of the one that is there.
        let stamp = black_box(self);
        debug_assert!(stamp.mark[0] == 0, "the mark begins with NUL");
        let end = stamp.version.iter().position(|b| *b == 0).unwrap_or(VERSION_BYTES);
        std::str::from_utf8(&stamp.version[..end]).unwrap_or("not-utf-8")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_is_what_was_stamped() {
        static STAMP: VersionStamp = VersionStamp::new("1.2.3+build.4");
        assert_eq!(STAMP.version(), "1.2.3+build.4");
    }
}
