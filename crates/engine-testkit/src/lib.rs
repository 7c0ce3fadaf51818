//! engine-testkit
