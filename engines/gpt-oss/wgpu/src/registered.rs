//! The numbers of adapters on Windows, `vulkan:0` and `d3d12:0`: the same as the node's, which reads the registry.
//!
//! The node numbers the display adapters that are in use, but NVIDIA's, as the registry lists them
//! (`crates/node/src/devices/windows.rs`). Vulkan and Direct3D 12 list theirs in orders of their own. What all know is the
//! vendor and device of the card, and its name. Two cards of one kind are in whatever order each has: they are the same.

/// NVIDIA's are `cuda` to the node.
const NVIDIA: u32 = 0x10de;

/// A display adapter that the node numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Card {
    /// Vendor and device, where the registry tells.
    pub(crate) kind: Option<(u32, u32)>,
    pub(crate) name: String,
}

/// An adapter as Vulkan or Direct3D 12 shows it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shown<'a> {
    pub(crate) kind: (u32, u32),
    pub(crate) name: &'a str,
    pub(crate) is_software: bool,
}

/// The number of each adapter of one interface. Those that the node does not number come behind all cards, in their order.
pub(crate) fn numbers(cards: &[Card], adapters: &[Shown<'_>]) -> Vec<usize> {
    let mut numbers = vec![None; adapters.len()];
    let mut taken = vec![false; cards.len()];
    // The surest first. What nothing is known of takes what is left: better than no number of the node's.
    let rules: [fn(&Card, &Shown<'_>) -> bool; 3] = [
        |card, shown| card.kind == Some(shown.kind),
        |card, shown| card.kind.is_none() && card.name == shown.name,
        |card, _| card.kind.is_none(),
    ];
    for rule in rules {
        for (number, shown) in numbers.iter_mut().zip(adapters) {
            if number.is_some() || shown.is_software || shown.kind.0 == NVIDIA {
                continue;
            }
            *number = (0..cards.len()).find(|&card| !taken[card] && rule(&cards[card], shown));
            if let Some(card) = *number {
                taken[card] = true;
            }
        }
    }
    let mut behind = cards.len()..;
    let next = |number: Option<usize>| {
        number.unwrap_or_else(|| behind.next().expect("there is always a next number"))
    };
    numbers.into_iter().map(next).collect()
}

/// Vendor and device of `PCI\VEN_1002&DEV_744C&SUBSYS_...`.
#[cfg(any(windows, test))]
fn kind(id: &str) -> Option<(u32, u32)> {
    let id = id.to_ascii_lowercase();
    let number = |name: &str| {
        let (_, rest) = id.split_once(name)?;
        u32::from_str_radix(rest.get(..4)?, 16).ok()
    };
    number("ven_").zip(number("dev_"))
}

/// The display adapters that the node numbers, in its order; none where the registry cannot be read, or is not Windows'.
pub(crate) fn cards() -> Vec<Card> {
    #[cfg(windows)]
    return windows::cards();
    #[cfg(not(windows))]
    Vec::new()
}

#[cfg(windows)]
mod windows {
    use windows_registry::LOCAL_MACHINE;

    use super::Card;

    const ACTIVE: &str = "HARDWARE\\DEVICEMAP\\VIDEO";
    const ROOT: &str = "\\REGISTRY\\MACHINE\\";
    /// Values looked at, at most: one for each output.
    const OUTPUTS_MAX: usize = 256;

    pub(super) fn cards() -> Vec<Card> {
        let values = LOCAL_MACHINE.open(ACTIVE).and_then(|key| Ok(key.values()?.collect::<Vec<_>>()));
        let (mut cards, mut seen) = (Vec::new(), Vec::new());
        for (_, value) in values.into_iter().flatten().take(OUTPUTS_MAX) {
            let Ok(path) = String::try_from(value) else { continue };
            let Some(head) = path.get(..ROOT.len()).filter(|head| head.eq_ignore_ascii_case(ROOT)) else {
                continue;
            };
            let path = &path[head.len()..];
            let adapter = path.rsplit_once('\\').map_or(path, |(adapter, _)| adapter).to_ascii_lowercase();
            if seen.contains(&adapter) {
                continue;
            }
            let Ok(key) = LOCAL_MACHINE.open(path) else { continue };
            let Ok(name) = key.get_string("DriverDesc") else { continue };
            // What has no memory is a mirror or a remote display.
            if key.get_u64("HardwareInformation.qwMemorySize").is_err() {
                continue;
            }
            seen.push(adapter);
            if !name.contains("NVIDIA") {
                let id = key.get_string("MatchingDeviceId").unwrap_or_default();
                cards.push(Card { kind: super::kind(&id), name });
            }
        }
        cards
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AMD: (u32, u32) = (0x1002, 0x744c);
    const INTEL: (u32, u32) = (0x8086, 0x56a0);

    fn card(kind: Option<(u32, u32)>, name: &str) -> Card {
        Card { kind, name: name.to_owned() }
    }

    fn shown(kind: (u32, u32), name: &str) -> Shown<'_> {
        Shown { kind, name, is_software: false }
    }

    fn software() -> Shown<'static> {
        Shown { is_software: true, ..shown((0x1414, 0x8c), "Microsoft Basic Render Driver") }
    }

    #[test]
    fn adapters_have_the_numbers_of_their_cards_whatever_their_order() {
        let cards = [card(Some(INTEL), "Arc"), card(Some(AMD), "Radeon")];
        let adapters =
            [shown((NVIDIA, 1), "GeForce"), shown(AMD, "AMD Radeon"), shown(INTEL, "Arc"), software()];
        assert_eq!(numbers(&cards, &adapters), [2, 1, 0, 3]);
        // One without a driver for this interface leaves its number free.
        assert_eq!(numbers(&cards, &[shown(AMD, "AMD Radeon"), software()]), [1, 2]);
    }

    #[test]
    fn two_of_one_kind_are_numbered_in_their_order() {
        let cards = [card(Some(AMD), "Radeon"), card(Some(INTEL), "Arc"), card(Some(AMD), "Radeon")];
        let adapters =
            [shown(AMD, "Radeon"), shown(AMD, "Radeon"), shown(INTEL, "Arc"), shown(AMD, "a third")];
        assert_eq!(numbers(&cards, &adapters), [0, 2, 1, 3]);
    }

    #[test]
    fn names_decide_where_the_registry_tells_no_kind_and_then_the_order() {
        let cards = [card(None, "Arc"), card(None, "Radeon")];
        assert_eq!(numbers(&cards, &[shown(AMD, "Radeon"), shown(INTEL, "Arc")]), [1, 0]);
        let (one, other) = (shown(AMD, "AMD Radeon (RADV)"), shown(INTEL, "Arc"));
        assert_eq!(numbers(&cards, &[one, other]), [1, 0]);
        assert_eq!(numbers(&[], &[one, software()]), [0, 1]);
    }

    #[test]
    fn the_kind_is_read_of_what_the_driver_matched() {
        assert_eq!(kind("PCI\\VEN_1002&DEV_744C&REV_C8"), Some(AMD));
        assert_eq!(kind("pci\\ven_8086&dev_56a0"), Some(INTEL));
        for id in ["", "ROOT\\BasicDisplay", "PCI\\VEN_10", "PCI\\VEN_1002&DEV_zzzz", "PCI\\VEN_1002"] {
            assert_eq!(kind(id), None, "{id}");
        }
    }
}
