//! Commands from other processes: rows of the store, carried to the run's own channel and answered there.

use crate::control::{Answer, Commander};
use crate::runner::now_ms;
use espalier_core::control::{Command, RunPhase, StopMode};
use espalier_store::{COMMANDS_EVERY_MS, CommandRow, RunWriter, StoreError};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, timeout};

/// How long the run may take to look at a command. It does so between any two of its own steps.
const LOOKS_WITHIN: Duration = Duration::from_secs(5);

/// The task that looks for commands. Owner: the run. Dropping it ends the task; commands then stay unanswered.
#[derive(Debug)]
pub(crate) struct Inbox(JoinHandle<()>);

impl Drop for Inbox {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// An answer as its row has it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Reply {
    /// What the run does now.
    Done {
        /// Whether it follows from the command.
        changed: bool,
        /// Whether it admits nothing until it is resumed.
        paused: bool,
        /// Whether it ends.
        stops: bool,
        /// Rollouts that are under way.
        running: u32,
    },
    /// This engine does not know the command, or is too late with it.
    Refused(String),
}

impl From<Answer> for Reply {
    fn from(Answer { phase, changed, running }: Answer) -> Reply {
        Reply::Done { changed, paused: phase == RunPhase::Paused, stops: phase.stops(), running }
    }
}

/// The word for a command in its row.
pub(crate) fn word(command: Command) -> &'static str {
    match command {
        Command::Pause => "pause",
        Command::Resume => "resume",
        Command::Stop(StopMode::Drain) => "stop",
        Command::Stop(StopMode::Cancel) => "stop-now",
        Command::Stop(StopMode::Abort) => "abort",
    }
}

fn parse(word_of: &str) -> Option<Command> {
    let stops = [StopMode::Drain, StopMode::Cancel].map(Command::Stop);
    [Command::Pause, Command::Resume].into_iter().chain(stops).find(|command| word(*command) == word_of)
}

/// Looks every [`COMMANDS_EVERY_MS`], and takes commands in the order in which they were asked for. A store that fails is
/// looked at again at the next turn.
pub(crate) fn open(run: RunWriter, commander: Commander) -> Inbox {
    Inbox(tokio::spawn(async move {
        let mut turns = tokio::time::interval(Duration::from_millis(COMMANDS_EVERY_MS));
        turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            turns.tick().await;
            if let Err(error) = carry(&run, &commander).await {
                tracing::warn!(%error, "commands to the run could not be looked for");
            }
        }
    }))
}

async fn carry(run: &RunWriter, commander: &Commander) -> Result<(), StoreError> {
    while let Some(CommandRow { id, command }) = run.next_command().await? {
        if !run.take_command(&id, now_ms()).await? {
            continue;
        }
        let reply = match parse(&command) {
            None => Reply::Refused(format!("this engine knows no command `{command}`")),
            Some(command) => match timeout(LOOKS_WITHIN, commander.ask(command)).await {
                Ok(Ok(answer)) => answer.into(),
                Ok(Err(over)) => Reply::Refused(over.to_string()),
                Err(_) => {
                    Reply::Refused(format!("the run did not read it within {} s", LOOKS_WITHIN.as_secs()))
                }
            },
        };
        let paused = match reply {
            Reply::Done { paused, stops: false, .. } => Some(paused),
            Reply::Done { .. } | Reply::Refused(_) => None,
        };
        let text = serde_json::to_string(&reply).expect("words and numbers can be written");
        run.answer_command(&id, text, paused).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_has_a_word_but_the_one_that_writes_nothing_more() {
        let stop = Command::Stop;
        for command in [Command::Pause, Command::Resume, stop(StopMode::Drain), stop(StopMode::Cancel)] {
            assert_eq!(parse(word(command)), Some(command));
        }
        assert_eq!(parse(word(stop(StopMode::Abort))), None);
        assert_eq!(parse("swap"), None);
    }
}
