use super::*;

fn check(isa: Isa, activations: Activations, order: Order, expected: &[(&str, usize, &str)]) {
    // Kernels of another architecture, or of VNNI, are not what this one has.
    if !isa.is_available() {
        println!("skipped: no {}", isa.as_str());
        return;
    }
    let found: Vec<_> =
        table(isa, activations, order).iter().map(|c| (c.weights, c.vectors_min, c.kernel)).collect();
    assert_eq!(found, expected, "{isa:?} {activations:?} {order:?}");
}

#[test]
fn one_form_for_all_where_there_is_nothing_else() {
    let all = |kernel| [("bf16", 1, kernel), ("int8", 1, kernel), ("mxfp4", 1, kernel)];
    check(Isa::Scalar, Activations::F32, Order::Fastest, &all("scalar f32"));
    check(Isa::Avx2, Activations::Bf16, Order::Fastest, &all("avx2 f32"));
    check(Isa::Avx512Bf16, Activations::Bf16, Order::Invariant, &all("avx512 f32"));
    check(Isa::Amx, Activations::F32, Order::Fastest, &all("avx512 f32"));
    check(Isa::Neon, Activations::Bf16, Order::Fastest, &all("neon f32"));
}

#[test]
fn many_tokens_are_rounded_and_few_visitors_are_not() {
    let expected = |many| {
        [
            ("bf16", 1, "avx512 f32"),
            ("bf16", ROUNDED_MIN, many),
            ("int8", 1, "avx512 f32"),
            ("int8", ROUNDED_MIN, many),
            ("mxfp4", 1, "avx512 f32"),
            ("mxfp4", FEW_VISITS + 1, many),
        ]
    };
    check(Isa::Avx512Bf16, Activations::Bf16, Order::Fastest, &expected("avx512 bf16"));
    check(Isa::Amx, Activations::Bf16, Order::Fastest, &expected("amx bf16"));
}

#[test]
fn eight_bits_meet_weights_of_few_bits_unless_there_are_tiles() {
    check(
        Isa::Scalar,
        Activations::Int8,
        Order::Fastest,
        &[("bf16", 1, "scalar f32"), ("int8", 1, "scalar int8"), ("mxfp4", 1, "scalar int8")],
    );
    check(
        Isa::Avx2,
        Activations::Int8,
        Order::Fastest,
        &[("bf16", 1, "avx2 f32"), ("int8", 1, "avx2 int8"), ("mxfp4", 1, "avx2 int8")],
    );
    // Of all orders the invariant one has the same kernel for any number.
    for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
        let found = table(isa, Activations::Int8, Order::Invariant);
        assert_eq!(found.len(), 3, "{isa:?}: {found:?}");
    }
    if Isa::Amx.is_available() {
        let found = table(Isa::Amx, Activations::Int8, Order::Fastest);
        let many: Vec<_> = found.iter().filter(|c| c.kernel == "amx bf16").collect();
        let from: Vec<_> = many.iter().map(|c| (c.weights, c.vectors_min)).collect();
        assert_eq!(from, [("bf16", ROUNDED_MIN), ("int8", ROUNDED_MIN), ("mxfp4", FEW_VISITS_TILES + 1)]);
    }
}
