//! model-formats
