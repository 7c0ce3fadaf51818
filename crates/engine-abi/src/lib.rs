//! engine-abi
