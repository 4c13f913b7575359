//! What a test is, and how a solution is found in an answer.

use crate::settings::Settings;
use espalier_sdk::serde::Deserialize;
use espalier_sdk::serde_json::{self, Value};

/// One test.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(crate = "espalier_sdk::serde", untagged, deny_unknown_fields)]
pub enum Test {
    /// The solution is run with this standard input and has to print this, blanks at the ends of lines and of the text aside.
    Stdio {
        /// Standard input.
        input: String,
        /// Standard output.
        output: String,
    },
    /// Shell text beside the solution that has to end with 0.
    Script {
        /// The shell text.
        script: String,
    },
}

/// Most bytes of a written script: the kernel takes 128 KiB as one argument.
const SCRIPT_BYTES_MAX: usize = 100 << 10;

/// A test and whose it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// What is tested.
    pub test: Test,
    /// The rollout that wrote it, by its place; `None`: the task's own.
    pub rollout: Option<usize>,
}

impl Test {
    /// Whether a sandbox takes it.
    fn can_be_run(&self) -> bool {
        match self {
            Test::Stdio { .. } => true,
            Test::Script { script } => script.len() <= SCRIPT_BYTES_MAX && !script.contains('\0'),
        }
    }

    /// Whether a solution that printed this passes.
    pub fn accepts(&self, printed: &str) -> bool {
        match self {
            Test::Stdio { output, .. } => plain(output) == plain(printed),
            Test::Script { .. } => true,
        }
    }
}

fn plain(text: &str) -> String {
    text.trim_end().lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}

/// The task's own tests. Errors: what is wrong with them.
pub fn given(private: Option<&str>, settings: &Settings) -> Result<Vec<Origin>, String> {
    let private: Value = private.and_then(|text| serde_json::from_str(text).ok()).unwrap_or(Value::Null);
    let Some(list) = private.get(&settings.field) else { return Ok(Vec::new()) };
    let tests: Vec<Test> = Deserialize::deserialize(list).map_err(|error| {
        format!(
            "task.private.{}: expected a list of {{input, output}} or {{script}}: {error}",
            settings.field
        )
    })?;
    Ok(tests.into_iter().map(|test| Origin { test, rollout: None }).collect())
}

/// The tests that a rollout wrote. What is none is left out: it is the model's mistake, not the plugin's.
pub fn written(rollout: usize, data: Option<&str>, settings: &Settings) -> Vec<Origin> {
    let data: Value = data.and_then(|text| serde_json::from_str(text).ok()).unwrap_or(Value::Null);
    let list =
        settings.written.as_deref().and_then(|pointer| data.pointer(pointer)).and_then(Value::as_array);
    let tests =
        list.into_iter().flatten().filter_map(|test| Test::deserialize(test).ok()).filter(Test::can_be_run);
    let tests = tests.take(settings.written_max as usize);
    tests.map(|test| Origin { test, rollout: Some(rollout) }).collect()
}

/// The last fenced block of an answer, or all of it.
pub fn code(answer: &str) -> &str {
    espalier_sdk::fenced(answer).unwrap_or(answer)
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn the_solution_is_the_last_block() {
        for (answer, expect) in [
            ("print(1)", "print(1)"),
            ("```python\nprint(1)\n```", "print(1)\n"),
            ("first\n```\na\n```\nthen\n```py\nb\n```\ndone", "b\n"),
            ("```python\nprint(1)", "```python\nprint(1)"),
        ] {
            assert_eq!(code(answer), expect, "{answer}");
        }
    }

    #[test]
    fn tests_are_read_and_what_a_model_wrote_badly_is_left_out() {
        let settings = Settings { written: Some("/tests".to_owned()), written_max: 2, ..Settings::default() };
        let private = r#"{"unit_tests":[{"input":"1","output":"2"},{"script":"true"}]}"#;
        assert_eq!(given(Some(private), &settings).unwrap().len(), 2);
        assert_eq!(given(None, &settings), Ok(Vec::new()));
        let error = given(Some(r#"{"unit_tests":[{"input":"1"}]}"#), &settings).unwrap_err();
        assert!(error.starts_with("task.private.unit_tests: expected a list"), "{error}");
        let data = r#"{"tests":[{"input":"1"},{"input":"1","output":"1"},7,{"script":"x"},{"script":"y"}]}"#;
        let tests = written(3, Some(data), &settings);
        let script = Origin { test: Test::Script { script: "x".to_owned() }, rollout: Some(3) };
        assert_eq!((tests.len(), &tests[1]), (2, &script));
        assert_eq!(written(0, Some("null"), &settings), []);
        for (test, count) in [
            (serde_json::json!({ "script": "true" }), 1),
            (serde_json::json!({ "script": "true\0" }), 0),
            (serde_json::json!({ "script": "#".repeat(SCRIPT_BYTES_MAX + 1) }), 0),
            (serde_json::json!({ "input": "\0", "output": "" }), 1),
        ] {
            let data = serde_json::json!({ "tests": [test] }).to_string();
            assert_eq!(written(0, Some(&data), &settings).len(), count);
        }
    }

    #[test]
    fn outputs_are_equal_but_for_blanks_at_ends() {
        let test = Test::Stdio { input: String::new(), output: "1 2\n3".to_owned() };
        assert!(test.accepts("1 2 \n3\n\n") && !test.accepts("1 2 3") && !test.accepts(" 1 2\n3"));
    }
}
