//! gpt-oss-model
