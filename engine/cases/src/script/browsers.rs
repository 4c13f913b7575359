//! The browsers of a case: what is shown, and what each action leads to, in order.

use super::{MemoryBlobs, Notes};
use crate::case::browser::{
    Browser, Evaluation, Failed, Page, ProblemText, Screenshot, Snapshot as Outline, Step, Strict,
    Tab as TabFile, step_key,
};
use crate::case::{FailureText, Pictures, ToolCall};
use crate::picture;
use crate::report::Problem;
use async_trait::async_trait;
use espalier_core::chat::Tool;
use espalier_core::failure::Failure;
use espalier_core::host::Blobs as _;
use espalier_core::host::browser::{
    Action, BrowserSession, BrowserStep, Browsers, Effect, Picture, PictureFormat, ScreenshotOptions,
    ScriptWorld, Snapshot, SnapshotOptions, StepOutcome, Tab,
};
use espalier_core::image::ImageKind;
use parking_lot::Mutex;
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

/// The browsers of one case.
pub(crate) struct ScriptedBrowsers {
    browsers: BTreeMap<String, Arc<ScriptedBrowser>>,
    notes: Notes,
}

struct ScriptedBrowser {
    name: String,
    script: Browser,
    state: Mutex<State>,
    pictures: Arc<Pictures>,
    blobs: Arc<MemoryBlobs>,
    notes: Notes,
}

/// How far a browser has come.
#[derive(Default)]
struct State {
    opened: bool,
    /// Calls of `act`.
    calls: usize,
    /// Steps of the script that were taken.
    taken: usize,
    shown: Shown,
    /// Keys of the values that were asked for.
    asked: BTreeSet<String>,
    /// What every call is told from then on.
    lost: Option<Failure>,
}

/// What a browser shows.
#[derive(Default)]
struct Shown {
    tabs: Vec<TabFile>,
    snapshot: Option<Outline>,
    screenshot: Option<Screenshot>,
    /// With their keys, the latest first.
    values: Vec<(String, Evaluation)>,
    storage_state: Option<Value>,
}

impl ScriptedBrowsers {
    pub(crate) fn new(
        browsers: BTreeMap<String, Browser>,
        pictures: &Arc<Pictures>,
        blobs: &Arc<MemoryBlobs>,
        notes: Notes,
    ) -> ScriptedBrowsers {
        let one = |(name, script): (String, Browser)| {
            let state = State { shown: Shown::first(&name, &script.page), ..State::default() };
            let browser = ScriptedBrowser {
                name: name.clone(),
                script,
                state: Mutex::new(state),
                pictures: Arc::clone(pictures),
                blobs: Arc::clone(blobs),
                notes: notes.clone(),
            };
            (name, Arc::new(browser))
        };
        ScriptedBrowsers { browsers: browsers.into_iter().map(one).collect(), notes }
    }

    /// Notes browsers that were not opened, actions that were not taken, values that were not asked for.
    pub(crate) fn note_rest(&self) {
        self.browsers.values().for_each(|browser| browser.note_rest());
    }
}

#[async_trait]
impl Browsers for ScriptedBrowsers {
    async fn open(&self, name: &str) -> Result<Arc<dyn BrowserSession>, Failure> {
        let Some(browser) = self.browsers.get(name) else {
            let text = format!("is not there, but the plugin opened the browser {name:?}");
            return Err(self.notes.unexpected(format!("browsers.{name}"), text));
        };
        browser.state.lock().opened = true;
        match &browser.script.fail {
            Some(failure) => Err(failure.0.clone()),
            None => Ok(Arc::clone(browser) as Arc<dyn BrowserSession>),
        }
    }
}

impl ScriptedBrowser {
    fn key(&self, rest: &str) -> String {
        format!("browsers.{}{rest}", self.name)
    }

    fn note_rest(&self) {
        let state = self.state.lock();
        if !state.opened {
            self.notes.add(Problem::new(self.key(""), "was not opened"));
            return;
        }
        let (taken, all) = (state.taken, self.script.steps.len());
        if taken < all && self.script.fail.is_none() {
            let text = format!("was not taken: the plugin took {taken} of {all} steps");
            self.notes.add(Problem::new(step_key(&self.name, taken, ""), text));
        }
        let unasked = state.shown.values.iter().rev().filter(|(key, _)| !state.asked.contains(key));
        for (key, value) in unasked {
            let text = format!("was not asked for: {}", short(&value.expression));
            self.notes.add(Problem::new(key.clone(), text));
        }
    }

    /// The failure of a browser that is lost, or one that is told now; after `unavailable` it is lost.
    fn fail(state: &mut State, failure: &FailureText) -> Failure {
        if let Failure::Unavailable(_) = failure.0 {
            state.lost = Some(failure.0.clone());
        }
        failure.0.clone()
    }

    /// What is shown of one sort, where the case has it.
    fn shown<T: Clone>(&self, what: &str, find: impl FnOnce(&Shown) -> Option<T>) -> Result<T, Failure> {
        let state = self.state.lock();
        if let Some(lost) = &state.lost {
            return Err(lost.clone());
        }
        find(&state.shown).ok_or_else(|| {
            let text = format!("is not there, but the plugin asked for it; steps taken: {}", state.taken);
            self.notes.unexpected(self.key(&format!(".page.{what}")), text)
        })
    }

    /// What the next step of the script says of this action.
    fn step(&self, state: &mut State, action: &Action) -> Result<BrowserStep, Failure> {
        let place = state.taken;
        let key = |rest: &str| step_key(&self.name, place, rest);
        let arguments: Value = serde_json::from_str(&action.arguments)
            .unwrap_or_else(|_| Value::String(action.arguments.clone()));
        let came = format!("call {} of the plugin is `{}`", state.calls, call(&action.name, &arguments));
        let Some(step) = self.script.steps.get(place) else {
            let text = format!("is not there, but {came}");
            return Err(self.notes.unexpected(key(""), text));
        };
        if step.tool != action.name {
            let text = format!("is `{}`, but {came}", step.call());
            return Err(self.notes.unexpected(key(""), text));
        }
        state.taken += 1;
        let expected = Value::Object(step.arguments.clone());
        if let Some(problem) = crate::compare::compare(&key(".arguments"), &expected, &arguments) {
            let text = format!("is not as expected: {came}");
            self.notes.add(Problem { text, ..problem });
        }
        if let Some(failure) = &step.fail {
            return Err(ScriptedBrowser::fail(state, failure));
        }
        state.shown.change(&key(".page"), &step.page);
        Ok(done(step))
    }
}

#[async_trait]
impl BrowserSession for ScriptedBrowser {
    fn tools(&self) -> Vec<Tool> {
        let tool = |tool: &crate::case::browser::Tool| Tool {
            name: tool.name.clone(),
            description: tool.description.clone(),
            parameters: tool.parameters.to_string(),
        };
        self.script.tools.iter().map(tool).collect()
    }

    async fn act(&self, actions: Vec<Action>) -> Result<Vec<BrowserStep>, Failure> {
        let mut state = self.state.lock();
        if let Some(lost) = &state.lost {
            return Err(lost.clone());
        }
        state.calls += 1;
        let mut steps = Vec::with_capacity(actions.len());
        let mut stop = None;
        for action in actions {
            let step = match stop {
                Some(reason) => skipped(&action, reason),
                None => self.step(&mut state, &action)?,
            };
            stop = stop.or_else(|| stop_reason(&step));
            steps.push(step);
        }
        Ok(steps)
    }

    async fn tabs(&self) -> Result<Vec<Tab>, Failure> {
        self.shown("tabs", |shown| Some(shown.tabs()))
    }

    async fn snapshot(&self, _: SnapshotOptions) -> Result<Snapshot, Failure> {
        match self.shown("snapshot", |shown| shown.snapshot.clone())? {
            Outline::Text(text) => Ok(Snapshot { tokens: text.len().div_ceil(4) as u32, left_out: 0, text }),
            Outline::Failed(Failed { fail }) => Err(ScriptedBrowser::fail(&mut self.state.lock(), &fail)),
        }
    }

    async fn screenshot(&self, options: ScreenshotOptions) -> Result<Picture, Failure> {
        let bytes = match self.shown("screenshot", |shown| shown.screenshot.clone())? {
            Screenshot::File(path) => self.file(&path)?,
            Screenshot::Size(size) => {
                let [width, height] = size.map(|side| scaled(side, options.scale));
                picture::white(width, height).map_err(|error| Failure::Invalid(error.to_string()))?
            }
            Screenshot::Failed(Failed { fail }) => {
                return Err(ScriptedBrowser::fail(&mut self.state.lock(), &fail));
            }
        };
        let asked = match options.format {
            PictureFormat::Png => ImageKind::Png,
            PictureFormat::Jpeg => ImageKind::Jpeg,
            PictureFormat::Webp => ImageKind::Webp,
        };
        let Some((kind, (width, height))) = ImageKind::of(&bytes).zip(picture::size(&bytes)) else {
            return Err(Failure::Invalid("the picture of the case is none".to_owned()));
        };
        if kind != asked {
            let text = format!(
                "is {}, but the plugin asked for {}; name a file of that kind",
                kind.media_type(),
                asked.media_type()
            );
            return Err(self.notes.unexpected(self.key(".page.screenshot"), text));
        }
        let blob = self.blobs.put(bytes, kind.media_type()).await?;
        Ok(Picture { blob, width, height })
    }

    async fn evaluate(&self, expression: String, world: ScriptWorld) -> Result<String, Failure> {
        let mut state = self.state.lock();
        if let Some(lost) = &state.lost {
            return Err(lost.clone());
        }
        let fits = |value: &Evaluation| {
            value.expression == expression && value.world.is_none_or(|expected| expected == world)
        };
        let found = state.shown.values.iter().find(|(_, value)| fits(value)).cloned();
        let Some((key, value)) = found else {
            let world = match world {
                ScriptWorld::Page => "page",
                ScriptWorld::Isolated => "isolated",
            };
            let text = format!(
                "has no value of `{}` in the world `{world}`, but the plugin asked for it; steps taken: {}",
                short(&expression),
                state.taken
            );
            return Err(self.notes.unexpected(self.key(".page.evaluate"), text));
        };
        state.asked.insert(key);
        match &value.fail {
            Some(failure) => Err(ScriptedBrowser::fail(&mut state, failure)),
            None => Ok(value.value.to_string()),
        }
    }

    async fn storage_state(&self) -> Result<String, Failure> {
        self.shown("storage_state", |shown| shown.storage_state.as_ref().map(Value::to_string))
    }
}

impl ScriptedBrowser {
    fn file(&self, path: &Path) -> Result<Vec<u8>, Failure> {
        self.pictures.get(path).cloned().ok_or_else(|| {
            let text = format!("{path:?} was not read");
            self.notes.unexpected(self.key(".page.screenshot"), text)
        })
    }
}

impl Shown {
    fn first(name: &str, page: &Page) -> Shown {
        let tabs = vec![TabFile { url: "about:blank".to_owned(), title: String::new(), is_active: true }];
        let mut shown = Shown { tabs, ..Shown::default() };
        shown.change(&format!("browsers.{name}.page"), page);
        shown
    }

    /// Shows what `page` has of the key `key`; the rest stays.
    fn change(&mut self, key: &str, page: &Page) {
        if let Some(tabs) = &page.tabs {
            self.tabs.clone_from(tabs);
        }
        let active = self.tabs.iter().position(|tab| tab.is_active).unwrap_or(0);
        if let Some(tab) = self.tabs.get_mut(active) {
            tab.is_active = true;
            tab.url = page.url.clone().unwrap_or_else(|| std::mem::take(&mut tab.url));
            tab.title = page.title.clone().unwrap_or_else(|| std::mem::take(&mut tab.title));
        }
        self.snapshot = page.snapshot.clone().or_else(|| self.snapshot.take());
        self.screenshot = page.screenshot.clone().or_else(|| self.screenshot.take());
        self.storage_state = page.storage_state.clone().or_else(|| self.storage_state.take());
        for (place, value) in page.evaluate.iter().enumerate() {
            self.values.insert(0, (format!("{key}.evaluate[{place}]"), value.clone()));
        }
    }

    fn tabs(&self) -> Vec<Tab> {
        let tab = |(index, tab): (usize, &TabFile)| Tab {
            index: index as u32,
            url: tab.url.clone(),
            title: tab.title.clone(),
            is_active: tab.is_active,
        };
        self.tabs.iter().enumerate().map(tab).collect()
    }
}

fn done(step: &Step) -> BrowserStep {
    let outcome = match (&step.problem, &step.ended, &step.asked) {
        (Some(ProblemText { code, text }), _, _) => {
            StepOutcome::Failed { code: code.clone(), text: text.clone() }
        }
        (_, Some(end), _) => {
            StepOutcome::Ended { response: end.response.clone(), status: end.status.clone() }
        }
        (_, _, Some(message)) => StepOutcome::Asked(message.clone()),
        _ => StepOutcome::Done,
    };
    let effects = |list: &[Strict<Effect>]| list.iter().map(|effect| effect.0.clone()).collect();
    let text = match &outcome {
        _ if !step.text.is_empty() => step.text.clone(),
        StepOutcome::Failed { code, text } => format!("Failed: `{}`: {code}: {text}.", step.tool),
        _ => format!("Succeed: `{}`.", step.tool),
    };
    BrowserStep {
        name: step.tool.clone(),
        outcome,
        element: step.element.as_ref().map(|element| element.0.clone()),
        position: step.position.as_ref().map(|position| position.0),
        meanwhile: effects(&step.meanwhile),
        effects: effects(&step.effects),
        settled: step.settled.as_ref().map(|settled| settled.0.clone()),
        duration_ms: step.duration_ms,
        text,
    }
}

/// Why the actions after this one are skipped, as browsers say it.
fn stop_reason(step: &BrowserStep) -> Option<&'static str> {
    match &step.outcome {
        StepOutcome::Failed { .. } => return Some("an action before it failed"),
        StepOutcome::Ended { .. } => return Some("the episode ended before it"),
        StepOutcome::Asked(_) => return Some("the user is asked first"),
        StepOutcome::Skipped(_) | StepOutcome::Done => {}
    }
    step.effects.iter().find_map(|effect| match effect {
        Effect::Navigated { within_document: false, .. } | Effect::NavigationFailed { .. } => {
            Some("an action before it opened another page")
        }
        Effect::TabOpened(tab)
            if tab.is_active && !["new_tab", "close_tab"].contains(&step.name.as_str()) =>
        {
            Some("an action before it opened another tab")
        }
        Effect::TabClosed(_) if step.name != "close_tab" => Some("an action before it closed the tab"),
        Effect::Dialog { .. } => Some("the page showed a dialog before it"),
        _ => None,
    })
}

fn skipped(action: &Action, reason: &str) -> BrowserStep {
    BrowserStep {
        name: action.name.clone(),
        outcome: StepOutcome::Skipped(reason.to_owned()),
        element: None,
        position: None,
        meanwhile: Vec::new(),
        effects: Vec::new(),
        settled: None,
        duration_ms: 0,
        text: format!("Skipped: `{}`: {reason}.", action.name),
    }
}

/// A call as it is shown.
fn call(name: &str, arguments: &Value) -> String {
    match arguments {
        Value::Object(arguments) => {
            ToolCall { name: name.to_owned(), arguments: Map::clone(arguments) }.to_string()
        }
        other => format!("{name} {other}"),
    }
}

fn scaled(side: u32, scale: Option<f64>) -> u32 {
    (f64::from(side) * scale.unwrap_or(1.0)).round().max(1.0) as u32
}

/// The beginning of an expression.
fn short(expression: &str) -> String {
    const SHOWN_MAX: usize = 120;
    let cut: String = expression.chars().take(SHOWN_MAX).collect();
    if cut.len() < expression.len() { format!("{cut}...") } else { cut }
}
