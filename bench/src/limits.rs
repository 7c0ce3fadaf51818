//! What this machine can do at best: how fast memory is read, and how fast each of its units multiplies.
//!
//! Every share of a limit in `bench/results` is of a limit that the same run has measured this way, because the cores of a
//! rented machine are not the same from one hour to the next. Rows:
//!
//! - `limit-read-small-Nt`, `-huge-`, `-file-`: GB/s of N threads that add up memory far larger than the caches, which lies
//!   in pages of 4 KiB, in huge ones, or in a mapped file that the system holds. The better of two patterns counts.
//! - `limit-UNIT-Nt`: Gop/s (a multiplication and an addition are two) of N threads in registers alone.

#[expect(
    unsafe_code,
    reason = "wide loads take pointers, and a mapping is only as sound as the file under it"
)]
pub mod bandwidth;
#[expect(unsafe_code, reason = "a unit's peak is that of its instructions, which are written out")]
pub mod units;

use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::thread;

use anyhow::{Context as _, Result};
use clap::Args;
use core_affinity::CoreId;

use crate::affinity::pin;
use crate::record::Row;
use crate::statistics::median;
use crate::{Common, ROUNDS};

pub use bandwidth::Pages;
pub use units::Unit;

/// Larger than the last cache of any machine of two cores by far, small enough for a run of seconds.
const READ_BYTES: usize = 1 << 30;

#[derive(Args)]
pub struct LimitsArguments {
    /// A large file to map, such as a shard of a checkpoint [default: one that is made for this]
    #[arg(long)]
    pub file: Option<PathBuf>,
}

/// One figure for one thread alone, and one for all threads together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    /// Of one thread; bytes or operations a second.
    pub one: f64,
    /// Of all threads together.
    pub all: f64,
}

impl Rate {
    /// The figure for so many threads, which are one or all.
    pub fn of(&self, threads: usize) -> f64 {
        if threads == 1 { self.one } else { self.all }
    }
}

/// What a machine can do at best.
#[derive(Debug, Clone, PartialEq)]
pub struct Limits {
    pub threads: usize,
    /// Bytes a second; without what this system does not let us choose.
    pub read: Vec<(Pages, Rate)>,
    /// Operations a second of the units this machine has.
    pub units: Vec<(Unit, Rate)>,
}

impl Limits {
    /// Measures all of it: some 5 seconds. `file`: see [`LimitsArguments`].
    ///
    /// # Errors
    /// A file for the mapping cannot be made, opened or mapped; memory for it cannot be had.
    pub fn measure(file: Option<&Path>, rounds: u32) -> Result<Limits> {
        let cores = cores()?;
        let mut read = Vec::new();
        for pages in Pages::ALL {
            if let Some(memory) = bandwidth::Memory::of(pages, READ_BYTES, file)? {
                read.push((pages, rate(&cores, |cores| bandwidth::read(cores, &memory, rounds))));
            }
        }
        let available = Unit::ALL.into_iter().filter(|unit| unit.is_available());
        let units = available.map(|unit| (unit, rate(&cores, |cores| units::peak(cores, unit, rounds))));
        Ok(Limits { threads: cores.len(), read, units: units.collect() })
    }

    /// Bytes a second from pages of this kind.
    pub fn read(&self, pages: Pages) -> Option<Rate> {
        self.read.iter().find(|(p, _)| *p == pages).map(|(_, rate)| *rate)
    }

    /// Operations a second of this unit; `None` where the machine has none.
    pub fn unit(&self, unit: Unit) -> Option<Rate> {
        self.units.iter().find(|(u, _)| *u == unit).map(|(_, rate)| *rate)
    }

    /// The fastest of these units that the machine has.
    pub fn best_unit(&self, units: &[Unit]) -> Option<(Unit, Rate)> {
        let known = units.iter().filter_map(|&unit| Some((unit, self.unit(unit)?)));
        known.max_by(|a, b| a.1.all.total_cmp(&b.1.all))
    }

    pub fn rows(&self, rounds: u32) -> Vec<Row> {
        let read = self.read.iter().map(|(pages, rate)| (format!("read-{}", pages.as_str()), "GB/s", *rate));
        let units = self.units.iter().map(|(unit, rate)| (unit.as_str().to_owned(), "Gop/s", *rate));
        let mut rows = Vec::new();
        for (name, unit, rate) in read.chain(units) {
            let mut threads = vec![1, self.threads];
            threads.dedup();
            rows.extend(
                threads
                    .iter()
                    .map(|&n| Row::new(format!("limit-{name}-{n}t"), unit, rate.of(n) / 1e9, rounds)),
            );
        }
        rows
    }
}

pub fn run(arguments: &LimitsArguments, common: &Common) -> Result<Vec<Row>> {
    let limits = Limits::measure(arguments.file.as_deref(), common.rounds(ROUNDS))?;
    for (weights, units) in [("bf16", Unit::FOR_BF16), ("int8", Unit::FOR_INT8)] {
        if let Some((unit, rate)) = limits.best_unit(units) {
            println!("best unit for {weights}: {}, {:.0} Gop/s", unit.as_str(), rate.all / 1e9);
        }
    }
    if let (Some(huge), Some(file)) = (limits.read(Pages::Huge), limits.read(Pages::File)) {
        println!("a mapped file is read at {:.0} % of the rate of huge pages", 100.0 * file.all / huge.all);
    }
    Ok(limits.rows(common.rounds(ROUNDS)))
}

/// The cores this process may use.
pub fn cores() -> Result<Vec<CoreId>> {
    let cores = core_affinity::get_core_ids().context("this system does not say which cores there are")?;
    anyhow::ensure!(!cores.is_empty(), "this process may run on no core");
    Ok(cores)
}

fn rate(cores: &[CoreId], mut measured: impl FnMut(&[CoreId]) -> f64) -> Rate {
    let one = measured(&cores[..1]);
    let all = if cores.len() == 1 { one } else { measured(cores) };
    Rate { one, all }
}

/// Calls `work` on a thread pinned to each core, all at once, and gives what each returned.
fn on_each<T: Send>(cores: &[CoreId], work: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let start = Barrier::new(cores.len());
    thread::scope(|scope| {
        let threads: Vec<_> = cores
            .iter()
            .enumerate()
            .map(|(number, &core)| {
                let (start, work) = (&start, &work);
                scope.spawn(move || {
                    pin(core);
                    start.wait();
                    work(number)
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().expect("measuring threads do not panic")).collect()
    })
}

pub fn median_of(rounds: u32, measured: impl FnMut(u32) -> f64) -> f64 {
    median(&mut (0..rounds).map(measured).collect::<Vec<f64>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_of_this_machine_computes_and_takes_time() {
        let core = &cores().unwrap()[..1];
        for unit in Unit::ALL.into_iter().filter(|unit| unit.is_available()) {
            let peak = units::peak(core, unit, 1);
            // A core of 100 MHz and one of 100 GHz that starts four of the widest matrix instructions a cycle.
            assert!((1e8..1e16).contains(&peak), "{}: {peak} operations a second", unit.as_str());
        }
    }

    #[test]
    fn every_kind_of_pages_is_read_to_its_end() {
        let core = &cores().unwrap()[..1];
        for pages in Pages::ALL {
            let Some(memory) = bandwidth::Memory::of(pages, 8 << 20, None).unwrap() else {
                println!("skipped: no {} pages here", pages.as_str());
                continue;
            };
            let rate = bandwidth::read(core, &memory, 1);
            assert!((1e6..1e13).contains(&rate), "{}: {rate} bytes a second", pages.as_str());
        }
    }

    #[test]
    fn rows_are_named_for_what_was_measured_and_for_threads() {
        let rate = Rate { one: 2e9, all: 3e9 };
        let limits =
            Limits { threads: 2, read: vec![(Pages::Huge, rate)], units: vec![(Unit::Avx2Fma, rate)] };
        let rows = limits.rows(3);
        let names: Vec<_> = rows.iter().map(|r| (r.row.as_str(), r.unit, r.ours)).collect();
        assert_eq!(
            names,
            [
                ("limit-read-huge-1t", "GB/s", 2.0),
                ("limit-read-huge-2t", "GB/s", 3.0),
                ("limit-avx2-fma-1t", "Gop/s", 2.0),
                ("limit-avx2-fma-2t", "Gop/s", 3.0),
            ]
        );
        assert_eq!(Limits { threads: 1, ..limits }.rows(3).len(), 2);
    }
}
