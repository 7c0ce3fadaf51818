use super::*;
use crate::sampler::{Sampler, apply_biases};

#[test]
fn changes_do_to_logits_what_the_sampler_does() {
    let sampling = Sampling {
        repetition_penalty: 1.7,
        presence_penalty: 0.3,
        frequency_penalty: -0.2,
        logit_bias: vec![(1, 2.0), (4, -100.0), (9, 1.5)],
        tokens_min: 8,
        stop_tokens: vec![6],
        ..Sampling::default()
    };
    let mut history = History::new(&[1, 2, 3, 3], &sampling);
    for id in [3, 4, 4, 7, 11] {
        history.push(id);
    }
    let end_tokens = [0, 6];
    let given: Vec<f32> = (0..12).map(|i| if i == 7 { f32::MAX } else { i as f32 * 0.75 - 4.0 }).collect();
    let mut want = given.clone();
    Sampler::new(vec![true; 12], end_tokens.to_vec()).mask(&mut want, &sampling, &history);
    apply_biases(&mut want, &sampling, &history);

    let mut got = given;
    let changes = Change::all(&sampling, &history, &end_tokens);
    assert!(changes.is_sorted_by_key(|c| c.id));
    for c in changes {
        let logit = &mut got[c.id as usize];
        let finite = |x: f32| x.clamp(f32::MIN, f32::MAX);
        *logit = finite(*logit + c.bias);
        *logit = finite(if *logit > 0.0 { *logit / c.repetition } else { *logit * c.repetition });
        *logit = finite(*logit - c.penalty);
        if c.out {
            *logit = f32::NEG_INFINITY;
        }
    }
    assert_eq!(got, want);
}

#[test]
fn nothing_asked_is_nothing_changed() {
    let sampling = Sampling::default();
    let mut history = History::new(&[1, 2], &sampling);
    history.push(5);
    assert_eq!(Change::all(&sampling, &history, &[0]), []);
}
