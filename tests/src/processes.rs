//! Processes of this machine that come from one command, found by a mark in their environment, which children inherit.
//! A process is its id and its start time: an id alone may be given to another.

use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// The variable that holds the mark.
pub const MARK: &str = "ESPALIER_TEST_MARK";

/// One process, whatever becomes of its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Process {
    /// Its id.
    pub id: u32,
    /// Clock ticks from the start of the machine to its own.
    pub start: u64,
}

impl Process {
    /// The process that has this id now and runs; one that has ended and waits to be reaped does not.
    pub fn of(id: u32) -> Option<Process> {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        // Behind the name, which may hold anything, fields are counted from the third.
        let mut fields = stat.rsplit_once(") ")?.1.split(' ');
        let state = fields.next()?;
        let start = fields.nth(18)?.parse().ok()?;
        (!matches!(state, "Z" | "X")).then_some(Process { id, start })
    }

    /// Whether it still runs.
    pub fn runs(self) -> bool {
        Process::of(self.id) == Some(self)
    }
}

/// All that run with this mark.
pub fn marked(mark: &str) -> BTreeSet<Process> {
    let wanted = format!("{MARK}={mark}");
    let ids = std::fs::read_dir("/proc")
        .expect("Linux has /proc")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let carries = |id: &u32| {
        let environment = std::fs::read(format!("/proc/{id}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
    };
    ids.filter(carries).filter_map(Process::of).collect()
}

/// Waits until none of `known`, and nothing else with this mark, runs; what is left at the bound.
pub async fn gone(mark: &str, known: &BTreeSet<Process>, bound: Duration) -> BTreeSet<Process> {
    let end = Instant::now() + bound;
    loop {
        let mut left = marked(mark);
        left.extend(known.iter().copied().filter(|process| process.runs()));
        if left.is_empty() || Instant::now() >= end {
            return left;
        }
        sleep(Duration::from_millis(20)).await;
    }
}
