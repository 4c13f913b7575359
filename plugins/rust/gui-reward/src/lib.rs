//! The reward `gui-reward`: what a rollout in a browser is worth by its format and its judge (Orchard's GUI experiments).
//!
//! `reward` is +1 where every answer parsed *and* the judge says that the task is done, -1 where answers that do not parse ended the
//! rollout, else 0. `format`, 1 where every answer parsed and else 0, is a score of its own.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The settings of the plugin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Name of the judge whose word counts; default: the only one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub judge: Option<String>,
    /// Name of the score of the judge that says whether the task is done.
    pub score: String,
    /// The least value of it that means success.
    pub success: f64,
    /// Whether there is no judge, and `format` is the only score.
    pub format_only: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { judge: None, score: "reward".to_owned(), success: 1.0, format_only: false }
    }
}

/// What the plugin is told of a rollout.
#[derive(Clone, Debug, PartialEq)]
pub struct Rollout<'a> {
    /// How it ended.
    pub stop_reason: &'a str,
    /// `data` of the harness's report.
    pub data: Value,
    /// `judges` of the rollout's `extra`.
    pub judges: Value,
    /// By answer of the policy, the calls of tools that could be read.
    pub calls: Vec<usize>,
}

/// A score: name, value, why.
pub type Scored = (&'static str, f64, String);

/// The scores of a rollout. Errors: what is missing, for the reward's failure.
pub fn scores(rollout: &Rollout<'_>, settings: &Settings) -> Result<Vec<Scored>, String> {
    let errors = format_errors(rollout);
    let parsed = errors == 0;
    let told = format!("{errors} of {} answers did not parse", rollout.calls.len());
    let format = ("format", if parsed { 1.0 } else { 0.0 }, told.clone());
    if settings.format_only {
        return Ok(vec![format]);
    }
    let (value, why) = if rollout.stop_reason == "limit-format" {
        (-1.0, format!("{told}, the last of them in a row"))
    } else {
        let success = is_success(&rollout.judges, settings)?;
        let judged = if success { "the judge says success" } else { "the judge does not say success" };
        (if parsed && success { 1.0 } else { 0.0 }, format!("{told}; {judged}"))
    };
    Ok(vec![("reward", value, why), format])
}

/// Answers that did not parse: by the harness's own count (`format_errors`), which knows of tools and arguments; where it gives none,
/// those without a call that can be read.
fn format_errors(rollout: &Rollout<'_>) -> u64 {
    let counted = rollout.data.get("format_errors").and_then(Value::as_u64);
    let seen = || rollout.calls.iter().filter(|calls| **calls == 0).count() as u64;
    counted.unwrap_or_else(seen)
}

fn is_success(judges: &Value, settings: &Settings) -> Result<bool, String> {
    let judges = judges.as_array().map(Vec::as_slice).unwrap_or_default();
    let name = |judge: &Value| judge["name"].as_str().unwrap_or_default().to_owned();
    let names = || judges.iter().map(name).collect::<Vec<_>>().join(", ");
    let judge = match (&settings.judge, judges) {
        (Some(wanted), _) => judges.iter().find(|judge| name(judge) == *wanted).ok_or_else(|| {
            format!(
                "settings.judge is `{wanted}`, the experiment has {}: name one of [[judges]]",
                some(&names())
            )
        })?,
        (None, [only]) => only,
        (None, []) => {
            return Err(
                "there is no judge: add one under [[judges]], with `weight = 0`, or set `format_only`"
                    .to_owned(),
            );
        }
        (None, _) => {
            return Err(format!("which judge counts is not said: set `judge` to one of {}", names()));
        }
    };
    if let Some(why) = judge["failed"].as_str() {
        return Err(format!("judge {} failed: {why}", name(judge)));
    }
    let scores = judge["scores"].as_array().map(Vec::as_slice).unwrap_or_default();
    let score = scores.iter().find(|score| score["name"] == settings.score.as_str());
    let value = score.and_then(|score| score["value"].as_f64());
    let value = value.ok_or_else(|| format!("judge {} gives no score `{}`", name(judge), settings.score))?;
    Ok(value >= settings.success)
}

fn some(names: &str) -> &str {
    if names.is_empty() { "none" } else { names }
}

#[cfg(target_arch = "wasm32")]
mod guest {
    use super::{Rollout, Settings, scores};
    use espalier_sdk::{Failure, RolloutView, Score, invalid};

    fn run(rollout: RolloutView, settings: Settings) -> Result<Vec<Score>, Failure> {
        let data = rollout.report.as_ref().and_then(|report| serde_json::from_str(&report.data).ok());
        let calls = rollout.turns.iter().map(|turn| turn.tool_calls.len());
        let told = Rollout {
            stop_reason: &rollout.stop_reason,
            data: data.unwrap_or_default(),
            judges: rollout.more()["judges"].take(),
            calls: calls.collect(),
        };
        let scores = scores(&told, &settings).map_err(invalid)?;
        Ok(scores.into_iter().map(|(name, value, why)| Score::named(name, value).because(why)).collect())
    }

    espalier_sdk::reward!(Settings, run);
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rollout(stop_reason: &str, errors: u64, judge: Option<f64>) -> Rollout<'_> {
        let judges = match judge {
            Some(value) => {
                json!([{ "name": "gui-judge", "scores": [{ "name": "reward", "value": value }], "failed": null }])
            }
            None => json!([]),
        };
        let calls = vec![1; 4];
        Rollout { stop_reason, data: json!({ "turns": 4, "format_errors": errors }), judges, calls }
    }

    #[test]
    fn the_reward_is_one_only_where_every_turn_parsed_and_the_judge_says_success() {
        for (stop_reason, errors, judge, reward, format) in [
            ("submitted", 0, 1.0, 1.0, 1.0),
            ("submitted", 1, 1.0, 0.0, 0.0),
            ("submitted", 0, 0.0, 0.0, 1.0),
            ("submitted", 0, 0.5, 0.0, 1.0),
            ("submitted", 2, 0.0, 0.0, 0.0),
            ("gave-up", 0, 0.0, 0.0, 1.0),
            ("limit-turns", 0, 1.0, 1.0, 1.0),
            ("limit-turns", 0, 0.0, 0.0, 1.0),
            ("limit-format", 3, 0.0, -1.0, 0.0),
            ("limit-format", 3, 1.0, -1.0, 0.0),
        ] {
            let scores = scores(&rollout(stop_reason, errors, Some(judge)), &Settings::default()).unwrap();
            let values: Vec<(&str, f64)> = scores.iter().map(|(name, value, _)| (*name, *value)).collect();
            assert_eq!(values, [("reward", reward), ("format", format)], "{stop_reason} {errors} {judge}");
        }
        let told = &scores(&rollout("submitted", 1, Some(1.0)), &Settings::default()).unwrap()[0].2;
        assert_eq!(told, "1 of 4 answers did not parse; the judge says success");
    }

    #[test]
    fn without_the_harness_s_count_an_answer_parses_that_has_a_call_that_can_be_read() {
        let mut one = rollout("submitted", 0, Some(1.0));
        one.data = Value::Null;
        assert_eq!(scores(&one, &Settings::default()).unwrap()[0].1, 1.0);
        one.calls[2] = 0;
        assert_eq!(scores(&one, &Settings::default()).unwrap()[0].1, 0.0);
    }

    #[test]
    fn a_judge_that_is_not_there_or_failed_is_a_failure_and_no_0() {
        let error = |one: &Rollout<'_>, settings: &Settings| scores(one, settings).unwrap_err();
        let plain = Settings::default();
        assert!(error(&rollout("submitted", 0, None), &plain).starts_with("there is no judge"));
        let named = Settings { judge: Some("strict".to_owned()), ..Settings::default() };
        let told = error(&rollout("submitted", 0, Some(1.0)), &named);
        assert_eq!(told, "settings.judge is `strict`, the experiment has gui-judge: name one of [[judges]]");
        let other = Settings { score: "success".to_owned(), ..Settings::default() };
        assert_eq!(
            error(&rollout("submitted", 0, Some(1.0)), &other),
            "judge gui-judge gives no score `success`"
        );
        let mut failed = rollout("submitted", 0, Some(1.0));
        failed.judges[0]["failed"] = json!("no server");
        assert_eq!(error(&failed, &plain), "judge gui-judge failed: no server");
        let mut two = rollout("submitted", 0, Some(1.0));
        two.judges = json!([{ "name": "a" }, { "name": "b" }]);
        assert_eq!(error(&two, &plain), "which judge counts is not said: set `judge` to one of a, b");
        // What needs no judge asks none.
        assert_eq!(scores(&rollout("limit-format", 3, None), &plain).unwrap()[0].1, -1.0);
        let format = Settings { format_only: true, ..Settings::default() };
        assert_eq!(scores(&rollout("submitted", 0, None), &format).unwrap().len(), 1);
    }
}
