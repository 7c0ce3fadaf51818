//! Decides whether a file name that came with a repository may become a path on this machine.

/// Longest name, in bytes. Windows allows 260 UTF-16 units for a whole path.
pub const FILE_NAME_BYTES_MAX: usize = 200;
/// Folders in a name at most.
pub const FILE_NAME_DEPTH_MAX: usize = 8;

/// Why a name is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FileNameError {
    #[error("a file name is empty")]
    Empty,
    #[error("file name {name:?} is longer than {FILE_NAME_BYTES_MAX} bytes")]
    TooLong { name: String },
    #[error("file name {name:?} has more than {FILE_NAME_DEPTH_MAX} folders")]
    TooDeep { name: String },
    #[error("file name {name:?} is not relative, or has an empty, `.` or `..` part")]
    NotRelative { name: String },
    #[error("file name {name:?} contains {character:?}, which not every system allows")]
    Character { name: String, character: char },
    #[error("file name {name:?} has a part that ends in a dot or a space")]
    Ending { name: String },
    #[error("file name {name:?} uses {part:?}, a device name on Windows")]
    Reserved { name: String, part: String },
    #[error("file names {first:?} and {second:?} differ only in case")]
    CaseCollision { first: String, second: String },
}

/// Accepts relative, `/`-separated names that mean the same file on every system.
///
/// # Errors
/// Everything else, with the reason.
pub fn check_file_name(name: &str) -> Result<(), FileNameError> {
    if name.is_empty() {
        return Err(FileNameError::Empty);
    }
    if name.len() > FILE_NAME_BYTES_MAX {
        let head: String = name.chars().take(40).collect();
        return Err(FileNameError::TooLong { name: format!("{head}…") });
    }
    let owned = || name.to_owned();
    let refused = |c: &char| c.is_control() || "\\:*?\"<>|".contains(*c);
    if let Some(character) = name.chars().find(refused) {
        return Err(FileNameError::Character { name: owned(), character });
    }
    if name.split('/').count() > FILE_NAME_DEPTH_MAX + 1 {
        return Err(FileNameError::TooDeep { name: owned() });
    }
    for part in name.split('/') {
        if part.is_empty() || part == "." || part == ".." {
            return Err(FileNameError::NotRelative { name: owned() });
        }
        if part.ends_with(['.', ' ']) || part.starts_with(' ') {
            return Err(FileNameError::Ending { name: owned() });
        }
        if is_reserved(part) {
            return Err(FileNameError::Reserved { name: owned(), part: part.to_owned() });
        }
    }
    Ok(())
}

/// [`check_file_name`] for a set that is to lie in one folder: no two may be one file where case does not count.
///
/// # Errors
/// The first name that is refused, or the first pair that collides. The same name twice is no collision.
pub fn check_file_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Result<(), FileNameError> {
    let mut seen = std::collections::HashMap::<String, &str>::new();
    for name in names {
        check_file_name(name)?;
        if let Some(first) = seen.insert(name.to_lowercase(), name)
            && first != name
        {
            return Err(FileNameError::CaseCollision { first: first.to_owned(), second: name.to_owned() });
        }
    }
    Ok(())
}

/// `CON`, `com1.txt`: reserved with any extension and in any case.
fn is_reserved(part: &str) -> bool {
    let stem = part.split('.').next().unwrap_or(part).trim_end().to_ascii_uppercase();
    if matches!(stem.as_str(), "CON" | "PRN" | "AUX" | "NUL" | "CONIN$" | "CONOUT$") {
        return true;
    }
    let Some(digit) = stem.strip_prefix("COM").or_else(|| stem.strip_prefix("LPT")) else { return false };
    matches!(digit, "0" | "1" | "2" | "3" | "4" | "5" | "6" | "7" | "8" | "9" | "¹" | "²" | "³")
}

#[cfg(test)]
mod tests;
