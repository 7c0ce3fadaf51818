//! Engines that panic or fail: every function answers with a status, and the table can be used further.

use std::sync::Arc;

use engine_abi as c;

use super::harness::*;
use crate::{
    testing::{TestModel, models_held, set_fault, slots_held},
    *,
};

fn is_panic(said: &Said, place: &str) {
    assert_eq!((said.code, &*said.reason), (c::INTERNAL, "panic"));
    assert!(said.message.contains(&format!("asked to panic in {place}")), "{said:?}");
}

#[test]
fn a_panic_in_devices_is_a_status() {
    let host = Host::open();
    set_fault("panic in devices");
    is_panic(&host.devices().unwrap_err(), "devices");
    set_fault("");
    assert_eq!(host.devices().unwrap().len(), 2);
}

#[test]
fn a_panic_in_estimate_is_a_status() {
    let host = Host::open();
    set_fault("panic in estimate");
    let files = [c::File { name: text("config.json"), path: text("/c") }];
    is_panic(&host.estimate(&c_model(&files)).unwrap_err(), "estimate");
}

#[test]
fn a_panic_in_load_leaves_no_model() {
    let host = Host::open();
    for place in ["load", "spec"] {
        set_fault(&format!("panic in {place}"));
        let said = host.load(&[]).unwrap_err();
        assert_eq!((said.code, &*said.reason), (c::INTERNAL, "panic"), "{place}");
        assert_eq!(models_held(), 0, "{place}");
    }
    set_fault("");
    host.load(&[]).unwrap();
}

#[test]
fn a_panic_in_the_tokenizer_is_a_status_of_that_call_alone() {
    let host = Host::loaded();
    host.submit(1, "x").unwrap();
    set_fault("panic in encode");
    is_panic(&host.tokenize("a", &[]).unwrap_err(), "encode");
    is_panic(&host.submit(2, "a").unwrap_err(), "encode");
    set_fault("");
    assert_eq!(host.run().last().unwrap(), "1 finished 0 3");
}

#[test]
fn a_panic_in_a_step_ends_every_sequence_and_the_engine_takes_new_ones() {
    for place in ["start", "forward"] {
        let host = Host::loaded();
        for sequence in 1..=3 {
            host.submit(sequence, "a").unwrap();
        }
        set_fault(&format!("panic in {place}"));
        is_panic(&host.step().unwrap_err(), place);
        set_fault("");
        if place == "forward" {
            assert_eq!(slots_held(), 0);
            host.submit(1, "z").unwrap();
            assert_eq!(host.run().last().unwrap(), "1 finished 0 1");
        }
    }
}

#[test]
fn a_model_that_cannot_even_end_a_sequence_is_unloaded() {
    let host = Host::loaded();
    host.submit(1, "z").unwrap();
    host.submit(2, "a").unwrap();
    set_fault("panic in end");
    let said = host.step().unwrap_err();
    assert_eq!((said.code, &*said.reason), (c::INTERNAL, "panic"));
    set_fault("");
    assert_eq!(host.submit(3, "a").unwrap_err().reason, "model_not_loaded");
    assert_eq!(models_held(), 0);
    host.load(&[]).unwrap();
}

#[test]
fn a_panic_in_stats_is_a_status() {
    let host = Host::loaded();
    set_fault("panic in memory");
    is_panic(&host.stats().unwrap_err(), "memory");
}

#[test]
fn a_panic_while_a_model_is_dropped_stops_at_unload_and_at_close() {
    let host = Host::loaded();
    set_fault("panic in drop");
    host.unload();
    assert_eq!(models_held(), 0);
    set_fault("");
    host.load(&[]).unwrap();
    set_fault("panic in drop");
    drop(host);
    set_fault("");
    assert_eq!(models_held(), 0);
}

#[test]
fn the_words_of_a_panic_go_to_the_log_too() {
    let host = Host::loaded();
    set_fault("panic in memory");
    host.stats().unwrap_err();
    let lines = host.lines.lock().unwrap();
    assert!(
        lines.iter().any(|l| l.0 == c::LOG_ERROR && l.2.contains("asked to panic in memory")),
        "{lines:?}"
    );
}

#[test]
fn an_engine_that_panics_in_info_has_no_name() {
    struct Nameless;
    impl Engine for Nameless {
        type Model = TestModel;

        fn info() -> EngineInfo {
            panic!("who am I?")
        }

        fn devices() -> Result<Vec<Device>, Status> {
            Ok(Vec::new())
        }

        fn estimate(_: &ModelFiles, _: &Settings) -> Result<Estimate, Status> {
            Ok(Estimate::default())
        }

        fn load(
            _: &ModelFiles,
            _: &Settings,
            _: &[DeviceBytes],
            _: &mut Progress<'_>,
        ) -> Result<TestModel, Status> {
            Ok(TestModel::new(1, 64, 8))
        }
    }
    // SAFETY: info may be called at any time.
    let info = unsafe { &*crate::abi::table::<Nameless>().info.unwrap()() };
    assert_eq!((info.id.size, info.version.size), (0, 0));
}

#[test]
fn statuses_of_the_engine_come_through_with_their_numbers() {
    let host = Host::open();
    set_fault("status in load");
    let said = host.load(&[]).unwrap_err();
    assert_eq!((said.code, said.numbers), (c::OOM_VRAM, (7, 5)));
    set_fault("");
    let said = host.load(&[("cpu", 100), ("cpu:1", 9)]).unwrap_err();
    assert_eq!((said.code, said.numbers), (c::OOM_RAM, (10, 9)));
    assert!(said.message.contains("cpu:1"));
    host.load(&[]).unwrap();
    host.submit(1, "a").unwrap();
    set_fault("status in forward");
    assert_eq!(host.step().unwrap_err().code, c::OOM_VRAM);
    set_fault("status in start");
    host.submit(1, "a").unwrap();
    assert_eq!(host.step().unwrap(), (vec!["1 failed out_of_device_memory".to_owned()], 0));
}

#[test]
fn an_engine_that_loads_more_than_it_was_asked_for_is_refused() {
    struct Greedy;
    impl Engine for Greedy {
        type Model = TestModel;

        fn info() -> EngineInfo {
            EngineInfo { id: "greedy", version: "1.0.0" }
        }

        fn devices() -> Result<Vec<Device>, Status> {
            Ok(Vec::new())
        }

        fn estimate(_: &ModelFiles, _: &Settings) -> Result<Estimate, Status> {
            Ok(Estimate::default())
        }

        fn load(
            _: &ModelFiles,
            _: &Settings,
            _: &[DeviceBytes],
            _: &mut Progress<'_>,
        ) -> Result<TestModel, Status> {
            Ok(TestModel::new(3, 64, 8))
        }
    }
    let mut on_thread = super::super::opened::OnThread::<Greedy>::default();
    let files = ModelFiles {
        id: "m".to_owned(),
        format: "safetensors".to_owned(),
        architecture: "test".to_owned(),
        runtime: "test".to_owned(),
        dir: "/".into(),
        primary: "config.json".to_owned(),
        files: Vec::new(),
    };
    let settings = Settings { sequences_max: Some(2), ..Settings::default() };
    // SAFETY: null is a host without progress.
    let mut report = unsafe { super::super::input::progress(std::ptr::null()) };
    let status = on_thread.load(&files, &settings, &[], &mut report).err().unwrap();
    assert_eq!(status.code, StatusCode::Internal);
    assert_eq!(models_held(), 0);
}

#[test]
fn a_long_message_is_one_line_cut_between_characters() {
    let status = Status::internal("r".repeat(100), format!("first\nsecond\t{}", "日".repeat(1000)));
    let mut out = empty_status();
    // SAFETY: a live status.
    unsafe { super::super::output::status(&raw mut out, &status) };
    let said = said(&out);
    assert_eq!(said.reason, "r".repeat(c::REASON_BYTES - 1));
    assert!(said.message.starts_with("first second 日日"));
    assert!(said.message.len() > c::MESSAGE_BYTES - 4 && said.message.ends_with('日'));
}

#[test]
fn the_tokenizer_of_a_model_is_shared_between_threads() {
    fn shared<T: Send + Sync + ?Sized>(_: &T) {}
    shared(&*(TestModel::new(1, 64, 8).tokenizer() as Arc<dyn Tokenize>));
}
