//! The numbers of Vulkan's adapters, `vulkan:0` and so on: the same as the node's, which sees cards and no Vulkan.
//!
//! On Linux the node numbers the cards under `/sys/class/drm` that are not NVIDIA's, by the number of the card
//! (`crates/node/src/devices/linux.rs`). Vulkan lists its adapters in an order of its own and leaves out cards without a
//! driver for it. What both know is where a card is on the PCI bus. For engines that speak to Vulkan.

use std::fs;
use std::path::Path;

/// Those are `cuda` to the node.
const NVIDIA: &str = "0x10de";
/// Cards looked at, at most.
const CARDS_MAX: usize = 64;

/// The PCI addresses of the cards that the node numbers, in its order: `0000:65:00.0`. `root` is `/` but in tests.
pub fn cards(root: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(root.join("sys/class/drm")) else { return Vec::new() };
    let mut cards: Vec<(u32, String)> = entries
        .filter_map(Result::ok)
        .filter_map(|entry| {
            let number = entry.file_name().to_str()?.strip_prefix("card")?.parse().ok()?;
            let device = entry.path().join("device");
            let vendor = fs::read_to_string(device.join("vendor")).ok()?;
            let address = fs::canonicalize(&device).ok()?.file_name()?.to_str()?.to_owned();
            (vendor.trim() != NVIDIA).then_some((number, address))
        })
        .take(CARDS_MAX)
        .collect();
    cards.sort();
    cards.into_iter().map(|(_, address)| address).collect()
}

/// The number of each adapter, by its PCI address, which may be empty. Adapters that the node does not number, NVIDIA's and
/// those in software, come behind all cards, in their order.
pub fn of(cards: &[String], adapters: &[&str]) -> Vec<usize> {
    let mut taken = vec![false; cards.len()];
    let mut behind = cards.len()..;
    let number = |address: &&str| match cards.iter().position(|card| card == address) {
        Some(card) if !taken[card] => {
            taken[card] = true;
            card
        }
        // A second driver shows the card again.
        _ => behind.next().expect("there is always a next number"),
    };
    adapters.iter().map(number).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adapters_have_the_numbers_of_their_cards_whatever_their_order() {
        let cards = ["0000:03:00.0", "0000:0a:00.0", "0000:65:00.0"].map(str::to_owned);
        // The second card has no driver for Vulkan, the first has two, and then there are NVIDIA's and one in software.
        let adapters = ["0000:65:00.0", "0000:03:00.0", "0000:03:00.0", "0000:c1:00.0", ""];
        assert_eq!(of(&cards, &adapters), [2, 0, 3, 4, 5]);
        assert_eq!(of(&[], &["0000:c1:00.0", ""]), [0, 1]);
    }

    /// The same folder as in the node's test of its own numbers: a display controller, AMD's, NVIDIA's, and no card.
    #[cfg(unix)]
    #[test]
    fn cards_are_those_that_the_node_numbers_in_its_order() {
        let root = tempfile::tempdir().expect("a folder");
        let drm = root.path().join("sys/class/drm");
        let cards_of = [
            ("card10", "0000:0a:00.0", "0x1002\n"),
            ("card2", "0000:c1:00.0", "0x10de\n"),
            ("card1", "0000:65:00.0", "0x8086\n"),
        ];
        for (name, address, vendor) in cards_of {
            let device = root.path().join("sys/devices").join(address);
            fs::create_dir_all(&device).expect("a device");
            fs::write(device.join("vendor"), vendor).expect("its vendor");
            fs::create_dir_all(drm.join(name)).expect("a card");
            std::os::unix::fs::symlink(&device, drm.join(name).join("device")).expect("its device");
        }
        fs::create_dir_all(drm.join("card1-DP-1")).expect("a connector");
        assert_eq!(cards(root.path()), ["0000:65:00.0", "0000:0a:00.0"]);
    }
}
