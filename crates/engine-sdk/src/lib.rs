//! engine-sdk
