//! For tests: a device that counts what is asked of it, and holds nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use crate::device::{Address, Device, DeviceError, Fetch, Info, Launch, Recording};
use crate::plan::PAGE_BYTES;

/// Of a device: where allocations begin and end, and what was written there.
#[derive(Debug, Default)]
pub struct Ledger {
    allocations: BTreeMap<u64, u64>,
    /// Begin and end; no two overlap.
    written: BTreeMap<u64, u64>,
    pub launches: usize,
}

impl Ledger {
    pub fn allocated_pages(&self) -> u64 {
        self.allocations.iter().map(|(begin, end)| (end - begin).div_ceil(PAGE_BYTES)).sum()
    }

    pub fn bytes_written(&self) -> u64 {
        self.written.iter().map(|(begin, end)| end - begin).sum()
    }

    /// Whether these bytes lie in one allocation.
    fn holds(&self, begin: u64, end: u64) -> bool {
        self.allocations.range(..=begin).next_back().is_some_and(|(_, last)| end <= *last)
    }
}

#[derive(Debug)]
pub struct Counting {
    pub ledger: Arc<Mutex<Ledger>>,
    pub processors: u32,
}

impl Device for Counting {
    fn info(&self) -> Result<Info, DeviceError> {
        let (memory_total, memory_free) = (u64::MAX, u64::MAX);
        Ok(Info {
            name: "counting".to_owned(),
            processors: self.processors,
            memory_total,
            memory_free,
            driver_bytes: None,
        })
    }

    fn allocate(&self, bytes: u64) -> Result<Address, DeviceError> {
        let mut ledger = self.ledger.lock().expect("nobody panics with it");
        let begin = ledger.allocations.last_key_value().map_or(PAGE_BYTES, |(_, end)| *end);
        let begin = begin.next_multiple_of(PAGE_BYTES);
        ledger.allocations.insert(begin, begin + bytes);
        Ok(Address(begin))
    }

    fn upload(&self, to: Address, bytes: &[u8]) -> Result<(), DeviceError> {
        let mut ledger = self.ledger.lock().expect("nobody panics with it");
        let (begin, end) = (to.0, to.0 + bytes.len() as u64);
        assert!(ledger.holds(begin, end), "{} bytes beyond an allocation", bytes.len());
        let before = ledger.written.range(..end).next_back();
        assert!(before.is_none_or(|(_, end)| *end <= begin), "what is there is overwritten");
        ledger.written.insert(begin, end);
        Ok(())
    }

    fn download(&self, _from: Address, _bytes: &mut [u8]) -> Result<(), DeviceError> {
        unreachable!("a load reads nothing back")
    }

    fn begin_fetch(&self, _from: Address, _bytes: usize) -> Result<Fetch, DeviceError> {
        unreachable!("a load reads nothing back")
    }

    fn end_fetch(&self, _fetch: Fetch, _bytes: &mut [u8]) -> Result<(), DeviceError> {
        unreachable!("a load reads nothing back")
    }

    fn launch(&self, _launch: &Launch) -> Result<(), DeviceError> {
        self.ledger.lock().expect("nobody panics with it").launches += 1;
        Ok(())
    }

    fn begin_recording(&self) -> Result<(), DeviceError> {
        unreachable!("a load records nothing")
    }

    fn end_recording(&self) -> Result<Recording, DeviceError> {
        unreachable!("a load records nothing")
    }

    fn replay(&self, _recording: Recording) -> Result<(), DeviceError> {
        unreachable!("a load records nothing")
    }

    fn wait(&self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn seconds(&self, work: &mut dyn FnMut() -> Result<(), DeviceError>) -> Result<f64, DeviceError> {
        work().map(|()| 0.0)
    }
}
