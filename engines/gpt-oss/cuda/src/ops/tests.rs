use super::*;
use crate::counting::Counting;
use crate::plan::PAGE_BYTES;

/// As `gpt-oss-cuda-check roofline` asks for them.
const TOKENS: [usize; 5] = [1, 8, 64, 512, 4096];

#[test]
fn every_operator_has_something_to_be_measured_with() {
    for operator in OPERATORS {
        let mut sizes = 0;
        for tokens in TOKENS {
            let device = Counting { ledger: std::sync::Arc::default(), processors: 132 };
            let bench = (operator.bench)(&device, tokens).expect("a device that counts does not fail");
            let Some(Bench { launches, bytes, operations }) = bench else { continue };
            sizes += 1;
            let pages = PAGE_BYTES * device.ledger.lock().expect("nobody panics with it").allocated_pages();
            assert!(!launches.is_empty() && bytes + operations > 0, "{} of {tokens} tokens", operator.name);
            // Each place is read once and written once at most.
            assert!(bytes <= 2 * pages, "{}: {bytes} bytes in {pages}", operator.name);
        }
        assert!(sizes > 0, "{} is measured at no size", operator.name);
    }
}
