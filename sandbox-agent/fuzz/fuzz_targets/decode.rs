//! Messages of any bytes are decoded or refused, and what was decoded is the same after another round.
#![no_main]

use espalier_agent_protocol::v1::{ApplyChangesRequest, ChangeEvent, RunRequest, WriteRequest};
use libfuzzer_sys::fuzz_target;
use prost::Message;

fn round<T: Message + Default + PartialEq>(bytes: &[u8]) {
    if let Ok(message) = T::decode(bytes) {
        let again = T::decode(&message.encode_to_vec()[..]).expect("what was encoded here");
        assert!(message == again);
    }
}

fuzz_target!(|bytes: &[u8]| {
    round::<RunRequest>(bytes);
    round::<WriteRequest>(bytes);
    round::<ApplyChangesRequest>(bytes);
    round::<ChangeEvent>(bytes);
});
