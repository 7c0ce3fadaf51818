//! Both echo engines pass the suite.

use engine_testkit::build::engine_dir;
use engine_testkit::model::write_echo_model;
use engine_testkit::suite::{Subject, assert_conforms};

fn check(engine: &str) {
    let model = tempfile::tempdir().expect("a temporary folder");
    write_echo_model(model.path(), 1 << 20).expect("a model");
    assert_conforms(&Subject::new(engine_dir(engine), model.path()));
}

#[test]
fn echo_conforms() {
    check("echo");
}

#[test]
fn echo_in_c_conforms() {
    check("echo-c");
}
