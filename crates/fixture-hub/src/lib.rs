//! fixture-hub
