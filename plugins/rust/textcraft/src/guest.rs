//! The component's exports.

espalier_sdk::bindings!("environment-plugin");

use crate::task::TaskData;
use crate::world::Game;
use bindings::espalier::base::types::TaskView;
use bindings::exports::espalier::base::configurable;
use bindings::exports::espalier::environment::provider::{Guest, Observation, StepResult};
use espalier_sdk::{NoSettings, serde_json::json};
use std::cell::RefCell;

thread_local! {
    /// The episode; one instance serves one rollout.
    static EPISODE: RefCell<Option<Game>> = const { RefCell::new(None) };
}

struct Plugin;

impl configurable::Guest for Plugin {
    fn settings_schema() -> String {
        espalier_sdk::schema_of::<NoSettings>()
    }
}

impl Guest for Plugin {
    fn reset(task: TaskView) -> Result<Observation, Failure> {
        report_panics();
        let data = TaskData::parse(&task.data).map_err(invalid)?;
        let world = Game::new(&data).map_err(invalid)?;
        EPISODE.set(Some(world));
        Ok(observation(data.opening()))
    }

    fn step(action: String) -> Result<StepResult, Failure> {
        EPISODE.with_borrow_mut(|episode| {
            let world = episode.as_mut().ok_or_else(|| invalid("step before reset"))?;
            let step = world.step(&action);
            Ok(StepResult {
                observation: observation(step.observation),
                reward: Some(step.reward),
                done: step.done,
                info: json!({ "accepted": step.accepted }).to_string(),
                extra: None,
            })
        })
    }

    fn actions() -> Result<Vec<String>, Failure> {
        Ok(Vec::new())
    }

    fn close() {
        EPISODE.set(None);
    }
}

fn observation(text: String) -> Observation {
    Observation { text, images: Vec::new(), extra: None }
}

bindings::export!(Plugin with_types_in bindings);
