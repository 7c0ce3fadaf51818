//! engine-echo
