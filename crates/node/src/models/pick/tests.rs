use super::{Seat, pick};

fn check(seats: &[(u32, u32, bool)], expected: Option<usize>) {
    let seats: Vec<Seat> = seats
        .iter()
        .map(|&(running, sequences_max, knows_prefix)| Seat { running, sequences_max, knows_prefix })
        .collect();
    assert_eq!(pick(&seats), expected, "{seats:?}");
}

#[test]
fn nobody_takes_what_there_is_no_replica_for() {
    check(&[], None);
}

#[test]
fn the_least_loaded_takes_it_and_of_equals_the_first() {
    check(&[(2, 4, false), (1, 4, false), (1, 4, false)], Some(1));
}

#[test]
fn load_is_measured_by_the_size_of_the_replica() {
    check(&[(2, 4, false), (3, 16, false)], Some(1));
}

#[test]
fn a_known_beginning_goes_where_it_is_known_while_there_is_room() {
    check(&[(0, 4, false), (3, 4, true)], Some(1));
    check(&[(0, 4, false), (4, 4, true)], Some(0));
}

#[test]
fn of_two_that_know_it_the_less_loaded_takes_it() {
    check(&[(0, 4, false), (3, 4, true), (2, 4, true)], Some(2));
}

#[test]
fn all_full_means_the_least_overfull() {
    check(&[(9, 4, true), (8, 4, false)], Some(1));
}

#[test]
fn a_replica_without_sequences_divides_nothing_by_zero() {
    check(&[(0, 0, false)], Some(0));
}
