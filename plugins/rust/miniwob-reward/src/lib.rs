//! The reward `miniwob-reward`: how the episode of a MiniWoB++ task ended, as the engine's service has been told by its page.
//!
//! 1 if the episode is over and its raw reward, without the time that it took, is at least 1 (`at_least`); else 0. Some pages grade: by how near a
//! point is, or by how many of the boxes are right, of which some are right from the start.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The settings of the plugin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Name of the service of kind `miniwob`.
    pub service: String,
    /// The least raw reward that is a success, above 0 and at most 1. Default 1.
    #[schemars(range(max = 1.0), extend("exclusiveMinimum" = 0))]
    pub at_least: f64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { service: "miniwob".to_owned(), at_least: 1.0 }
    }
}

/// What the service knows of the episode.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Episode {
    /// The name of the task.
    pub task: String,
    /// The seed.
    pub seed: u64,
    /// What the page asks for; `None`: it was never opened.
    pub utterance: Option<String>,
    /// Whether it is over.
    pub done: bool,
    /// -1 to 1; 0 while it is not over.
    pub raw_reward: f64,
}

/// The score, and why.
pub fn score(episode: &Episode, at_least: f64) -> (f64, String) {
    let Episode { task, done, raw_reward, .. } = episode;
    match done {
        true if *raw_reward >= at_least => (1.0, format!("{task}: solved, raw reward {raw_reward}")),
        true => (0.0, format!("{task}: not solved, raw reward {raw_reward}")),
        false => (0.0, format!("{task}: the episode is not over")),
    }
}

#[cfg(target_arch = "wasm32")]
mod guest {
    use super::{Episode, Settings, score};
    use espalier_sdk::{Failure, RolloutView, Score, Service, serde_json};

    fn run(_: RolloutView, settings: Settings) -> Result<Vec<Score>, Failure> {
        let episode: Episode = Service::named(&settings.service).get("/state")?;
        let (value, reason) = score(&episode, settings.at_least);
        let extra = serde_json::to_string(&episode).ok();
        Ok(vec![Score { name: "reward".to_owned(), value, turn: None, reason, extra }])
    }

    espalier_sdk::reward!(Settings, run);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_episode_that_ended_well_scores() {
        let score = |done, raw_reward| {
            let (task, utterance) = ("click-button".to_owned(), None);
            score(&Episode { task, seed: 0, utterance, done, raw_reward }, 1.0)
        };
        assert_eq!(score(true, 1.0), (1.0, "click-button: solved, raw reward 1".to_owned()));
        assert_eq!(score(true, 0.3), (0.0, "click-button: not solved, raw reward 0.3".to_owned()));
        assert_eq!(score(true, -1.0), (0.0, "click-button: not solved, raw reward -1".to_owned()));
        assert_eq!(score(true, 0.0).0, 0.0);
        assert_eq!(score(false, 0.0), (0.0, "click-button: the episode is not over".to_owned()));
    }
}
