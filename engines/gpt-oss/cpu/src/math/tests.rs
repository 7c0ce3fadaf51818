use super::*;

#[test]
fn exp_is_close_everywhere() {
    let mut x = -87.0f32;
    while x < 88.5 {
        let exact = f64::from(x).exp();
        let error = (f64::from(exp(x)) / exact - 1.0).abs();
        assert!(error < 4e-7, "exp({x}) is off by {error:e}");
        x += 0.003_7;
    }
    assert_eq!(exp(0.0), 1.0);
}

#[test]
fn exp_at_the_ends() {
    assert_eq!(exp(-100.0), 0.0);
    assert_eq!(exp(f32::NEG_INFINITY), 0.0);
    assert!(exp(f32::NAN).is_nan());
    assert!(exp(200.0) > 3e38);
    assert_eq!(sigmoid(-1000.0), 0.0);
    assert_eq!(sigmoid(1000.0), 1.0);
}

#[test]
fn dot_of_every_rest() {
    for n in 0..70usize {
        let a: Vec<f32> = (0..n).map(|i| i as f32 * 0.5).collect();
        let exact: f32 = (0..n).map(|i| (i * i) as f32 * 0.25).sum();
        assert!((dot(&a, &a) - exact).abs() <= exact * 1e-5, "{n}");
    }
}

#[test]
fn rms_norm_scales_to_one() {
    let x = [3.0f32, -4.0];
    let mut out = [0.0; 2];
    rms_norm(&x, [1.0, 2.0].into_iter(), 0.0, &mut out);
    let rms = 12.5f32.sqrt();
    assert!((out[0] - 3.0 / rms).abs() < 1e-6 && (out[1] + 8.0 / rms).abs() < 1e-6);
}

#[test]
fn bf16_rounds_to_nearest_and_ties_to_even() {
    for (bits, expected) in [
        (0x3f80_0000, 0x3f80),
        (0x3f80_8000, 0x3f80),
        (0x3f81_8000, 0x3f82),
        (0x3f80_8001, 0x3f81),
        (0xff80_0000, 0xff80),
        (0x7f7f_ffff, 0x7f80),
        (0x8000_0000, 0x8000),
    ] {
        assert_eq!(to_bf16(f32::from_bits(bits)), expected, "{bits:x}");
    }
    assert!(f32::from_bits(u32::from(to_bf16(f32::from_bits(0x7f80_0001))) << 16).is_nan());
}
