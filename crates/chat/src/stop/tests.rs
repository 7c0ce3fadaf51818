//! Text before the stop string, whole and in time.

use proptest::prelude::*;

use super::*;

fn scanner(stops: &[&str]) -> StopScanner {
    StopScanner::new(stops.iter().map(|s| (*s).to_owned()).collect())
}

/// What the scanner lets through of pieces, and whether it stopped.
fn scan(stops: &[&str], pieces: &[&str]) -> (String, bool) {
    let mut scanner = scanner(stops);
    let mut text = String::new();
    for (token, piece) in pieces.iter().enumerate() {
        let token = token as u64;
        text += &scanner.push(piece, token..token + 1).text;
    }
    let last = scanner.finish();
    (text + &last.text, last.is_stopped)
}

#[test]
fn text_ends_before_the_first_stop_string() {
    assert_eq!(scan(&["END", "\n\n"], &["one", " two\n", "\nthree END"]), ("one two".to_owned(), true));
}

#[test]
fn a_stop_string_is_found_across_pieces() {
    assert_eq!(scan(&["abc"], &["xa", "b", "cde"]), ("x".to_owned(), true));
}

#[test]
fn only_what_could_become_a_stop_string_is_held_back() {
    let mut scanner = scanner(&["abab!"]);
    assert_eq!(scanner.push("xxaba", 0..1).text, "xx");
    assert_eq!(scanner.push("ba", 1..2).text, "ab");
    assert_eq!(scanner.push("?", 2..3).text, "aba?");
    assert_eq!(scanner.push("ab", 3..4).text, "");
    assert_eq!(scanner.finish().text, "ab");
}

#[test]
fn without_stop_strings_nothing_is_held_back() {
    let mut scanner = scanner(&["", ""]);
    let scanned = scanner.push("text", 4..5);
    assert_eq!((scanned.text.as_str(), scanned.tokens, scanned.is_stopped), ("text", 4..5, false));
}

#[test]
fn the_earliest_of_several_stop_strings_counts() {
    assert_eq!(scan(&["later", "x"], &["axblater"]), ("a".to_owned(), true));
}

#[test]
fn tokens_go_with_the_text_they_start() {
    let mut scanner = scanner(&["STOP"]);
    assert_eq!(scanner.push("a", 0..1).tokens, 0..1);
    assert!(scanner.push("ST", 1..2).tokens.is_empty());
    assert_eq!(scanner.push("ill", 2..4).tokens, 1..4);
    assert_eq!(scanner.push("bST", 4..5).tokens, 4..5);
    let last = scanner.push("OP", 5..6);
    assert!(last.is_stopped && last.text.is_empty() && last.tokens.is_empty());
    assert!(scanner.push("more", 6..7).is_stopped);
}

proptest! {
    #[test]
    fn any_cut_of_the_text_gives_the_same(
        text in "[abé ]{0,40}",
        stops in prop::collection::vec("[abé]{1,4}", 0..3),
        cuts in prop::collection::vec(0..60_usize, 0..12),
    ) {
        let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
        let expected = stops.iter().filter_map(|s| text.find(s)).min();
        let mut cuts: Vec<usize> = cuts.into_iter().filter(|&at| text.is_char_boundary(at.min(text.len())))
            .map(|at| at.min(text.len())).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let pieces: Vec<&str> = cuts.windows(2).map(|w| &text[w[0]..w[1]]).collect();
        let (out, is_stopped) = scan(&stops, &pieces);
        prop_assert_eq!(&out, &text[..expected.unwrap_or(text.len())]);
        prop_assert_eq!(is_stopped, expected.is_some());
    }
}
