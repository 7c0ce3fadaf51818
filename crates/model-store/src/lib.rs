//! model-store
