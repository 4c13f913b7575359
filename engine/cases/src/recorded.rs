//! The calls of a rollout that was run with `record_calls = true`, played again: each call of the plugin is given the reply that was
//! recorded, and is held against the call that was.

mod tape;

pub(crate) use tape::Tape;

use crate::report::Problem;
use espalier_core::journal::{Call, Reply};
use espalier_core::trajectory::HostCall;
use espalier_plugin::JobClock;
use serde::Deserialize;
use serde_json::Value;
use std::path::Path;

/// More than the calls of a rollout that are kept.
const RECORDING_BYTES_MAX: u64 = 256 << 20;

/// The calls of a rollout, as `espalier show ROLLOUT --calls --full --json` prints them.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct Recording {
    #[serde(rename = "host_calls")]
    pub(crate) calls: Vec<HostCall>,
    /// Of the plugin's random numbers.
    #[serde(default)]
    pub(crate) seed: u64,
}

impl Recording {
    pub(crate) fn read(path: &Path) -> Result<Recording, String> {
        let problem = |text: String| format!("recorded = {:?}: {text}", path.display());
        let text = crate::file::read(path, RECORDING_BYTES_MAX).map_err(problem)?;
        let recording: Recording = serde_json::from_slice(&text).map_err(|error| {
            problem(format!("{error}; write it by `espalier show ROLLOUT --calls --full --json`"))
        })?;
        if !recording.calls.is_empty() && recording.calls.iter().all(|call| call.payload.is_none()) {
            let text = "has no arguments and replies; run the experiment with `record_calls = true`";
            return Err(problem(text.to_owned()));
        }
        Ok(recording)
    }

    /// The settings that the plugin was given.
    pub(crate) fn settings(&self) -> Option<Value> {
        let get = self.calls.iter().find(|call| call.name == "settings.get")?;
        match &get.payload.as_ref()?.reply {
            Some(Reply::Text(text)) => serde_json::from_str(text).ok(),
            _ => None,
        }
    }

    /// What the plugin's clock said.
    pub(crate) fn clock(&self) -> JobClock {
        JobClock::Recorded { ms: self.calls.iter().map(|call| call.clock_ms).collect() }
    }

    /// The first call that is another than the recorded one.
    pub(crate) fn first_difference(&self, calls: &[HostCall]) -> Option<Problem> {
        for number in 0..self.calls.len().max(calls.len()) {
            let key = format!("recorded, call {number}");
            let (was, is) = match (self.calls.get(number), calls.get(number)) {
                (Some(was), Some(is)) => (was, is),
                (None, Some(is)) => {
                    return Some(Problem::new(key, format!("is {} and was not recorded", is.name)));
                }
                (Some(was), None) => {
                    return Some(Problem::new(key, format!("was {} and did not come", was.name)));
                }
                (None, None) => return None,
            };
            if was.asked == is.asked {
                continue;
            }
            let text = match was.name == is.name {
                true => format!("{}: the arguments are not the recorded ones", is.name),
                false => format!("is {}, recorded was {}", is.name, was.name),
            };
            return Some(Problem { key, text, diff: crate::compare::lines(&asked(was), &asked(is)) });
        }
        None
    }
}

fn asked(call: &HostCall) -> String {
    let kept: Option<&Call<'_>> = call.payload.as_ref().and_then(|payload| payload.call.as_ref());
    match kept.map(serde_json::to_string_pretty) {
        Some(Ok(text)) => text,
        _ => format!("{} (arguments not kept)", call.name),
    }
}
