//! gpt-oss-plugin
