//! `[browsers.NAME]` of a case: what a browser shows, and what the actions in it lead to, in order.

use super::{CaseError, FailureText, ToolCall};
use espalier_core::host::browser::{Effect, ElementNote, Position, ScriptWorld, Settled};
use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// Longest side of a picture that is made for a case, pixels.
const SIDE_MAX: u32 = 8192;

/// A browser.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Browser {
    /// The tools that the experiment gives the model.
    #[serde(default)]
    pub tools: Vec<Tool>,
    /// What it shows at first.
    #[serde(default)]
    pub page: Page,
    /// What the actions lead to, in order.
    #[serde(default)]
    pub steps: Vec<Step>,
    /// A failure in the place of its start.
    #[serde(default)]
    pub fail: Option<FailureText>,
}

/// A tool as a model is told of it.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// For the model.
    #[serde(default)]
    pub description: String,
    /// JSON Schema of the arguments. Default: any object.
    #[serde(default = "any_object")]
    pub parameters: Value,
}

fn any_object() -> Value {
    json!({ "type": "object" })
}

/// What a browser shows. In a step, what is left out stays as it was.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Page {
    /// Address of the active tab; that of a browser that has just started is `about:blank`.
    #[serde(default)]
    pub url: Option<String>,
    /// Its title.
    #[serde(default)]
    pub title: Option<String>,
    /// All tabs. Default: one.
    #[serde(default)]
    pub tabs: Option<Vec<Tab>>,
    /// What `snapshot` gives.
    #[serde(default)]
    pub snapshot: Option<Snapshot>,
    /// What `screenshot` gives.
    #[serde(default)]
    pub screenshot: Option<Screenshot>,
    /// Values of expressions, in any order and as often as they are asked for.
    #[serde(default)]
    pub evaluate: Vec<Evaluation>,
    /// What `storage-state` gives.
    #[serde(default)]
    pub storage_state: Option<Value>,
}

/// A tab.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tab {
    /// Its address.
    pub url: String,
    /// Its title.
    #[serde(default)]
    pub title: String,
    /// Whether tools act in it. Default: the first one's are.
    #[serde(default)]
    pub is_active: bool,
}

/// A failure and nothing else.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Failed {
    /// `kind: text`.
    pub fail: FailureText,
}

/// A page as text.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "expected a text, or { fail = \"kind: text\" }")]
pub enum Snapshot {
    /// The outline.
    Text(String),
    /// A failure in its place.
    Failed(Failed),
}

/// A picture.
#[derive(Clone, Debug, Deserialize)]
#[serde(
    untagged,
    expecting = "expected a file beside the case, [WIDTH, HEIGHT] of a white picture, or { fail = \"kind: text\" }"
)]
pub enum Screenshot {
    /// A file beside the case.
    File(PathBuf),
    /// A white one of this size, as the viewport would give it.
    Size([u32; 2]),
    /// A failure in its place.
    Failed(Failed),
}

/// The value of an expression.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evaluation {
    /// The expression, as the plugin writes it.
    pub expression: String,
    /// Where it is evaluated, `page` or `isolated`; compared where it is given.
    #[serde(default)]
    pub world: Option<ScriptWorld>,
    /// Its value.
    #[serde(default)]
    pub value: Value,
    /// A failure in its place: `script: TypeError ...`.
    #[serde(default)]
    pub fail: Option<FailureText>,
}

/// What one action leads to.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Name of the tool.
    pub tool: String,
    /// Arguments, of which those that are named are compared.
    #[serde(default)]
    pub arguments: Map<String, Value>,
    /// What the model is told. Default: as browsers say it, without what it led to.
    #[serde(default)]
    pub text: String,
    /// Why it was not done: `stale-reference: text`.
    #[serde(default)]
    pub problem: Option<ProblemText>,
    /// The model ended the episode by it.
    #[serde(default)]
    pub ended: Option<End>,
    /// A message for the user.
    #[serde(default)]
    pub asked: Option<String>,
    /// A failure in the place of all steps of the call: `unavailable: the browser is lost`.
    #[serde(default)]
    pub fail: Option<FailureText>,
    /// The element it was on.
    #[serde(default)]
    pub element: Option<Strict<ElementNote>>,
    /// Where it acted.
    #[serde(default)]
    pub position: Option<Strict<Position>>,
    /// What had happened before it, by itself.
    #[serde(default)]
    pub meanwhile: Vec<Strict<Effect>>,
    /// What it led to.
    #[serde(default)]
    pub effects: Vec<Strict<Effect>>,
    /// How the page came to rest.
    #[serde(default)]
    pub settled: Option<Strict<Settled>>,
    /// How long it took.
    #[serde(default)]
    pub duration_ms: u64,
    /// What the browser shows from then on.
    #[serde(default)]
    pub page: Page,
}

/// The end of an episode.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct End {
    /// The answer.
    #[serde(default)]
    pub response: String,
    /// `success` or `failure`, of `terminate`.
    #[serde(default)]
    pub status: Option<String>,
}

/// Why an action was not done: `code: text`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct ProblemText {
    /// Word for programs.
    pub code: String,
    /// Sentence for the model.
    pub text: String,
}

impl TryFrom<String> for ProblemText {
    type Error = String;

    fn try_from(written: String) -> Result<ProblemText, String> {
        match written.split_once(':') {
            Some((code, text)) if !code.trim().is_empty() => {
                Ok(ProblemText { code: code.trim().to_owned(), text: text.trim().to_owned() })
            }
            _ => Err(format!(
                "invalid problem {written:?}: expected `code: text`, like \"stale-reference: e3 is not there any more\""
            )),
        }
    }
}

/// A value whose every key is one that its type has.
#[derive(Clone, Debug)]
pub struct Strict<T>(pub T);

/// What a case may leave out of a value, as JSON; inside of a case of an enum by its name.
pub trait Shortened: DeserializeOwned + Serialize {
    /// What is put there instead.
    fn left_out() -> Value;
}

impl Shortened for Effect {
    fn left_out() -> Value {
        json!({ "navigated": { "within_document": false }, "downloaded": { "length": 0 } })
    }
}

impl Shortened for ElementNote {
    fn left_out() -> Value {
        json!({ "role": "", "name": "", "tag": "" })
    }
}

impl Shortened for Position {
    fn left_out() -> Value {
        json!({})
    }
}

impl Shortened for Settled {
    fn left_out() -> Value {
        json!({ "after_ms": 0, "pending": [] })
    }
}

/// Puts into a value what was left out.
fn complete(value: &mut Value, left_out: Value) {
    let (Value::Object(value), Value::Object(left_out)) = (value, left_out) else { return };
    for (key, default) in left_out {
        match (value.get_mut(&key), default) {
            (Some(inner), default @ Value::Object(_)) => complete(inner, default),
            (Some(_), _) | (None, Value::Object(_)) => {}
            (None, default) => drop(value.insert(key, default)),
        }
    }
}

impl<'de, T: Shortened> Deserialize<'de> for Strict<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Strict<T>, D::Error> {
        let mut given = Value::deserialize(deserializer)?;
        complete(&mut given, T::left_out());
        let value: T = serde_json::from_value(given.clone()).map_err(Error::custom)?;
        let known = serde_json::to_value(&value).map_err(Error::custom)?;
        match unknown_key(&given, &known) {
            Some((key, keys)) => Err(Error::custom(format!("unknown key `{key}`, expected one of {keys}"))),
            None => Ok(Strict(value)),
        }
    }
}

/// The first key that is not known, with those that are.
fn unknown_key(given: &Value, known: &Value) -> Option<(String, String)> {
    let (Value::Object(given), Value::Object(known)) = (given, known) else { return None };
    given.iter().find_map(|(key, value)| match known.get(key) {
        Some(known) => unknown_key(value, known),
        None => {
            let keys: Vec<String> = known.keys().map(|key| format!("`{key}`")).collect();
            Some((key.clone(), keys.join(", ")))
        }
    })
}

impl Page {
    /// The file that it names, with its key.
    fn file(&self, key: &str) -> Option<(String, &Path)> {
        match &self.screenshot {
            Some(Screenshot::File(path)) => Some((format!("{key}.screenshot"), path)),
            _ => None,
        }
    }
}

impl Step {
    /// The call that it is for, as it is shown.
    pub fn call(&self) -> String {
        let arguments = self.arguments.clone();
        ToolCall { name: self.tool.clone(), arguments }.to_string()
    }

    fn outcomes(&self) -> Vec<&'static str> {
        let given = [
            ("problem", self.problem.is_some()),
            ("ended", self.ended.is_some()),
            ("asked", self.asked.is_some()),
            ("fail", self.fail.is_some()),
        ];
        given.into_iter().filter(|(_, is_given)| *is_given).map(|(key, _)| key).collect()
    }
}

impl Browser {
    /// The pictures beside the case that it names, with their keys.
    pub fn pictures(&self, name: &str) -> Vec<(String, PathBuf)> {
        let steps = self.steps.iter().enumerate();
        let later = steps.filter_map(|(place, step)| step.page.file(&step_key(name, place, ".page")));
        let all = self.page.file(&format!("browsers.{name}.page")).into_iter().chain(later);
        all.map(|(key, path)| (key, path.to_owned())).collect()
    }

    /// Refuses what no browser does.
    pub fn check(&self, name: &str) -> Result<(), CaseError> {
        let steps = self.steps.iter().enumerate();
        for (place, step) in steps.clone() {
            if let [one, other, ..] = step.outcomes()[..] {
                let key = step_key(name, place, "");
                let text =
                    format!("{key}: `{one}` and `{other}` are both given: an action comes to one of them");
                return Err(CaseError(text));
            }
            let listed = step.effects.iter().chain(&step.meanwhile);
            for Strict(effect) in listed {
                if let Effect::Downloaded { blob: Some(blob), .. } = effect {
                    let key = step_key(name, place, "");
                    let text =
                        format!("{key}: a download with the blob {blob:?}: a case has no bytes of downloads");
                    return Err(CaseError(text));
                }
            }
        }
        let later = steps.map(|(place, step)| (step_key(name, place, ".page"), &step.page));
        for (key, page) in [(format!("browsers.{name}.page"), &self.page)].into_iter().chain(later) {
            if let Some(Screenshot::Size([width, height])) = page.screenshot
                && [width, height].iter().any(|side| !(1..=SIDE_MAX).contains(side))
            {
                let text = format!(
                    "invalid {key}.screenshot [{width}, {height}]: expected a width and a height from 1 to {SIDE_MAX}"
                );
                return Err(CaseError(text));
            }
            let active = page.tabs.iter().flatten().filter(|tab| tab.is_active).count();
            if active > 1 || page.tabs.as_ref().is_some_and(Vec::is_empty) {
                return Err(CaseError(format!(
                    "invalid {key}.tabs: expected at least one tab, one of them active"
                )));
            }
        }
        Ok(())
    }
}

/// `browsers.main.steps[2].page`.
pub(crate) fn step_key(name: &str, place: usize, rest: &str) -> String {
    format!("browsers.{name}.steps[{place}]{rest}")
}

#[cfg(test)]
mod tests {
    use super::super::CaseFile;
    use espalier_plugin::World;

    /// What is said of a browser that is written so.
    fn refused(text: &str) -> String {
        let file = CaseFile::parse(&format!("{text}\n[task]\nid = \"a\"\ninstruction = \"b\""));
        let checked = file.and_then(|file| file.check(World::Harness));
        checked.expect_err("it is refused").0
    }

    #[test]
    fn what_no_browser_does_is_refused_by_its_place() {
        let step = |text: &str| format!("[[browsers.main.steps]]\ntool = \"click\"\n{text}");
        let all = [
            step("problem = \"covered: by a banner\"\nended = {}"),
            step("problem = \"covered\""),
            step("effects = [{ navigated = { url = \"/\", titel = \"A\", title = \"A\" } }]"),
            step("effects = [\"moved\"]"),
            step("effects = [{ downloaded = { name = \"a\", url = \"/a\", blob = \"b\", length = 1 } }]"),
            step("page = { tabs = [] }"),
            step("page = { screenshot = 7 }"),
            "[browsers.main.page]\nscreenshot = [0, 9]".to_owned(),
            "[browsers.main.page]\nsnapshot = { fial = \"other: x\" }".to_owned(),
            "[browsers.main]\nevaluate = []".to_owned(),
            "recorded = \"calls.json\"\n[browsers.main]".to_owned(),
        ];
        let told: Vec<String> = all.iter().map(|text| refused(text)).collect();
        insta::assert_snapshot!(told.join("\n\n"));
    }
}
