//! The harness `reference`: carries out what the task names as its solution: actions in its environment, a script or a
//! patch in its sandbox `main`, or an answer. A task whose reference does not score full is broken; `espalier task check` finds it by this
//! harness.

use serde::Deserialize;

#[cfg(target_arch = "wasm32")]
mod guest;

/// `private.reference`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reference {
    /// Actions for the environment, in order.
    Actions(Vec<String>),
    /// Shell text for the sandbox; it has to end with 0.
    Script(String),
    /// A diff for the sandbox's working folder.
    Patch(String),
    /// The answer to report.
    Answer(String),
}

/// The task's reference, or what is wrong with its private part.
pub fn reference(private: &str) -> Result<Reference, String> {
    #[derive(Deserialize)]
    struct Private {
        reference: Option<Reference>,
    }
    let private: Private =
        serde_json::from_str(private).map_err(|error| format!("private part of the task: {error}"))?;
    private.reference.ok_or_else(|| "the task has no `private.reference`".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_form_is_known() {
        let check = |private: &str, expect: Reference| assert_eq!(reference(private).unwrap(), expect);
        check(
            r#"{"reference":{"actions":["a","b"]},"more":1}"#,
            Reference::Actions(vec!["a".to_owned(), "b".to_owned()]),
        );
        check(r#"{"reference":{"script":"x"}}"#, Reference::Script("x".to_owned()));
        check(r#"{"reference":{"patch":"x"}}"#, Reference::Patch("x".to_owned()));
        check(r#"{"reference":{"answer":"x"}}"#, Reference::Answer("x".to_owned()));
        assert_eq!(reference("{}").unwrap_err(), "the task has no `private.reference`");
        for bad in ["[]", r#"{"reference":{"steps":[]}}"#] {
            assert!(reference(bad).unwrap_err().starts_with("private part of the task: "), "{bad}");
        }
    }
}
