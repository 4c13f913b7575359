//! What a run is told while it works, and what it does next, as a pure machine: pause, resume and three ways to stop.
//!
//! | phase | admits | ends |
//! |---|---|---|
//! | admitting | what permits allow | when nothing is left to do |
//! | paused | nothing; what runs goes on to its end | when nothing is left to do, or it is resumed |
//! | draining | nothing; what runs goes on, for a time | when nothing runs, or the time is over |
//! | cancelling | nothing; what runs is cancelled and may return, for a time | when nothing runs, or the time is over |
//! | aborted | nothing | at once, without another write |
//!
//! A stop is never taken back: a run that stops ends, and the same experiment resumes it.

/// What can be asked of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Admit nothing more; what runs goes on to its end.
    Pause,
    /// Admit again.
    Resume,
    /// End; the run stays open.
    Stop(StopMode),
}

/// How a run ends before it has finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum StopMode {
    /// What runs may end by itself, for a time; then it is cancelled.
    Drain,
    /// What runs is cancelled, and may return, for a time.
    Cancel,
    /// At once: nothing more is written.
    Abort,
}

/// What a run does about its rollouts. Ordered: a stop only gets harder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum RunPhase {
    /// Admits.
    #[default]
    Admitting,
    /// Admits nothing until it is resumed.
    Paused,
    /// Admits nothing more; what runs may end.
    Draining,
    /// What runs was cancelled.
    Cancelling,
    /// Over, whatever runs.
    Aborted,
}

/// What happens to a run's phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlEvent {
    /// Somebody asked for it.
    Command(Command),
    /// No rollout can come to anything now, so the run stops by itself. No harder than the stop that is under way.
    Blocked(StopMode),
    /// The time of the phase is over.
    GraceOver,
}

impl From<StopMode> for RunPhase {
    fn from(mode: StopMode) -> RunPhase {
        match mode {
            StopMode::Drain => RunPhase::Draining,
            StopMode::Cancel => RunPhase::Cancelling,
            StopMode::Abort => RunPhase::Aborted,
        }
    }
}

impl RunPhase {
    /// Whether the run ends.
    pub fn stops(self) -> bool {
        self >= RunPhase::Draining
    }

    /// The phase behind an event; the same where the event changes nothing.
    #[must_use]
    pub fn on(self, event: ControlEvent) -> RunPhase {
        match event {
            ControlEvent::Command(Command::Pause) if !self.stops() => RunPhase::Paused,
            ControlEvent::Command(Command::Resume) if !self.stops() => RunPhase::Admitting,
            ControlEvent::Command(Command::Pause | Command::Resume) => self,
            ControlEvent::Command(Command::Stop(mode)) => self.max(mode.into()),
            ControlEvent::Blocked(mode) if !self.stops() => mode.into(),
            ControlEvent::Blocked(_) => self,
            ControlEvent::GraceOver => match self {
                RunPhase::Draining => RunPhase::Cancelling,
                RunPhase::Cancelling => RunPhase::Aborted,
                phase => phase,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_event_in_each_phase() {
        use RunPhase::{Aborted, Admitting, Cancelling, Draining, Paused};
        let stop = |mode| ControlEvent::Command(Command::Stop(mode));
        let phases = [Admitting, Paused, Draining, Cancelling, Aborted];
        let table = [
            (ControlEvent::Command(Command::Pause), [Paused, Paused, Draining, Cancelling, Aborted]),
            (ControlEvent::Command(Command::Resume), [Admitting, Admitting, Draining, Cancelling, Aborted]),
            (stop(StopMode::Drain), [Draining, Draining, Draining, Cancelling, Aborted]),
            (stop(StopMode::Cancel), [Cancelling, Cancelling, Cancelling, Cancelling, Aborted]),
            (stop(StopMode::Abort), [Aborted; 5]),
            (ControlEvent::Blocked(StopMode::Drain), [Draining, Draining, Draining, Cancelling, Aborted]),
            (
                ControlEvent::Blocked(StopMode::Cancel),
                [Cancelling, Cancelling, Draining, Cancelling, Aborted],
            ),
            (ControlEvent::GraceOver, [Admitting, Paused, Cancelling, Aborted, Aborted]),
        ];
        for (event, expected) in table {
            for (phase, expected) in phases.into_iter().zip(expected) {
                assert_eq!(phase.on(event), expected, "{phase:?} {event:?}");
                // Whatever happens, a stop is not taken back.
                assert!(!phase.stops() || phase.on(event) >= phase, "{phase:?} {event:?}");
            }
        }
    }
}
