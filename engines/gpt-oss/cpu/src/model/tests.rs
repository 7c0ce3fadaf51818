//! The whole model in tiles, which are carried out where the processor has none, beside the same model in f32 without.
//! All other kernels are compared with the recorded reference, in `tests/reference.rs`.

use std::convert::Infallible;
use std::path::Path;

use super::*;
use crate::Sequences;

const TOKENS: usize = 70;

fn open(isa: Isa) -> CpuModel {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/fixtures/gpt-oss/nano");
    let store = Store::open(
        "model.safetensors.index.json",
        |name| std::fs::read(dir.join(name)),
        |name| Mapped::open(&dir.join(name)),
    );
    CpuModel::new(store.unwrap(), Pool::new(2).unwrap(), isa)
}

/// Logits after a prompt of many tokens, and after one more.
fn logits(model: &CpuModel) -> Vec<f32> {
    let prompt: Vec<u32> = (0..TOKENS as u32).map(|i| (i * 37 + 11) % 1000).collect();
    let mut sequences = Sequences::new(model.kv_shape(), 1, TOKENS + 1);
    let mut all = Vec::new();
    for tokens in [&prompt[..], &[5]] {
        let mut logits = vec![f32::NAN; model.config().vocabulary];
        let ok: Result<(), Infallible> =
            sequences.forward(model, &[(0, tokens, true)], &mut logits, |_, _| Ok(()));
        ok.unwrap();
        all.extend(logits);
    }
    all
}

fn rms(a: &[f32], b: &[f32]) -> f32 {
    (a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f32>() / a.len() as f32).sqrt()
}

/// Logits' root of mean square is 5.2. Rounding moves them by less than what `tests/reference.rs` allows for bf16, and
/// weights of eight bits by less than it allows for these.
#[test]
fn prompts_in_tiles_are_as_near_as_rounded_ones() {
    if !Isa::Amx.is_available() {
        println!("skipped: no {}", Isa::Amx.as_str());
        return;
    }
    let exact = logits(&open(Isa::Scalar).with_activations(Activations::F32));
    for (activations, eight_bits, most) in [
        (Activations::Bf16, false, 0.1),
        (Activations::Int8, false, 0.1),
        (Activations::Int8, true, 0.04 * 5.2 + 0.1),
    ] {
        let mut model = open(Isa::Amx).with_activations(activations);
        if eight_bits {
            let ok: Result<(), PrepareError<Infallible>> = model.prepare_int8(|_| Ok(()));
            ok.unwrap();
        }
        let off = rms(&logits(&model), &exact);
        println!("{activations:?}, eight bits {eight_bits}: {off}");
        assert!((1e-3..most).contains(&off), "{activations:?}, eight bits {eight_bits}: {off}");
    }
    // Whoever wants no rounding gets none.
    let f32_of_amx = logits(&open(Isa::Amx).with_activations(Activations::F32));
    assert!(rms(&f32_of_amx, &exact) < 1e-3);
}
