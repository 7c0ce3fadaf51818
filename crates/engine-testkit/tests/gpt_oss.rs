//! The engine `gpt-oss` passes the same suite as the echo engines, with the demo model.

use engine_testkit::build::{engine_dir, workspace_root};
use engine_testkit::suite::{Subject, assert_conforms};

#[test]
fn gpt_oss_conforms() {
    let model = workspace_root().join("assets").join("demo-model");
    assert_conforms(&Subject::new(engine_dir("gpt-oss"), model));
}
