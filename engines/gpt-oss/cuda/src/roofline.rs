//! What a device can do at most, and how near to that each kernel comes, in the shape of gpt-oss-20b.

use crate::device::{Device, DeviceError};
use crate::ops::OPERATORS;
use crate::testing::{Bench, Failure};

/// Launches of a kernel that are timed together.
const REPEATS: usize = 20;
/// The operator that does nothing but what the device can do at most.
const PEAK: &str = "peak";

/// A kernel at work.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Row {
    pub operator: &'static str,
    pub tokens: usize,
    pub seconds: f64,
    /// Read and written, and computed, in a second.
    pub bytes_a_second: f64,
    pub operations_a_second: f64,
    /// Of what the device reads and computes at most, where that is known by then.
    pub share_of_bandwidth: Option<f64>,
    pub share_of_peak: Option<f64>,
}

/// Measures every operator for so many tokens each time, 1 among them first: that is when the device's own most is seen.
///
/// `open` gives a device for each measurement: its memory is free again afterwards.
///
/// # Errors
/// Of `open`, or of the device.
pub fn roofline<E: From<DeviceError> + From<Failure>>(
    tokens: &[usize],
    mut open: impl FnMut() -> Result<Box<dyn Device>, E>,
    mut seen: impl FnMut(Row),
) -> Result<(), E> {
    let (mut bandwidth, mut peak) = (None, None);
    for &tokens in tokens {
        for operator in OPERATORS {
            let most = if tokens == 1 { &mut bandwidth } else { &mut peak };
            // Its first row reads, the second multiplies; more would say nothing new.
            if operator.name == PEAK && most.is_some() {
                continue;
            }
            let device = open()?;
            let Some(bench) = (operator.bench)(&*device, tokens)? else { continue };
            let seconds = seconds(&*device, &bench)?;
            let (bytes, operations) = (bench.bytes as f64 / seconds, bench.operations as f64 / seconds);
            if operator.name == PEAK {
                *most = Some(if tokens == 1 { bytes } else { operations });
            }
            let share = |rate: f64, most: Option<f64>| most.map(|most| rate / most);
            seen(Row {
                operator: operator.name,
                tokens,
                seconds,
                bytes_a_second: bytes,
                operations_a_second: operations,
                share_of_bandwidth: share(bytes, bandwidth),
                share_of_peak: share(operations, peak),
            });
        }
    }
    Ok(())
}

/// Of one pass over the launches. What fits a cache is read from there from the second time on.
fn seconds(device: &dyn Device, bench: &Bench) -> Result<f64, DeviceError> {
    // A driver may load a kernel at its first launch, which it cannot while it records.
    bench.launches.iter().try_for_each(|launch| device.launch(launch))?;
    device.begin_recording()?;
    let launched =
        (0..REPEATS).try_for_each(|_| bench.launches.iter().try_for_each(|launch| device.launch(launch)));
    let recording = device.end_recording()?;
    launched?;
    device.replay(recording)?;
    Ok(device.seconds(&mut || device.replay(recording))? / REPEATS as f64)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::device::{Address, Fetch, Info, Launch, Recording};

    /// Has room for everything, does nothing, and says that a kernel takes a hundredth of a second.
    #[derive(Debug, Default)]
    struct Idle {
        end: Cell<u64>,
        launches: Cell<usize>,
    }

    impl Device for Idle {
        fn info(&self) -> Result<Info, DeviceError> {
            let name = "idle".to_owned();
            Ok(Info {
                name,
                processors: 2,
                memory_total: u64::MAX,
                memory_free: u64::MAX,
                driver_bytes: None,
            })
        }

        fn allocate(&self, bytes: u64) -> Result<Address, DeviceError> {
            let at = self.end.get().next_multiple_of(256) + 256;
            self.end.set(at + bytes);
            Ok(Address(at))
        }

        fn upload(&self, _to: Address, _bytes: &[u8]) -> Result<(), DeviceError> {
            Ok(())
        }

        fn download(&self, _from: Address, _bytes: &mut [u8]) -> Result<(), DeviceError> {
            Ok(())
        }

        fn begin_fetch(&self, _from: Address, _bytes: usize) -> Result<Fetch, DeviceError> {
            Ok(Fetch(0))
        }

        fn end_fetch(&self, _fetch: Fetch, _bytes: &mut [u8]) -> Result<(), DeviceError> {
            Ok(())
        }

        fn launch(&self, _launch: &Launch) -> Result<(), DeviceError> {
            self.launches.set(self.launches.get() + 1);
            Ok(())
        }

        fn begin_recording(&self) -> Result<(), DeviceError> {
            self.launches.set(0);
            Ok(())
        }

        fn end_recording(&self) -> Result<Recording, DeviceError> {
            Ok(Recording(0))
        }

        fn replay(&self, _recording: Recording) -> Result<(), DeviceError> {
            Ok(())
        }

        fn wait(&self) -> Result<(), DeviceError> {
            Ok(())
        }

        fn seconds(&self, work: &mut dyn FnMut() -> Result<(), DeviceError>) -> Result<f64, DeviceError> {
            work()?;
            Ok(self.launches.get() as f64 / 100.0)
        }
    }

    #[test]
    fn every_operator_is_held_against_what_the_device_does_at_most() {
        let mut rows = Vec::new();
        let open = || Ok::<_, Failure>(Box::<Idle>::default() as Box<dyn Device>);
        roofline(&[1, 64], open, |row| rows.push(row)).expect("nothing fails");
        let of = |tokens: usize| rows.iter().filter(move |row| row.tokens == tokens);
        // What reads goes first, and is the most there is; what multiplies is seen with more tokens.
        assert_eq!(
            (rows[0].operator, rows[0].share_of_bandwidth, rows[0].share_of_peak),
            (PEAK, Some(1.0), None)
        );
        let peak = of(64).next().expect("a row");
        assert_eq!((peak.operator, peak.share_of_peak), (PEAK, Some(1.0)));
        assert_eq!(rows.iter().filter(|row| row.operator == PEAK).count(), 2);
        assert!(
            of(1).any(|row| row.operator == "linear_gemv") && of(64).any(|row| row.operator == "linear_mma")
        );
        for row in &rows {
            // One launch of a hundredth of a second, or as many as the operator has.
            assert!(row.seconds >= 0.0099, "{row:?}");
            let share = row.share_of_bandwidth.expect("known from the first row on");
            assert!((share - row.bytes_a_second / rows[0].bytes_a_second).abs() < 1e-12, "{row:?}");
        }
    }

    #[test]
    fn a_device_that_does_not_open_ends_it() {
        let lost = || DeviceError::NoDevice { number: 3, cause: "gone".to_owned() };
        let ended: Result<(), Failure> = roofline(&[1], || Err(lost().into()), |_| {});
        assert!(ended.expect_err("no device").to_string().contains("no device 3"));
    }
}
