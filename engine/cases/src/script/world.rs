//! The environment of a case: what each action leads to, in order.

use super::Notes;
use crate::case;
use crate::report::Problem;
use async_trait::async_trait;
use espalier_core::failure::Failure;
use espalier_core::host::{Environment, Environments, Observation, StepResult};
use parking_lot::Mutex;
use std::sync::Arc;

/// The environment of one case; `None`: the case has none.
pub(crate) struct ScriptedWorld(Arc<Shared>);

struct Shared {
    script: Option<case::Environment>,
    notes: Notes,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    opened: bool,
    /// Between a reset and the end of the episode.
    running: bool,
    steps: usize,
}

impl ScriptedWorld {
    pub(crate) fn new(script: Option<case::Environment>, notes: Notes) -> ScriptedWorld {
        ScriptedWorld(Arc::new(Shared { script, notes, state: Mutex::default() }))
    }

    /// Notes steps that were not taken.
    pub(crate) fn note_rest(&self) {
        let Some(script) = &self.0.script else { return };
        let taken = self.0.state.lock().steps;
        if taken < script.steps.len() {
            let text = format!("was not taken: the plugin took {taken} of {} steps", script.steps.len());
            self.0.notes.add(Problem::new(format!("environment.steps[{taken}]"), text));
        }
    }
}

#[async_trait]
impl Environments for ScriptedWorld {
    async fn open(&self) -> Result<Box<dyn Environment>, Failure> {
        if self.0.script.is_none() {
            return Err(self.0.notes.unexpected("environment", "is not there, but the plugin opened it"));
        }
        if std::mem::replace(&mut self.0.state.lock().opened, true) {
            return Err(Failure::Invalid("the environment is open already".to_owned()));
        }
        Ok(Box::new(OpenWorld(Arc::clone(&self.0))))
    }
}

struct OpenWorld(Arc<Shared>);

impl OpenWorld {
    fn script(&self) -> Result<&case::Environment, Failure> {
        self.0.script.as_ref().ok_or_else(|| Failure::Invalid("no environment".to_owned()))
    }
}

#[async_trait]
impl Environment for OpenWorld {
    async fn reset(&mut self) -> Result<Observation, Failure> {
        self.0.state.lock().running = true;
        Ok(seen(&self.script()?.reset))
    }

    async fn step(&mut self, action: String) -> Result<StepResult, Failure> {
        let script = self.script()?;
        let mut state = self.0.state.lock();
        if !state.running {
            let text = "the environment was not reset yet, or the episode is done";
            return Err(Failure::Invalid(text.to_owned()));
        }
        let place = state.steps;
        let key = format!("environment.steps[{place}]");
        let Some(step) = script.steps.get(place) else {
            let text = format!("is not there, but the plugin took the action {action:?}");
            return Err(self.0.notes.unexpected(key, text));
        };
        state.steps += 1;
        if let Some(expected) = step.action.as_deref().filter(|expected| *expected != action) {
            self.0.notes.add(Problem {
                key: format!("{key}.action"),
                text: "is another action than the plugin's".to_owned(),
                diff: crate::compare::lines(expected, &action),
            });
        }
        if let Some(failure) = &step.fail {
            return Err(failure.0.clone());
        }
        state.running = !step.done;
        Ok(StepResult {
            observation: seen(&step.observation),
            reward: step.reward,
            done: step.done,
            info: step.info.to_string(),
            extra: None,
        })
    }

    async fn actions(&mut self) -> Result<Vec<String>, Failure> {
        Ok(self.script()?.actions.clone())
    }
}

fn seen(text: &str) -> Observation {
    Observation { text: text.to_owned(), ..Observation::default() }
}
