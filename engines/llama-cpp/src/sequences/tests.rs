use super::*;

/// A stand-in of llama.cpp's KV: the tokens are not kept, only which positions there are.
#[derive(Default)]
struct Cells {
    /// By sequence: first position and length.
    held: std::collections::BTreeMap<u32, (u32, u32)>,
    /// Nothing can be dropped in part, as with recurrent layers.
    whole: bool,
    shared: Vec<(u32, u32, u32)>,
}

impl Kv for Cells {
    fn remove(&mut self, sequence: u32, from: u32) -> bool {
        let Some((first, length)) = self.held.get_mut(&sequence) else { return true };
        if from == 0 {
            self.held.remove(&sequence);
            return true;
        }
        if self.whole && from < *first + *length {
            return false;
        }
        *length = from.saturating_sub(*first).min(*length);
        true
    }

    fn share(&mut self, from: u32, to: u32, tokens: u32) {
        assert!(!self.held.contains_key(&to), "sequence {to} is not empty");
        let first = self.held[&from].0;
        self.held.insert(to, (first, tokens.saturating_sub(first)));
        self.shared.push((from, to, tokens));
    }

    fn first_held(&self, sequence: u32) -> Option<u32> {
        self.held.get(&sequence).filter(|held| held.1 > 0).map(|held| held.0)
    }
}

/// Runs a prompt in a slot as the scheduler would: what is not found is read, and one token of an answer.
fn read(sequences: &mut Sequences, cells: &mut Cells, slot: u32, prompt: &[u32]) -> u32 {
    let slot = Slot(slot);
    let found = sequences.begin(slot, prompt, 0, cells);
    assert!((found as usize) < prompt.len(), "the last token is read");
    sequences.read(slot, &prompt[found as usize..]);
    let held = cells.held.entry(sequences.of(slot)).or_default();
    assert_eq!(held.0 + held.1, found, "what was found is there, and nothing behind it");
    held.1 += prompt.len() as u32 - found;
    found
}

#[test]
fn a_longer_prompt_goes_on_where_a_shorter_one_ended() {
    let (mut sequences, mut cells) = (Sequences::new(2, true, 0), Cells::default());
    assert_eq!(read(&mut sequences, &mut cells, 0, &[1, 2, 3]), 0);
    let first = sequences.of(Slot(0));
    sequences.end(Slot(0));
    assert_eq!(read(&mut sequences, &mut cells, 1, &[1, 2, 3, 4, 5]), 3);
    assert_eq!(sequences.of(Slot(1)), first, "nobody else wants what it holds");
    assert!(cells.shared.is_empty());
    assert_eq!(sequences.reused_tokens(), 3);
}

#[test]
fn the_same_prompt_reads_its_last_token_again() {
    let (mut sequences, mut cells) = (Sequences::new(1, true, 0), Cells::default());
    read(&mut sequences, &mut cells, 0, &[1, 2, 3]);
    sequences.end(Slot(0));
    assert_eq!(read(&mut sequences, &mut cells, 0, &[1, 2, 3]), 2);
}

#[test]
fn a_beginning_is_shared_with_a_sequence_that_runs() {
    let (mut sequences, mut cells) = (Sequences::new(3, true, 0), Cells::default());
    read(&mut sequences, &mut cells, 0, &[1, 2, 3, 4]);
    assert_eq!(read(&mut sequences, &mut cells, 1, &[1, 2, 9, 9]), 2);
    assert_ne!(sequences.of(Slot(0)), sequences.of(Slot(1)));
    assert_eq!(cells.shared, [(sequences.of(Slot(0)), sequences.of(Slot(1)), 2)]);
    assert_eq!(sequences.tokens_running(), 8);
}

#[test]
fn what_another_may_want_again_is_shared_and_not_taken() {
    let (mut sequences, mut cells) = (Sequences::new(2, true, 0), Cells::default());
    read(&mut sequences, &mut cells, 0, &[1, 2, 3, 4, 5, 6]);
    let first = sequences.of(Slot(0));
    sequences.end(Slot(0));
    assert_eq!(read(&mut sequences, &mut cells, 0, &[1, 2, 7, 8]), 2);
    assert_ne!(sequences.of(Slot(0)), first);
    sequences.end(Slot(0));
    assert_eq!(read(&mut sequences, &mut cells, 0, &[1, 2, 3, 4, 5, 6, 7]), 6, "the first is still there");
}

#[test]
fn without_shared_cells_only_an_idle_sequence_gives_its_beginning() {
    let (mut sequences, mut cells) = (Sequences::new(2, false, 0), Cells::default());
    read(&mut sequences, &mut cells, 0, &[1, 2, 3, 4]);
    assert_eq!(read(&mut sequences, &mut cells, 1, &[1, 2, 9]), 0);
    sequences.end(Slot(0));
    assert_eq!(read(&mut sequences, &mut cells, 0, &[1, 2, 9]), 2);
    assert!(cells.shared.is_empty());
}

#[test]
fn another_salt_finds_nothing() {
    let (mut sequences, mut cells) = (Sequences::new(2, true, 0), Cells::default());
    read(&mut sequences, &mut cells, 0, &[1, 2, 3]);
    assert_eq!(sequences.begin(Slot(1), &[1, 2, 3], 7, &mut cells), 0);
}

#[test]
fn where_nothing_can_be_dropped_in_part_only_the_whole_is_gone_on_from() {
    let mut cells = Cells { whole: true, ..Cells::default() };
    let mut sequences = Sequences::new(1, true, 0);
    read(&mut sequences, &mut cells, 0, &[1, 2, 3]);
    sequences.end(Slot(0));
    assert_eq!(read(&mut sequences, &mut cells, 0, &[1, 2, 9, 9]), 0);
    sequences.end(Slot(0));
    assert_eq!(read(&mut sequences, &mut cells, 0, &[1, 2, 9, 9, 5]), 4);
}

#[test]
fn a_window_whose_cells_are_gone_is_read_again() {
    let (mut sequences, mut cells) = (Sequences::new(1, true, 4), Cells::default());
    let long: Vec<u32> = (0..20).collect();
    read(&mut sequences, &mut cells, 0, &long);
    // llama.cpp has dropped what no later row looks at.
    cells.held.insert(0, (15, 5));
    sequences.end(Slot(0));
    let shorter: Vec<u32> = (0..12).collect();
    assert_eq!(read(&mut sequences, &mut cells, 0, &shorter), 0, "position 8 is gone");
    let again: Vec<u32> = (0..30).collect();
    sequences.end(Slot(0));
    assert_eq!(read(&mut sequences, &mut cells, 0, &again), 12);
}

#[test]
fn what_has_been_idle_the_longest_is_taken_and_all_idle_can_be_let_go() {
    let (mut sequences, mut cells) = (Sequences::new(2, true, 0), Cells::default());
    read(&mut sequences, &mut cells, 0, &[1, 1]);
    read(&mut sequences, &mut cells, 1, &[2, 2]);
    let oldest = sequences.of(Slot(1));
    sequences.end(Slot(1));
    sequences.end(Slot(0));
    read(&mut sequences, &mut cells, 0, &[3, 3]);
    assert_eq!(sequences.of(Slot(0)), oldest);
    assert!(sequences.forget_idle(&mut cells));
    assert!(!sequences.forget_idle(&mut cells));
    assert_eq!(cells.held.len(), 1, "what runs is left alone");
    sequences.forget_all();
    assert_eq!(sequences.tokens_running(), 0);
}

#[test]
fn sequences_that_run_are_neighbours_where_they_share_no_cells() {
    let (mut sequences, mut cells) = (Sequences::new(6, false, 0), Cells::default());
    for slot in 0..6 {
        read(&mut sequences, &mut cells, slot, &[10 * slot + 1, 2, 3]);
    }
    // Ended in this order: by age alone the next two would be 4 and 0.
    [4, 0, 1, 3, 5].into_iter().for_each(|slot| sequences.end(Slot(slot)));
    let of = |sequences: &Sequences, slots: &[u32]| {
        let mut numbers: Vec<u32> = slots.iter().map(|slot| sequences.of(Slot(*slot))).collect();
        numbers.sort_unstable();
        numbers
    };
    assert_eq!(of(&sequences, &[2]), [2]);
    read(&mut sequences, &mut cells, 0, &[7, 7]);
    read(&mut sequences, &mut cells, 1, &[8, 8]);
    assert_eq!(of(&sequences, &[0, 1, 2]), [0, 1, 2], "1 ended before 3, and 0 before everybody left");
    // A hole is filled before the row gets longer.
    read(&mut sequences, &mut cells, 3, &[9, 9]);
    sequences.end(Slot(0));
    assert_eq!(of(&sequences, &[1, 2, 3]), [0, 2, 3]);
    read(&mut sequences, &mut cells, 4, &[6, 6]);
    assert_eq!(of(&sequences, &[1, 2, 3, 4]), [0, 1, 2, 3]);
}

#[test]
fn what_is_known_is_found_wherever_it_lies() {
    let (mut sequences, mut cells) = (Sequences::new(4, false, 0), Cells::default());
    for slot in 0..4 {
        read(&mut sequences, &mut cells, slot, &[10 * slot + 1, 2, 3]);
    }
    [3, 1].into_iter().for_each(|slot| sequences.end(Slot(slot)));
    assert_eq!(read(&mut sequences, &mut cells, 1, &[31, 2, 3, 4]), 3);
    assert_eq!(sequences.of(Slot(1)), 3);
}
