//! engine-worker
