//! The one way to tell a run something while it works: commands on a bounded channel, each with an answer.
//!
//! Signals of the process, commands from other processes (`engine/inbox.rs`) and whoever holds the run in this process send
//! them; the run takes them one after another and answers at once. A run has its own channel, so runs in one process are
//! told apart by whom one asks. What a command leads to is [`espalier_core::control`].
//!
//! The order of a stop: admit nothing more; let what runs end, for [`DRAIN`]; cancel what is left and give it
//! [`CANCEL_GRACE`] to return and be stored; abort. The store is sound at any moment, and the same experiment resumes.

use espalier_core::control::{Command, ControlEvent, RunPhase, StopMode};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// How long running attempts may go on when a run stops.
pub const DRAIN: Duration = Duration::from_secs(30);
/// How long cancelled attempts may take to return and be stored.
pub const CANCEL_GRACE: Duration = Duration::from_secs(10);
/// Commands that wait to be taken; one more waits at its sender, or is refused ([`Commander::tell`]).
const QUEUE: usize = 16;

/// What became of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// What the run does now.
    pub phase: RunPhase,
    /// Whether that follows from the command; else the run did so already, or could not do what was asked.
    pub changed: bool,
    /// Rollouts that are under way.
    pub running: u32,
}

/// Nobody answers: the run is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the run is over")]
pub struct RunOver;

/// What was asked.
#[derive(Clone, Copy, Debug)]
enum Asked {
    Command(Command),
    /// So many rollouts at a time from now on.
    Permits(u32),
}

/// A command under way. Dropping it unanswered tells its sender that the run is over.
#[derive(Debug)]
pub struct Request {
    asked: Asked,
    answer: oneshot::Sender<Answer>,
}

/// The side that asks. Clones ask the same run.
#[derive(Clone, Debug)]
pub struct Commander(mpsc::Sender<Request>);

/// The side that is asked, with what follows from what was asked so far. Owner: the run.
#[derive(Debug)]
pub struct Commands {
    receiver: mpsc::Receiver<Request>,
    sender: mpsc::Sender<Request>,
    phase: RunPhase,
    /// Asked, and not taken yet.
    permits: Option<u32>,
}

/// Both sides.
pub fn channel() -> (Commander, Commands) {
    let commands = Commands::unasked();
    (commands.commander(), commands)
}

impl Commander {
    /// Asks, and waits for the answer: for as long as the run takes to look, so the caller bounds it.
    pub async fn ask(&self, command: Command) -> Result<Answer, RunOver> {
        self.send(Asked::Command(command)).await
    }

    /// Lets so many rollouts run at a time; as [`Commander::ask`].
    pub async fn permit(&self, permits: u32) -> Result<Answer, RunOver> {
        self.send(Asked::Permits(permits)).await
    }

    async fn send(&self, asked: Asked) -> Result<Answer, RunOver> {
        let (answer, answered) = oneshot::channel();
        self.0.send(Request { asked, answer }).await.map_err(|_| RunOver)?;
        answered.await.map_err(|_| RunOver)
    }

    /// Asks without waiting. `false`: the run is over, or has more to answer than it can take.
    pub fn tell(&self, command: Command) -> bool {
        self.0.try_send(Request { asked: Asked::Command(command), answer: oneshot::channel().0 }).is_ok()
    }
}

impl Commands {
    /// Commands of a run that nobody can command.
    pub fn unasked() -> Commands {
        let (sender, receiver) = mpsc::channel(QUEUE);
        Commands { receiver, sender, phase: RunPhase::default(), permits: None }
    }

    /// Somebody who may ask.
    pub fn commander(&self) -> Commander {
        Commander(self.sender.clone())
    }

    /// What the run does.
    pub fn phase(&self) -> RunPhase {
        self.phase
    }

    /// The next command. Cancel-safe.
    pub async fn next(&mut self) -> Request {
        match self.receiver.recv().await {
            Some(request) => request,
            // Not while this holds a sender itself.
            None => std::future::pending().await,
        }
    }

    /// Carries out a command: the phase changes, and its sender hears of it.
    pub fn answer(&mut self, request: Request, running: u32) {
        let changed = match request.asked {
            Asked::Command(command) => self.on(ControlEvent::Command(command)),
            Asked::Permits(permits) => {
                self.permits = Some(permits);
                true
            }
        };
        // Who asked may be gone; the command stands.
        let _ = request.answer.send(Answer { phase: self.phase, changed, running });
    }

    /// How many rollouts may run at a time, where that was changed since this was asked last.
    pub fn take_permits(&mut self) -> Option<u32> {
        self.permits.take()
    }

    /// Takes any event; whether the phase changed.
    pub fn on(&mut self, event: ControlEvent) -> bool {
        let next = self.phase.on(event);
        std::mem::replace(&mut self.phase, next) != next
    }

    /// Answers commands while nothing runs yet, until one stops the run. Cancel-safe: a command is answered when it is taken.
    pub async fn stopped(&mut self) {
        while !self.phase.stops() {
            let request = self.next().await;
            self.answer(request, 0);
        }
    }
}

/// Turns signals into commands: the first stops in order, any further one at once.
#[derive(Debug)]
pub struct Escalation {
    commander: Commander,
    told: Option<StopMode>,
}

impl Escalation {
    /// For the run of this commander.
    pub fn new(commander: Commander) -> Escalation {
        Escalation { commander, told: None }
    }

    /// Tells the run of one more signal; how it stops now. A run that cannot be told any more has to be dropped.
    pub fn signal(&mut self) -> StopMode {
        let mode = if self.told.is_none() { StopMode::Drain } else { StopMode::Abort };
        let mode = if self.commander.tell(Command::Stop(mode)) { mode } else { StopMode::Abort };
        self.told = Some(mode);
        mode
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_command_is_answered_and_a_run_that_is_over_answers_none() {
        let (commander, mut commands) = channel();
        let asker = async {
            let mut answers = Vec::new();
            for command in [Command::Pause, Command::Pause, Command::Resume, Command::Stop(StopMode::Drain)] {
                let answer = commander.ask(command).await.unwrap();
                answers.push((answer.phase, answer.changed));
            }
            answers
        };
        let (answers, ()) = tokio::join!(asker, commands.stopped());
        let expected = [
            (RunPhase::Paused, true),
            (RunPhase::Paused, false),
            (RunPhase::Admitting, true),
            (RunPhase::Draining, true),
        ];
        assert_eq!(answers, expected);
        // Asked while nobody looks, and over before anybody does.
        let pending = tokio::spawn({
            let commander = commander.clone();
            async move { commander.ask(Command::Pause).await }
        });
        tokio::task::yield_now().await;
        drop(commands);
        assert_eq!(pending.await.unwrap(), Err(RunOver));
        assert_eq!(commander.ask(Command::Resume).await, Err(RunOver));
    }

    #[test]
    fn a_channel_that_is_full_refuses_and_signals_then_end_at_once() {
        let (commander, commands) = channel();
        let mut signals = Escalation::new(commander.clone());
        assert_eq!(
            [signals.signal(), signals.signal(), signals.signal()],
            [StopMode::Drain, StopMode::Abort, StopMode::Abort]
        );
        while commander.tell(Command::Pause) {}
        assert_eq!(Escalation::new(commander).signal(), StopMode::Abort);
        drop(commands);
    }
}
