//! `private.tests` of a task.

use crate::Settings;
use espalier_sdk::Timeout;
use espalier_test_logs::{Expected, Kind};
use serde::Deserialize;
use std::collections::BTreeMap;

/// What a task says of its tests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tests {
    /// Hidden files by path, from the sandbox's working folder or absolute.
    pub files: BTreeMap<String, Content>,
    /// Hidden tests as a diff against the state before the agent; its files are reset first.
    pub patch: Option<String>,
    /// Shell text that runs before the tests, such as an installation; it has to end with 0.
    pub prepare: Option<String>,
    /// Shell text that runs the tests.
    pub command: Option<String>,
    /// How its output is read.
    pub parser: Option<String>,
    /// A report that the command writes, to be read instead of its output.
    pub report: Option<Report>,
    /// Files into which the command writes the score itself, the first one there counting: a number, or JSON with `reward`.
    /// Nothing is parsed or expected then.
    pub score_files: Vec<String>,
    /// Tests that a solution makes pass.
    pub fail_to_pass: Vec<String>,
    /// Tests that it must not break.
    pub pass_to_pass: Vec<String>,
    /// Files, and folders with a `/` at their end, of which the agent's changes do not count.
    pub reset: Vec<String>,
    /// Modules that count as the library's own beside those that there are, with dots.
    pub modules: Vec<String>,
    /// `90s`, `10m` or seconds.
    pub timeout: Option<Timeout>,
    /// Where the tests run.
    #[serde(rename = "in")]
    pub place: Place,
    /// Whether pytest runs with the guard: checks that have to fail, and pytest's own report.
    pub guard: Option<bool>,
}

/// What stands in a hidden file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Content {
    /// Its text.
    Text(String),
    /// Its bytes.
    #[serde(with = "base64_form")]
    Bytes(Vec<u8>),
}

impl Content {
    /// The bytes to write.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Content::Text(text) => text.as_bytes(),
            Content::Bytes(bytes) => bytes,
        }
    }
}

/// A report of the tests' own making.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Report {
    /// From the working folder or absolute.
    pub path: String,
    /// How it is read.
    pub parser: String,
}

/// Where tests run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Place {
    /// In a new sandbox, with the agent's changes.
    #[default]
    Fresh,
    /// In the sandbox as the agent left it.
    Place,
}

/// A task's tests together with the experiment's settings.
#[derive(Clone, Debug)]
pub struct Job {
    /// As the task has them.
    pub tests: Tests,
    /// Shell text.
    pub command: String,
    /// Of the output.
    pub kind: Kind,
    /// Of the report, where the task names one.
    pub report: Option<(String, Kind)>,
    /// Milliseconds.
    pub timeout_ms: u64,
    /// Whether the guard runs.
    pub guard: bool,
    /// What solves it, as a diff.
    pub reference_patch: Option<String>,
}

impl Job {
    /// Reads the private part; the error names the key.
    pub fn read(private: Option<&str>, settings: &Settings) -> Result<Job, String> {
        #[derive(Deserialize)]
        struct Private {
            tests: Option<Tests>,
            reference: Option<serde_json::Value>,
        }
        let private: Private = serde_json::from_str(private.unwrap_or("{}"))
            .map_err(|error| format!("private part of the task: {error}"))?;
        let tests = private.tests.ok_or("the task has no `private.tests`, as {\"command\": \"pytest\", \"parser\": \"pytest\", \"fail_to_pass\": [\"...\"]}")?;
        let reference = private.reference.as_ref().and_then(|reference| reference.get("patch")?.as_str());
        let reference_patch = reference.map(str::to_owned);
        let missing = |key: &str| format!("`private.tests.{key}` is missing, and the settings name none");
        let command =
            tests.command.clone().or_else(|| settings.command.clone()).ok_or_else(|| missing("command"))?;
        let scores_itself = !tests.score_files.is_empty();
        let unread = scores_itself.then(|| Kind::Tap.name());
        let parser = tests.parser.clone().or_else(|| settings.parser.clone()).or(unread);
        let parser = parser.ok_or_else(|| missing("parser"))?;
        let kind = kind("parser", &parser)?;
        let report = tests.report.as_ref();
        let report = report
            .map(|report| Ok((report.path.clone(), self::kind("report.parser", &report.parser)?)))
            .transpose();
        let report = report.map_err(|error: String| error)?;
        let expects_nothing = tests.fail_to_pass.is_empty() && tests.pass_to_pass.is_empty();
        // Whoever lists the tests wants to find out what there is to expect.
        if expects_nothing && !scores_itself && !settings.list {
            return Err(
                "`private.tests` expects nothing: `fail_to_pass` and `pass_to_pass` are empty".to_owned()
            );
        }
        for path in tests.files.keys().chain(&tests.reset) {
            if path.is_empty() || path.contains('\0') || path.split('/').any(|part| part == "..") {
                return Err(format!("`private.tests`: path {path:?} is not below the working folder"));
            }
        }
        let is_name = |name: &str| {
            let part = |part: &str| {
                !part.is_empty()
                    && !part.starts_with(|first: char| first.is_ascii_digit())
                    && part.chars().all(|letter| letter.is_alphanumeric() || letter == '_')
            };
            name.split('.').all(part)
        };
        if let Some(name) = tests.modules.iter().find(|name| !is_name(name)) {
            return Err(format!(
                "`private.tests.modules`: {name:?} is not a module name such as \"package.module\""
            ));
        }
        let timeout_ms = tests
            .timeout
            .map_or(settings.timeout_s.saturating_mul(1_000), |Timeout(milliseconds)| milliseconds);
        let guard = tests.guard.unwrap_or(report.is_none()) && kind.is_pytest() && !scores_itself;
        Ok(Job { command, kind, report, timeout_ms, guard, reference_patch, tests })
    }

    /// What the tests are held against.
    pub fn expected(&self) -> Expected {
        Expected {
            fail_to_pass: self.tests.fail_to_pass.clone(),
            pass_to_pass: self.tests.pass_to_pass.clone(),
        }
    }
}

fn kind(key: &str, name: &str) -> Result<Kind, String> {
    Kind::from_name(name).ok_or_else(|| {
        let known: Vec<String> = Kind::ALL.iter().map(|kind| kind.name()).collect();
        format!("invalid `private.tests.{key}` {name:?}: expected one of {}", known.join(", "))
    })
}

/// `{"base64": "..."}`.
mod base64_form {
    use serde::{Deserialize, Deserializer, de::Error};

    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Form {
        base64: String,
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<u8>, D::Error> {
        let form = Form::deserialize(from)?;
        decode(&form.base64).ok_or_else(|| D::Error::custom("`base64` is not base64"))
    }

    /// The standard alphabet; padding and line ends may be missing or there.
    fn decode(text: &str) -> Option<Vec<u8>> {
        let mut out = Vec::with_capacity(text.len() / 4 * 3);
        let (mut bits, mut count) = (0_u32, 0);
        let text = text.trim_end_matches(['=', '\n', '\r']);
        for byte in text.bytes().filter(|byte| !matches!(byte, b'\n' | b'\r')) {
            let value = match byte {
                b'A'..=b'Z' => byte - b'A',
                b'a'..=b'z' => byte - b'a' + 26,
                b'0'..=b'9' => byte - b'0' + 52,
                b'+' => 62,
                b'/' => 63,
                _ => return None,
            };
            bits = bits << 6 | u32::from(value);
            count += 6;
            if count >= 8 {
                count -= 8;
                out.push((bits >> count) as u8);
            }
        }
        (count < 6).then_some(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(tests: &str) -> Result<Job, String> {
        Job::read(Some(&format!(r#"{{"tests":{tests},"reference":1}}"#)), &Settings::default())
    }

    #[test]
    fn a_task_says_what_to_run() {
        let job = read(
            r#"{"files":{"tests/test_a.py":"x","tests/a.bin":{"base64":"AP8B"}},"command":"pytest","parser":"pytest","fail_to_pass":["a"],"timeout":"2m"}"#,
        )
        .unwrap();
        assert_eq!((job.kind, job.timeout_ms, job.guard), (Kind::Pytest, 120_000, true));
        assert_eq!(job.tests.files["tests/a.bin"].bytes(), [0, 255, 1]);
        let other =
            read(r#"{"command":"go test","parser":"go-test","pass_to_pass":["a"],"in":"place"}"#).unwrap();
        assert_eq!((other.guard, other.tests.place, other.timeout_ms), (false, Place::Place, 1_200_000));
        let settings =
            Settings { command: Some("x".to_owned()), parser: Some("tap".to_owned()), ..Settings::default() };
        let job = Job::read(Some(r#"{"tests":{"fail_to_pass":["a"]}}"#), &settings).unwrap();
        assert_eq!((job.command.as_str(), job.kind), ("x", Kind::Tap));
    }

    #[test]
    fn a_task_that_is_wrong_says_where() {
        let check = |tests: &str, expect: &str| {
            let error = read(tests).unwrap_err();
            assert!(error.contains(expect), "{tests}: {error}");
        };
        check("null", "the task has no `private.tests`");
        check("{}", "`private.tests.command` is missing");
        check(r#"{"command":"x"}"#, "`private.tests.parser` is missing");
        check(r#"{"command":"x","parser":"nose"}"#, "\"nose\": expected one of pytest, unittest");
        check(r#"{"command":"x","parser":"pytest"}"#, "expects nothing");
        check(r#"{"command":"x","parser":"pytest","fail_to_pas":[]}"#, "unknown field `fail_to_pas`");
        check(
            r#"{"command":"x","parser":"pytest","fail_to_pass":["a"],"files":{"../a":"x"}}"#,
            "path \"../a\"",
        );
        check(r#"{"command":"x","parser":"pytest","fail_to_pass":["a"],"timeout":"1d"}"#, "invalid timeout");
        check(
            r#"{"command":"x","parser":"pytest","fail_to_pass":["a"],"modules":["a/b"]}"#,
            "`private.tests.modules`: \"a/b\"",
        );
        check(r#"{"files":{"a":{"base64":"A*"}}}"#, "did not match any variant");
    }

    #[test]
    fn settings_are_strict() {
        assert!(serde_json::from_str::<Settings>(r#"{"where":"fresh"}"#).is_err());
        assert_eq!(serde_json::from_str::<Settings>("{}").unwrap().timeout_s, 1_200);
    }
}
