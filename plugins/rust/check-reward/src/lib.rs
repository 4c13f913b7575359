//! The reward `check-reward`: runs the task's `private.tests` in the sandbox that the harness left, or on clean ground, and
//! scores by how they end.

use espalier_sdk::Timeout;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[cfg(target_arch = "wasm32")]
mod guest;

/// The settings of the plugin.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Settings {
    /// Name of the sandbox of the task.
    pub sandbox: String,
    /// Where the tests run, unless the task sets it.
    #[serde(rename = "in")]
    pub place: Place,
    /// Time limit of the tests in seconds, unless the task sets it.
    #[schemars(range(min = 1, max = 86_400))]
    pub timeout_s: u64,
    /// Whether the last printed line `points: 3/4` gives the score instead of the exit code.
    pub points: bool,
    /// User that runs the tests; default: the user of the sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
}

/// Where tests run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// In the sandbox as the harness left it, for tasks about its state.
    #[default]
    Place,
    /// In a new sandbox with the changes of the harness: nothing else it left behind has an effect.
    Fresh,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            sandbox: "main".to_owned(),
            place: Place::Place,
            timeout_s: 300,
            points: false,
            user: None,
        }
    }
}

/// `private.tests` of a task.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tests {
    /// Shell text; exit code 0 is success.
    pub script: String,
    /// `90s`, `10m` or seconds.
    pub timeout: Option<Timeout>,
    /// See [`Place`].
    #[serde(rename = "in")]
    pub place: Option<Place>,
}

/// The tests of a task's private part, or what is wrong with it.
pub fn tests(private: Option<&str>) -> Result<Tests, String> {
    #[derive(Deserialize)]
    struct Private {
        tests: Option<Tests>,
    }
    let private = private.unwrap_or("{}");
    let private: Private =
        serde_json::from_str(private).map_err(|error| format!("private part of the task: {error}"))?;
    private.tests.ok_or_else(|| "the task has no `private.tests`, as {\"script\": \"...\"}".to_owned())
}

/// What tests came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// By themselves, with this code.
    ExitCode(i32),
    /// In another way, in words.
    Otherwise(String),
}

/// The score and why, for people.
pub fn score(ended: &Ended, output: &str, points: bool) -> (f64, String) {
    let last = last_line_bytes(output, 500);
    let printed = if last.is_empty() { "printed nothing".to_owned() } else { last };
    if points && let Some((got, of)) = output.lines().rev().find_map(points_of) {
        return (got as f64 / of as f64, format!("{got} of {of} points: {printed}"));
    }
    match ended {
        Ended::ExitCode(0) => (1.0, "passed".to_owned()),
        Ended::ExitCode(code) => (0.0, format!("exit code {code}: {printed}")),
        Ended::Otherwise(how) => (0.0, format!("{how}: {printed}")),
    }
}

/// `points: 3/4`, with no more got than there are.
fn points_of(line: &str) -> Option<(u64, u64)> {
    let (got, of) = line.trim().strip_prefix("points:")?.trim().split_once('/')?;
    let (got, of) = (got.trim().parse().ok()?, of.trim().parse().ok()?);
    (of > 0 && got <= of).then_some((got, of))
}

/// The end of a text, at most so many bytes.
fn last_line_bytes(text: &str, bytes_max: usize) -> String {
    let text = text.trim_end();
    let mut start = text.len().saturating_sub(bytes_max);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    text[start..].to_owned()
}

#[cfg(test)]
mod tests_of_it {
    use super::*;

    #[test]
    fn the_exit_code_scores_unless_points_do() {
        let check = |ended: Ended, output: &str, points: bool, expect: (f64, &str)| {
            let (value, reason) = score(&ended, output, points);
            assert_eq!((value, &*reason), expect, "{ended:?}, {output:?}");
        };
        check(Ended::ExitCode(0), "fine", false, (1.0, "passed"));
        check(Ended::ExitCode(2), "a\nb\n", false, (0.0, "exit code 2: a\nb"));
        check(Ended::Otherwise("timed out".to_owned()), "", false, (0.0, "timed out: printed nothing"));
        check(Ended::ExitCode(1), "points: 3/4", true, (0.75, "3 of 4 points: points: 3/4"));
        check(
            Ended::ExitCode(0),
            "points: 1/4\npoints: 2/4\n",
            true,
            (0.5, "2 of 4 points: points: 1/4\npoints: 2/4"),
        );
        check(Ended::ExitCode(1), "points: 5/4", true, (0.0, "exit code 1: points: 5/4"));
        check(Ended::ExitCode(0), "points: 0/4", false, (1.0, "passed"));
        let long = format!("{}é{}", "x".repeat(300), "y".repeat(499));
        check(Ended::ExitCode(1), &long, false, (0.0, &format!("exit code 1: {}", "y".repeat(499))));
    }

    #[test]
    fn the_private_part_says_what_to_run() {
        let read = |private: &str| tests(Some(private));
        let one = read(r#"{"tests":{"script":"true","timeout":"2m","in":"fresh"},"reference":1}"#).unwrap();
        assert_eq!((one.timeout, one.place), (Some(Timeout(120_000)), Some(Place::Fresh)));
        assert_eq!(read(r#"{"tests":{"script":"true","timeout":3}}"#).unwrap().timeout, Some(Timeout(3_000)));
        assert!(tests(None).unwrap_err().starts_with("the task has no `private.tests`"));
        for bad in ["0", "\"soon\"", "-1", "\"1d\"", "\"s\""] {
            let error = read(&format!(r#"{{"tests":{{"script":"","timeout":{bad}}}}}"#)).unwrap_err();
            assert!(error.contains("invalid timeout"), "{bad}: {error}");
        }
        assert!(read(r#"{"tests":{"scrip":"x"}}"#).unwrap_err().contains("unknown field `scrip`"));
    }

    #[test]
    fn settings_are_strict() {
        let settings: Settings = serde_json::from_str(r#"{"in":"fresh"}"#).unwrap();
        assert_eq!((settings.place, settings.timeout_s), (Place::Fresh, 300));
        assert!(serde_json::from_str::<Settings>(r#"{"where":"fresh"}"#).is_err());
    }
}
