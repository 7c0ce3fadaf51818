//! gpt-oss-synth
