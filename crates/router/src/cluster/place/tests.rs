use std::time::Duration;

use super::{RETRY_AFTER_SECONDS, RETRY_AFTER_SECONDS_MAX, retry_after};

#[test]
fn a_caller_comes_back_after_the_wait_of_the_queue_within_bounds() {
    assert_eq!(retry_after(None), RETRY_AFTER_SECONDS);
    for (wait_ms, seconds) in
        [(0, 1), (999, 1), (1000, 2), (17_400, 18), (10_000_000, RETRY_AFTER_SECONDS_MAX)]
    {
        assert_eq!(retry_after(Some(Duration::from_millis(wait_ms))), seconds, "{wait_ms} ms");
    }
    assert_eq!(retry_after(Some(Duration::MAX)), RETRY_AFTER_SECONDS_MAX);
}
