//! Who can write to an engine's folder: its code runs with the rights of the service, so nobody else may.

use std::path::Path;

/// Why the folder, a file in it or a folder above it is not trusted; `None`: it is. `dir` is the directory of engines that
/// the folder was found in, the last one that is looked at.
#[cfg(unix)]
pub fn distrust(dir: &Path, folder: &Path) -> Option<String> {
    let (dir, folder) = match (std::fs::canonicalize(dir), std::fs::canonicalize(folder)) {
        (Ok(dir), Ok(folder)) => (dir, folder),
        (Err(error), _) | (_, Err(error)) => {
            return Some(format!("{} cannot be looked at: {error}", folder.display()));
        }
    };
    // A folder that is linked from elsewhere has its own parents. Where those end at the root, a folder in which
    // everybody may make files and nobody may touch another's (`/tmp`) harms nothing.
    let linked = !folder.starts_with(&dir);
    for above in folder.ancestors().skip(1) {
        if let Some(reason) = unix::distrust(above, linked) {
            return Some(reason);
        }
        if !linked && above == dir {
            break;
        }
    }
    if let Some(reason) = unix::distrust(&folder, false) {
        return Some(reason);
    }
    match std::fs::read_dir(&folder) {
        Ok(entries) => entries
            .take(super::copy::FILES_MAX + 1)
            .filter_map(Result::ok)
            .find_map(|entry| unix::distrust(&entry.path(), false)),
        Err(error) => Some(format!("{} cannot be listed: {error}", folder.display())),
    }
}

/// On Windows the folder's access list decides, and no well-kept safe library reads one. The places engines are installed
/// to (`Program Files`, a user's `AppData`) let nobody else write; a folder elsewhere is for the operator to guard, as
/// docs/operations.md says. What is checked on every system: the library is copied, hashed and opened from the copy.
#[cfg(windows)]
pub fn distrust(_dir: &Path, folder: &Path) -> Option<String> {
    match std::fs::metadata(folder) {
        Ok(about) if about.is_dir() => None,
        Ok(_) => Some(format!("{} is no folder", folder.display())),
        Err(error) => Some(format!("{} cannot be looked at: {error}", folder.display())),
    }
}

#[cfg(unix)]
mod unix {
    use std::os::unix::fs::MetadataExt as _;
    use std::path::Path;

    const OTHERS_WRITE: u32 = 0o002;
    const GROUP_WRITE: u32 = 0o020;
    const STICKY: u32 = 0o1000;

    pub fn distrust(path: &Path, sticky_is_fine: bool) -> Option<String> {
        let about = match std::fs::metadata(path) {
            Ok(about) => about,
            Err(error) => return Some(format!("{} cannot be looked at: {error}", path.display())),
        };
        let us = rustix::process::geteuid().as_raw();
        judge(about.uid(), about.gid(), about.mode(), us, sticky_is_fine).map(|why| {
            format!(
                "{} {why}; whoever can write there decides what this service runs: `chown` it to the service's \
                 user or root and `chmod go-w` it",
                path.display()
            )
        })
    }

    /// Owner, group and mode against the service's user.
    pub fn judge(owner: u32, group: u32, mode: u32, us: u32, sticky_is_fine: bool) -> Option<String> {
        if owner != 0 && owner != us {
            return Some(format!("belongs to user {owner}"));
        }
        if sticky_is_fine && mode & STICKY != 0 {
            return None;
        }
        if mode & OTHERS_WRITE != 0 {
            return Some("can be written to by everybody".to_owned());
        }
        (mode & GROUP_WRITE != 0 && group != 0).then(|| format!("can be written to by group {group}"))
    }
}

#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::unix::judge;
    use super::*;

    #[test]
    fn only_the_service_and_root_may_write() {
        let cases: &[(u32, u32, u32, bool, Option<&str>)] = &[
            (1000, 1000, 0o755, false, None),
            (0, 0, 0o755, false, None),
            // The group of administrators.
            (0, 0, 0o775, false, None),
            (1000, 100, 0o775, false, Some("group 100")),
            (1000, 1000, 0o757, false, Some("everybody")),
            (1001, 1001, 0o755, false, Some("user 1001")),
            (0, 0, 0o1777, false, Some("everybody")),
            (0, 0, 0o1777, true, None),
            (1001, 0, 0o1777, true, Some("user 1001")),
        ];
        for &(owner, group, mode, sticky, expected) in cases {
            let found = judge(owner, group, mode, 1000, sticky);
            match expected {
                None => assert_eq!(found, None, "{owner} {group} {mode:o}"),
                Some(part) => assert!(found.unwrap().contains(part), "{owner} {group} {mode:o}"),
            }
        }
    }

    fn engines() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("a")).unwrap();
        fs::write(dir.path().join("a/library"), "x").unwrap();
        for path in ["", "a", "a/library"] {
            fs::set_permissions(dir.path().join(path), Permissions::from_mode(0o755)).unwrap();
        }
        dir
    }

    #[test]
    fn folder_library_and_directory_are_looked_at_each() {
        let dir = engines();
        let folder = dir.path().join("a");
        assert_eq!(distrust(dir.path(), &folder), None);
        for path in ["", "a", "a/library"] {
            let path = dir.path().join(path);
            fs::set_permissions(&path, Permissions::from_mode(0o757)).unwrap();
            let reason = distrust(dir.path(), &folder).unwrap();
            assert!(reason.contains(path.to_str().unwrap().trim_end_matches('/')), "{reason}");
            assert!(reason.contains("everybody") && reason.contains("chmod"), "{reason}");
            fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        }
    }

    #[test]
    fn a_linked_folder_is_judged_by_where_it_lies() {
        let (dir, elsewhere) = (engines(), engines());
        let link = dir.path().join("b");
        symlink(elsewhere.path().join("a"), &link).unwrap();
        assert_eq!(distrust(dir.path(), &link), None);
        fs::set_permissions(elsewhere.path(), Permissions::from_mode(0o777)).unwrap();
        assert!(distrust(dir.path(), &link).unwrap().contains("everybody"));
    }
}
