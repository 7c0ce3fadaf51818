//! Who this node is, and which machine it is on.

use std::path::Path;

use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::NodeError;

const ID_FILE: &str = "node-id";

/// The node's id, kept in its data folder; made at the first start.
pub(crate) fn node_id(data_dir: &Path) -> Result<String, NodeError> {
    let path = data_dir.join(ID_FILE);
    let io = |what, source| NodeError::Io { what, path: path.clone(), source };
    match std::fs::read_to_string(&path) {
        Ok(text) => {
            let id = Uuid::parse_str(text.trim()).map_err(|_| NodeError::Identity { path: path.clone() })?;
            return Ok(id.to_string());
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
        Err(source) => return Err(io("read", source)),
    }
    std::fs::create_dir_all(data_dir).map_err(|source| io("make the folder of", source))?;
    let id = Uuid::now_v7().to_string();
    // Written beside and renamed: a crash leaves no half of an id.
    let part = data_dir.join(format!("{ID_FILE}.{}", std::process::id()));
    std::fs::write(&part, &id).map_err(|source| io("write", source))?;
    std::fs::rename(&part, &path).map_err(|source| io("write", source))?;
    Ok(id)
}

/// Identifies this machine, the same for every process on it: a hash of what the system identifies itself with, so that
/// the identity itself does not leave the machine.
pub fn machine_id() -> String {
    let own = system_id().unwrap_or_else(|| {
        sysinfo::System::host_name().unwrap_or_else(|_| "a machine without a name".to_owned())
    });
    let digest = Sha256::digest(format!("llm-router machine {own}"));
    digest.iter().take(16).map(|b| format!("{b:02x}")).collect()
}

#[cfg(target_os = "linux")]
fn system_id() -> Option<String> {
    // The last one changes at each boot, for all processes together: enough where an image has no identity.
    ["/etc/machine-id", "/var/lib/dbus/machine-id", "/proc/sys/kernel/random/boot_id"].iter().find_map(
        |path| {
            let text = std::fs::read_to_string(path).ok()?;
            let text = text.trim();
            (!text.is_empty() && text != "uninitialized").then(|| text.to_owned())
        },
    )
}

#[cfg(target_os = "macos")]
fn system_id() -> Option<String> {
    let out =
        std::process::Command::new("/usr/sbin/ioreg").args(["-rd1", "-c", "IOPlatformExpertDevice"]).output();
    let text = String::from_utf8(out.ok()?.stdout).ok()?;
    // `"IOPlatformUUID" = "0F3C…"`
    let line = text.lines().find(|line| line.contains("\"IOPlatformUUID\""))?;
    line.split('"').nth(3).map(str::to_owned)
}

#[cfg(windows)]
fn system_id() -> Option<String> {
    let key = windows_registry::LOCAL_MACHINE.open("SOFTWARE\\Microsoft\\Cryptography").ok()?;
    key.get_string("MachineGuid").ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_kept_and_a_spoiled_one_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data");
        let id = node_id(&data).unwrap();
        assert_eq!(node_id(&data).unwrap(), id);
        std::fs::write(data.join(ID_FILE), "what").unwrap();
        assert!(matches!(node_id(&data), Err(NodeError::Identity { .. })));
    }

    #[test]
    fn the_machine_is_the_same_twice_and_does_not_show_its_identity() {
        assert_eq!(machine_id(), machine_id());
        assert_eq!(machine_id().len(), 32);
        assert!(system_id().is_none_or(|own| !own.contains(&machine_id())));
    }
}
