//! Against the plain search in the whole text.

use proptest::prelude::*;

use super::*;

/// The number of the piece that completes a stop string.
fn stopped_at(stops: &[&[u8]], pieces: &[&[u8]]) -> Option<usize> {
    let mut matcher = StopMatcher::new(stops.iter().map(|s| s.to_vec()).collect());
    pieces.iter().position(|piece| matcher.push(piece))
}

#[test]
fn a_stop_string_is_found_inside_one_token() {
    assert_eq!(stopped_at(&[b"END"], &[b"the ENDING"]), Some(0));
}

#[test]
fn a_stop_string_is_found_across_tokens() {
    assert_eq!(stopped_at(&[b"END"], &[b"the E", b"N", b"", b"Ding", b"END"]), Some(3));
}

#[test]
fn a_stop_string_is_found_across_the_bytes_of_a_character() {
    let sign = "。".as_bytes();
    assert_eq!(stopped_at(&[sign], &[b"a", &sign[..1], &sign[1..2], &sign[2..]]), Some(3));
}

#[test]
fn a_false_start_does_not_hide_the_real_one() {
    assert_eq!(stopped_at(&[b"aab"], &[b"a", b"a", b"a", b"b"]), Some(3));
}

#[test]
fn without_stop_strings_nothing_stops() {
    assert_eq!(stopped_at(&[], &[b"anything"]), None);
}

proptest! {
    #[test]
    fn it_stops_exactly_where_the_whole_text_first_contains_one(
        stops in prop::collection::vec("[ab]{1,5}", 1..4),
        pieces in prop::collection::vec("[abc]{0,3}", 0..30),
    ) {
        let mut text = String::new();
        let expected = pieces.iter().position(|piece| {
            text.push_str(piece);
            stops.iter().any(|stop| text.contains(stop.as_str()))
        });
        let stops: Vec<&[u8]> = stops.iter().map(|s| s.as_bytes()).collect();
        let pieces: Vec<&[u8]> = pieces.iter().map(|p| p.as_bytes()).collect();
        prop_assert_eq!(stopped_at(&stops, &pieces), expected);
    }
}
