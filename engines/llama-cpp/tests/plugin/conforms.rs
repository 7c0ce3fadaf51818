//! The conformance suite of the ABI, with a model that has windows and experts and with a plain one.

use engine_testkit::suite::assert_conforms;
use gpt_oss_synth::Family;

use crate::{demo, family, llama_cpp_is_missing, subject};

#[test]
fn with_the_demo_model_it_conforms() {
    if !llama_cpp_is_missing() {
        let dir = demo();
        assert_conforms(&subject(dir.path()));
    }
}

#[test]
fn with_a_model_of_the_llama_family_it_conforms() {
    if !llama_cpp_is_missing() {
        let dir = family(Family::Llama);
        assert_conforms(&subject(dir.path()));
    }
}
