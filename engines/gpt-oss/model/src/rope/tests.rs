use model_formats::gpt_oss::Yarn;

use super::*;

fn published() -> Rotation {
    let yarn = Yarn {
        factor: 32.0,
        original_context: 4096.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        truncate: false,
        concentration: 0.1 * 32f64.ln() + 1.0,
    };
    Rotation::new(&Rope { theta: 150_000.0, yarn: Some(yarn) }, 64)
}

/// Values written down from the published formula in float64.
#[test]
fn published_frequencies() {
    let rotation = published();
    for (i, expected) in [
        (0, 1.0),
        (1, 0.689044306),
        (8, 0.0508132748),
        (9, 0.0317056962),
        (12, 0.00679495949),
        (16, 0.000456483919),
        (17, 0.000129318701),
        (18, 3.83088124e-05),
        (31, 3.02351143e-07),
    ] {
        let error = (f64::from(rotation.inv_freq[i]) / expected - 1.0).abs();
        assert!(error < 2e-7, "pair {i}: off by {error:e}");
    }
}

#[test]
fn published_cosines_and_sines() {
    let rotation = published();
    for (position, i, cos, sin) in [
        (1, 0, 0.72755682, 1.13310260),
        (4096, 17, 1.16204460, 0.68037695),
        (131_071, 31, 1.34551634, 0.05335003),
    ] {
        let (c, s) = rotation.at(position);
        let (c, s) = (f64::from(c[i]), f64::from(s[i]));
        assert!((c - cos).abs() < 1e-6 && (s - sin).abs() < 1e-6, "{position} {i}: {c} {s}");
    }
}

#[test]
fn position_zero_only_scales() {
    let rotation = published();
    let (cos, sin) = rotation.at(0);
    let mut head: Vec<f32> = (0..64).map(|i| i as f32).collect();
    rotate(&mut head, &cos, &sin);
    for (i, x) in head.iter().enumerate() {
        assert!((x - i as f32 * 1.3465736).abs() < 1e-4);
    }
}

#[test]
fn pairs_are_half_a_head_apart() {
    let (cos, sin) = ([0.0, 1.0], [1.0, 0.0]);
    let mut head = [1.0, 2.0, 3.0, 4.0];
    rotate(&mut head, &cos, &sin);
    assert_eq!(head, [-3.0, 2.0, 1.0, 4.0]);
}

#[test]
fn truncated_ramps_start_and_end_at_whole_pairs() {
    let yarn = Yarn {
        factor: 4.0,
        original_context: 4096.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        truncate: true,
        concentration: 1.0,
    };
    assert_eq!(yarn.ramp(150_000.0, 64), (8.0, 18.0));
}
