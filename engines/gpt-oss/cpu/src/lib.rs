//! gpt-oss-cpu
