//! Bytes from the other side of a worker's pipe, cut anywhere: messages, an error, or a wish for more; and what was
//! understood is written as it was read.
#![no_main]

use engine_protocol::{FrameReader, ToNode, ToWorker, encode_frame};
use libfuzzer_sys::fuzz_target;
use serde::{Serialize, de::DeserializeOwned};

fuzz_target!(|data: &[u8]| {
    let Some((cut, bytes)) = data.split_first() else { return };
    let (first, second) = bytes.split_at(usize::from(*cut).min(bytes.len()));
    read::<ToNode>(first, second);
    read::<ToWorker>(first, second);
});

fn read<M: Serialize + DeserializeOwned>(first: &[u8], second: &[u8]) {
    let mut frames = FrameReader::default();
    for part in [first, second] {
        frames.extend(part);
        loop {
            match frames.next::<M>() {
                Ok(Some(message)) => again(&message),
                Ok(None) => break,
                Err(_) => return,
            }
        }
    }
}

/// Bytes are compared, not values: a NaN does not equal itself.
fn again<M: Serialize + DeserializeOwned>(message: &M) {
    let mut written = Vec::new();
    encode_frame(message, &mut written).expect("it came in a frame");
    let mut frames = FrameReader::default();
    frames.extend(&written);
    let read: M = frames.next().expect("our own frame").expect("whole");
    let mut once_more = Vec::new();
    encode_frame(&read, &mut once_more).expect("it came in a frame");
    assert_eq!(written, once_more);
}
