//! Status: making one, showing one, numbers of the ABI to codes and back.

use std::fmt;

use crate::{Status, StatusCode};

impl StatusCode {
    pub const ALL: [StatusCode; 10] = [
        StatusCode::Ok,
        StatusCode::OomVram,
        StatusCode::OomRam,
        StatusCode::ModelCorrupt,
        StatusCode::Timeout,
        StatusCode::Cancelled,
        StatusCode::Unsupported,
        StatusCode::Internal,
        StatusCode::AbiMismatch,
        StatusCode::LoadFailed,
    ];

    /// The header's name without its prefix, as logs and documents spell it.
    pub fn name(self) -> &'static str {
        match self {
            StatusCode::Ok => "OK",
            StatusCode::OomVram => "OOM_VRAM",
            StatusCode::OomRam => "OOM_RAM",
            StatusCode::ModelCorrupt => "MODEL_CORRUPT",
            StatusCode::Timeout => "TIMEOUT",
            StatusCode::Cancelled => "CANCELLED",
            StatusCode::Unsupported => "UNSUPPORTED",
            StatusCode::Internal => "INTERNAL",
            StatusCode::AbiMismatch => "ABI_MISMATCH",
            StatusCode::LoadFailed => "LOAD_FAILED",
        }
    }

    /// The code with this number in the ABI, `None` for a number that has no meaning.
    pub fn from_number(number: i32) -> Option<StatusCode> {
        usize::try_from(number).ok().and_then(|n| Self::ALL.get(n)).copied()
    }
}

impl fmt::Display for StatusCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Status {
    /// A status without numbers.
    pub fn new(code: StatusCode, reason: impl Into<String>, message: impl Into<String>) -> Status {
        Status { code, reason: reason.into(), message: message.into(), needed: 0, available: 0, param: None }
    }

    /// The same with the two numbers that explain it.
    pub fn with_numbers(self, needed: u64, available: u64) -> Status {
        Status { needed, available, ..self }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): {}", self.code, self.reason, self.message)?;
        if self.needed != 0 || self.available != 0 {
            write!(f, " (needed {}, available {})", self.needed, self.available)?;
        }
        Ok(())
    }
}

impl std::error::Error for Status {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_codes_agree() {
        for (number, code) in (0..).zip(StatusCode::ALL) {
            assert_eq!(code as i32, number);
            assert_eq!(StatusCode::from_number(number), Some(code));
        }
        assert_eq!(StatusCode::from_number(10), None);
        assert_eq!(StatusCode::from_number(-1), None);
    }

    #[test]
    fn numbers_are_shown_only_where_there_are_some() {
        let status = Status::new(StatusCode::Unsupported, "kv_full", "no room");
        assert_eq!(status.to_string(), "UNSUPPORTED (kv_full): no room");
        assert_eq!(
            status.with_numbers(7, 3).to_string(),
            "UNSUPPORTED (kv_full): no room (needed 7, available 3)"
        );
    }
}
