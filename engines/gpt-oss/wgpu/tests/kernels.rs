//! Every operator against plain Rust, on every adapter of this machine, software or not.

use gpt_oss_wgpu::ops::{OPERATORS, Operator, Size};
use gpt_oss_wgpu::shaders::{Form, Shape};
use gpt_oss_wgpu::{Adapter, Gpu, Verdict};

/// Of the published models and of the test models.
const SHAPES: [Shape; 4] = [
    Shape { head_dim: 64, group: 8 },
    Shape { head_dim: 64, group: 2 },
    Shape { head_dim: 64, group: 13 },
    Shape { head_dim: 32, group: 3 },
];

#[test]
fn every_operator_computes_what_plain_rust_does() {
    let adapters = Adapter::all();
    let usable = adapters.iter().filter(|a| !matches!(a.verdict, Verdict::Unusable(_)));
    let mut checked = 0;
    for adapter in usable {
        println!("{}: {} ({}), {:?}", adapter.id, adapter.name, adapter.driver, adapter.form);
        // Every form that it has, and the operators that differ.
        let best = adapter.form;
        let lesser = [Form::Subgroups, Form::Plain].into_iter().skip(match best {
            Form::Plain => 2,
            Form::Subgroups => 1,
            Form::Matrices { .. } => 0,
        });
        let opened =
            SHAPES.map(|shape| (shape, best)).into_iter().chain(lesser.map(|form| (SHAPES[0], form)));
        for (n, (shape, form)) in opened.enumerate() {
            let mut adapter = adapter.clone();
            adapter.form = form;
            let mut gpu = Gpu::open(adapter, shape).unwrap();
            // What chooses tokens knows no shape, and takes longest.
            let is_due =
                |o: &&Operator| n == 0 || n < SHAPES.len() && o.name != "sample" || o.differs(best, form);
            let operators = OPERATORS.iter().filter(is_due);
            for operator in operators {
                for size in Size::ALL {
                    let seed = 0x5eed + n as u64;
                    if let Err(failure) = (operator.check)(&mut gpu, size, seed) {
                        panic!("{} {size:?} {shape:?} {form:?}, seed {seed}: {failure}", operator.name);
                    }
                    checked += 1;
                }
            }
        }
    }
    if checked == 0 {
        println!("skipped: no adapter (Mesa's lavapipe is installed by `cargo xtask test`)");
    }
}
