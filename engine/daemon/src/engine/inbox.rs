//! Commands from other processes: rows of the store, carried to the run's own channel and answered there. New weights go to the models
//! themselves, beside all else, since servers take their time.

use crate::control::{Answer, Commander};
use crate::runner::now_ms;
use espalier_core::control::{Command, RunPhase, StopMode};
use espalier_inference::models::Model;
use espalier_inference::weights::{WeightReport, WeightUpdate};
use espalier_store::{COMMANDS_EVERY_MS, CommandId, CommandRow, ModelVersion, RunWriter, StoreError};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{MissedTickBehavior, timeout};

/// How long the run may take to look at a command. It does so between any two of its own steps.
const LOOKS_WITHIN: Duration = Duration::from_secs(5);

/// How long updates of weights may go on when the run ends.
const UPDATES_MAX: Duration = Duration::from_secs(10);

/// The models of a run, once they are open.
pub(crate) type OpenModels = Arc<OnceLock<Arc<BTreeMap<String, Arc<Model>>>>>;

/// The task that looks for commands. Owner: the run. Dropping it ends the task; commands then stay unanswered.
#[derive(Debug)]
pub(crate) struct Inbox {
    looking: JoinHandle<()>,
    updates: Arc<Mutex<JoinSet<()>>>,
}

impl Inbox {
    /// Takes no more commands. Updates of weights under way are waited for, for a time: a server that is left in the middle of one stands
    /// still.
    pub(crate) async fn close(self) {
        self.looking.abort();
        let mut updates = std::mem::take(&mut *self.updates.lock());
        let all = async { while updates.join_next().await.is_some() {} };
        if timeout(UPDATES_MAX, all).await.is_err() {
            tracing::warn!("an update of weights was cut: its servers may stand still until the next one");
        }
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        self.looking.abort();
    }
}

/// What `weights` asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct WeightsCommand {
    /// The experiment's name of the model.
    pub(crate) model: String,
    #[serde(flatten)]
    pub(crate) update: WeightUpdate,
}

impl WeightsCommand {
    const WORD: &'static str = "weights ";

    /// The text of its row.
    pub(crate) fn text(&self) -> String {
        format!("{}{}", Self::WORD, serde_json::to_string(self).expect("texts and numbers can be written"))
    }

    fn parse(text: &str) -> Option<Result<WeightsCommand, serde_json::Error>> {
        text.strip_prefix(Self::WORD).map(serde_json::from_str)
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
    /// What an update of weights came to.
    Weights(WeightReport),
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
pub(crate) fn open(run: RunWriter, commander: Commander, models: OpenModels) -> Inbox {
    let updates = Arc::new(Mutex::new(JoinSet::new()));
    let of_weights = Arc::clone(&updates);
    let looking = tokio::spawn(async move {
        let mut turns = tokio::time::interval(Duration::from_millis(COMMANDS_EVERY_MS));
        turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            turns.tick().await;
            if let Err(error) = carry(&run, &commander, &models, &of_weights).await {
                tracing::warn!(%error, "commands to the run could not be looked for");
            }
        }
    });
    Inbox { looking, updates }
}

async fn carry(
    run: &RunWriter,
    commander: &Commander,
    models: &OpenModels,
    updates: &Mutex<JoinSet<()>>,
) -> Result<(), StoreError> {
    while let Some(CommandRow { id, command }) = run.next_command().await? {
        if !run.take_command(&id, now_ms()).await? {
            continue;
        }
        if let Some(asked) = WeightsCommand::parse(&command) {
            let (run, models) = (run.clone(), Arc::clone(models));
            let mut updates = updates.lock();
            while updates.try_join_next().is_some() {}
            updates.spawn(async move {
                let reply = match asked {
                    Ok(asked) => weights(&run, &models, &asked).await.unwrap_or_else(Reply::Refused),
                    Err(error) => Reply::Refused(format!("weights: {error}")),
                };
                if let Err(error) = answer(&run, &id, &reply).await {
                    tracing::warn!(%error, "the answer to a command could not be written");
                }
            });
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
        answer(run, &id, &reply).await?;
    }
    Ok(())
}

async fn answer(run: &RunWriter, id: &CommandId, reply: &Reply) -> Result<(), StoreError> {
    let paused = match reply {
        Reply::Done { paused, stops: false, .. } => Some(*paused),
        Reply::Done { .. } | Reply::Weights(_) | Reply::Refused(_) => None,
    };
    let text = serde_json::to_string(reply).expect("words and numbers can be written");
    run.answer_command(id, text, paused).await
}

/// Gives a model new weights, and notes them with the run. Errors: why not.
async fn weights(run: &RunWriter, models: &OpenModels, asked: &WeightsCommand) -> Result<Reply, String> {
    let WeightsCommand { model: name, update } = asked;
    let models = models.get().ok_or("its models are not open yet")?;
    let model = models.get(name).ok_or_else(|| {
        let known: Vec<&str> = models.keys().map(String::as_str).collect();
        format!("no model is called {name:?}; the experiment has {}", known.join(", "))
    })?;
    let report = model.update_weights(update).await.map_err(|error| format!("models.{name}: {error}"))?;
    if report.has_taken() {
        let noted = run
            .model_version(ModelVersion {
                model: name.clone(),
                label: update.label.clone(),
                train_step: update.train_step.and_then(|step| i64::try_from(step).ok()),
                taken_ms: now_ms(),
                report: serde_json::to_string(&report).expect("texts and numbers can be written"),
            })
            .await;
        noted.map_err(|error| {
            format!("the servers have the weights, but the store does not know of them: {error}")
        })?;
    }
    Ok(Reply::Weights(report))
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
