use super::*;

#[test]
fn the_largest_are_chosen_in_order_with_weights_of_their_own_softmax() {
    let chosen = choose_experts(&[0.0, 3.0, 1.0, 3.0f32 - 2f32.ln()], 2);
    assert_eq!(chosen.iter().map(|c| c.0).collect::<Vec<_>>(), [1, 3]);
    assert!((chosen[0].1 - 2.0 / 3.0).abs() < 1e-6 && (chosen[1].1 - 1.0 / 3.0).abs() < 1e-6, "{chosen:?}");
}

#[test]
fn of_equals_the_lower_number_is_taken() {
    let chosen = choose_experts(&[1.0, 2.0, 2.0, 2.0, 1.0], 2);
    assert_eq!(chosen, [(1, 0.5), (2, 0.5)]);
}

#[test]
fn broken_logits_do_not_panic() {
    assert_eq!(choose_experts(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY], 2).len(), 2);
}

#[test]
#[should_panic(expected = "3 of 2 experts")]
fn more_than_there_are_is_our_mistake() {
    choose_experts(&[1.0, 2.0], 3);
}
