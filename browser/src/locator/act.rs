//! Actions on the element of a locator, and the waiting before them.

use super::Locator;
use super::find::{InMain, Injected};
use crate::deadline::Deadline;
use crate::error::{BrowserError, Result};
use crate::frame::Frame;
use crate::handle::JsHandle;
use crate::input::{ClickOptions, Point};
use crate::page::Page;
use crate::protocol::{Done, Raw};
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

/// Waits in the page until the element is as the action needs it, and does what can be done there: `todo` is the name of a
/// function of the injected script, or null; `point` asks where to click. Answers with what came of it, or with what is
/// missing at the end of the time.
const PREPARE: &str = "async function(steps, o) {
  const end = performance.now() + o.limit;
  const pauses = [0, 20, 100, 100, 500];
  let last = null;
  for (let attempt = 0; ; attempt++) {
    const left = () => Math.max(0, end - performance.now());
    if (o.states.includes('editable')) {
      // What takes no text will never take any: the function says so.
      const [first] = this.query(steps);
      const states = first === undefined ? {} : this.states(first);
      if (states.visible && states.enabled && states.editable === null) this[o.todo](first, ...o.args);
    }
    const found = await this.waitFor(steps, o.states, { limit_ms: left(), strict: true });
    const { element, count } = found;
    if (count > 1) return { count, samples: this.query(steps).slice(0, 5).map(one => this.describe(one)) };
    const description = element === null ? null : this.describe(element);
    if (!found.reached) return { problem: found.missing, description };
    let problem = null;
    // A frame that is scrolled away in the page is not drawn, so that nothing in it ever comes to rest.
    if (o.stable) this.scrollIntoView(element, o.nested && attempt === 0 ? 2 : attempt);
    if (o.stable && !(await this.stable(element, Math.min(1000, left())))) problem = 'stable';
    let value = null;
    if (problem === null && o.point) {
      value = this.clickPoint(element, o.position, attempt);
      problem = value.problem ?? null;
      if (problem === null && !o.force) {
        const hit = this.hitTarget(element, value);
        if (hit !== null) problem = 'covered by ' + (hit.from ?? hit.description);
      }
    }
    if (problem === null && o.todo !== null) {
      value = this[o.todo](element, ...o.args);
      if (value !== null && typeof value === 'object') {
        if ('missing' in value) problem = 'missing ' + JSON.stringify(value.missing);
        else if ('disabled' in value) problem = 'option ' + JSON.stringify(value.disabled);
      }
    }
    if (problem === null) return { done: true, value, description };
    // The last look may have been cut short while the box was watched; the one before says more.
    if (left() === 0) return { problem: problem === 'stable' ? last ?? problem : problem, description };
    if (problem !== 'stable' || last === null) last = problem;
    await new Promise(resolve => setTimeout(resolve, Math.min(left(), pauses[Math.min(attempt, 4)])));
  }
}";

/// Chromium takes an empty list of files for no change.
const NO_FILES: &str = "input => {
  input.value = '';
  input.dispatchEvent(new Event('input', { bubbles: true, composed: true }));
  input.dispatchEvent(new Event('change', { bubbles: true }));
}";

/// What the page answers to `PREPARE`.
#[derive(Debug, Deserialize)]
struct Prepared {
    #[serde(default)]
    done: bool,
    #[serde(default)]
    value: Value,
    problem: Option<String>,
    description: Option<String>,
    #[serde(default)]
    count: usize,
    #[serde(default)]
    samples: Vec<String>,
}

/// What an action waits for.
#[derive(Clone, Debug)]
struct Needs {
    /// What is being done, for messages: `click`.
    action: &'static str,
    states: &'static [&'static str],
    stable: bool,
    point: bool,
    position: Option<Point>,
    force: bool,
    todo: Option<&'static str>,
    args: Vec<Value>,
}

impl Needs {
    fn new(action: &'static str, states: &'static [&'static str]) -> Needs {
        Needs {
            action,
            states,
            stable: false,
            point: false,
            position: None,
            force: false,
            todo: None,
            args: Vec::new(),
        }
    }

    /// A place to click at.
    fn at(action: &'static str, states: &'static [&'static str], options: &ActionOptions) -> Needs {
        let states = if options.force { ATTACHED } else { states };
        Needs {
            stable: !options.force,
            point: true,
            position: options.position,
            force: options.force,
            ..Needs::new(action, states)
        }
    }

    fn todo(mut self, function: &'static str, args: Vec<Value>) -> Needs {
        self.todo = Some(function);
        self.args = args;
        self
    }

    fn json(&self, frame: &Frame, deadline: Deadline) -> Value {
        json!({
            "limit": deadline.in_page_ms(), "nested": frame.parent().is_some(), "states": self.states, "stable": self.stable, "point": self.point, "force": self.force,
            "position": self.position.map(|at| json!({ "x": at.x, "y": at.y })), "todo": self.todo, "args": self.args,
        })
    }
}

const ATTACHED: &[&str] = &["attached"];
const VISIBLE: &[&str] = &["visible"];
const ENABLED: &[&str] = &["visible", "enabled"];
const EDITABLE: &[&str] = &["visible", "enabled", "editable"];

/// How an action is done.
#[derive(Clone, Debug, Default)]
pub struct ActionOptions {
    /// Default: that of the context.
    pub timeout: Option<Duration>,
    /// Where on the element, from the top left corner inside its border. Default: the middle of what is visible of it.
    pub position: Option<Point>,
    /// Whether nothing is waited for but that it is attached. Default: false.
    pub force: bool,
    /// Button, count, modifiers and delay of clicks.
    pub click: ClickOptions,
}

impl ActionOptions {
    /// With this timeout.
    pub fn within(timeout: Duration) -> ActionOptions {
        ActionOptions { timeout: Some(timeout), ..ActionOptions::default() }
    }
}

/// What [`Locator::wait_for`] waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ElementState {
    /// It is in the document.
    Attached,
    /// It is not in the document.
    Detached,
    /// It has a box and is not hidden.
    #[default]
    Visible,
    /// It is not in the document, has no box, or is hidden.
    Hidden,
}

/// An option of a drop-down list, by all that is given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SelectOption {
    /// Its value.
    pub value: Option<String>,
    /// Its text.
    pub label: Option<String>,
    /// From 0.
    pub index: Option<usize>,
}

impl SelectOption {
    fn json(&self) -> Value {
        let mut option = serde_json::Map::new();
        let texts = [("value", &self.value), ("label", &self.label)];
        for (key, text) in texts {
            if let Some(text) = text {
                option.insert(key.to_owned(), json!(text));
            }
        }
        if let Some(index) = self.index {
            option.insert("index".to_owned(), json!(index));
        }
        Value::Object(option)
    }
}

/// The absolute paths of files, as the page's browser knows them.
pub(crate) async fn input_paths(page: &Page, files: &[impl AsRef<Path>]) -> Result<Vec<String>> {
    let mut paths = Vec::new();
    for file in files {
        let file = file.as_ref();
        if page.context().inner.browser.is_remote() {
            paths.push(file.display().to_string());
            continue;
        }
        let path = tokio::fs::canonicalize(file).await;
        let path =
            path.map_err(|error| BrowserError::invalid(format!("file {}: {error}", file.display())))?;
        paths.push(path.display().to_string());
    }
    Ok(paths)
}

impl Locator {
    /// Clicks it: waits until it is visible, stable, enabled and not covered, scrolls to it and clicks its middle.
    pub async fn click(&self) -> Result<()> {
        self.click_with(ActionOptions::default()).await
    }

    /// Like [`click`](Self::click).
    pub async fn click_with(&self, options: ActionOptions) -> Result<()> {
        let deadline = self.page().deadline_of(options.timeout);
        let needs = Needs::at("clicked", ENABLED, &options);
        let at = self.point(&needs, deadline).await?;
        self.page().mouse().click_within(at, &options.click, deadline).await
    }

    /// Double-clicks it.
    pub async fn double_click(&self) -> Result<()> {
        let click = ClickOptions { count: 2, ..ClickOptions::default() };
        self.click_with(ActionOptions { click, ..ActionOptions::default() }).await
    }

    /// Touches it, in contexts with a touch screen.
    pub async fn tap(&self) -> Result<()> {
        let deadline = self.page().deadline();
        let at = self.point(&Needs::at("touched", ENABLED, &ActionOptions::default()), deadline).await?;
        self.page().touchscreen().tap(at.x, at.y).await
    }

    /// Moves the mouse over it.
    pub async fn hover(&self) -> Result<()> {
        self.hover_with(ActionOptions::default()).await
    }

    /// Like [`hover`](Self::hover).
    pub async fn hover_with(&self, options: ActionOptions) -> Result<()> {
        let deadline = self.page().deadline_of(options.timeout);
        let at = self.point(&Needs::at("hovered over", VISIBLE, &options), deadline).await?;
        self.page().mouse().move_within(at, 1, deadline).await
    }

    /// Drags it to the middle of another element.
    pub async fn drag_to(&self, target: &Locator) -> Result<()> {
        let deadline = self.page().deadline();
        let options = ActionOptions::default();
        let from = self.point(&Needs::at("dragged", VISIBLE, &options), deadline).await?;
        let mouse = self.page().mouse();
        mouse.move_within(from, 1, deadline).await?;
        let to = target.point(&Needs::at("dropped on", VISIBLE, &options), deadline).await?;
        // Scrolling to the target may have moved the element.
        let from = self.point(&Needs::at("dragged", VISIBLE, &options), deadline).await?;
        mouse.drag_within(from, to, deadline).await
    }

    /// Replaces the text of an input, a text area or an editable element, at once. Dates, times, colours and ranges are
    /// set in the form of their value.
    pub async fn fill(&self, text: &str) -> Result<()> {
        self.fill_with(text, ActionOptions::default()).await
    }

    /// Like [`fill`](Self::fill).
    pub async fn fill_with(&self, text: &str, options: ActionOptions) -> Result<()> {
        let deadline = self.page().deadline_of(options.timeout);
        let states = if options.force { ATTACHED } else { EDITABLE };
        let needs = Needs::new("filled", states).todo("fill", vec![json!(text)]);
        let prepared = self.prepare(&needs, deadline).await?;
        if prepared.value == json!("done") {
            return Ok(());
        }
        let keyboard = self.page().keyboard();
        match text {
            "" => keyboard.press_within("Delete", deadline).await,
            _ => keyboard.insert_within(text, deadline).await,
        }
    }

    /// Removes its text.
    pub async fn clear(&self) -> Result<()> {
        self.fill("").await
    }

    /// Gives it the focus and types a text key by key: see [`Keyboard::type_text`](crate::Keyboard::type_text).
    pub async fn type_text(&self, text: &str) -> Result<()> {
        let deadline = self.page().deadline();
        self.prepare(&Needs::new("typed into", ATTACHED).todo("focus", Vec::new()), deadline).await?;
        self.page().keyboard().type_within(text, deadline).await
    }

    /// Gives it the focus and presses keys: see [`Keyboard::press`](crate::Keyboard::press).
    pub async fn press(&self, keys: &str) -> Result<()> {
        let deadline = self.page().deadline();
        self.prepare(&Needs::new("focused", ATTACHED).todo("focus", Vec::new()), deadline).await?;
        self.page().keyboard().press_within(keys, deadline).await
    }

    /// Checks a checkbox or radio button by a click, where it is not checked.
    pub async fn check(&self) -> Result<()> {
        self.set_checked(true).await
    }

    /// Unchecks a checkbox by a click, where it is checked.
    pub async fn uncheck(&self) -> Result<()> {
        self.set_checked(false).await
    }

    /// Checks or unchecks a checkbox by a click, where it is not so yet.
    pub async fn set_checked(&self, checked: bool) -> Result<()> {
        let deadline = self.page().deadline();
        let states = Needs::new("checked", ATTACHED).todo("states", Vec::new());
        let now = |prepared: Prepared| prepared.value["checked"].clone();
        match now(self.prepare(&states, deadline).await?) {
            Value::Null => {
                return Err(BrowserError::invalid(format!("{self}: expected a checkbox or radio button")));
            }
            state if state == json!(checked) => return Ok(()),
            _ => {}
        }
        let at = self.point(&Needs::at("clicked", ENABLED, &ActionOptions::default()), deadline).await?;
        self.page().mouse().click_within(at, &ClickOptions::default(), deadline).await?;
        if now(self.prepare(&states, deadline).await?) == json!(checked) {
            return Ok(());
        }
        Err(BrowserError::invalid(format!("{self}: the click did not change whether it is checked")))
    }

    /// Selects the option with this value or text in a drop-down list. Returns the values that are selected then.
    pub async fn select_option(&self, option: &str) -> Result<Vec<String>> {
        self.select(vec![json!(option)]).await
    }

    /// Selects the options with these values or texts and no others. Waits until all are there.
    pub async fn select_texts(&self, options: &[&str]) -> Result<Vec<String>> {
        self.select(options.iter().map(|option| json!(option)).collect()).await
    }

    /// Selects these options and no others. Waits until all are there.
    pub async fn select_options(&self, options: &[SelectOption]) -> Result<Vec<String>> {
        self.select(options.iter().map(SelectOption::json).collect()).await
    }

    async fn select(&self, wanted: Vec<Value>) -> Result<Vec<String>> {
        let needs = Needs::new("selected from", ENABLED).todo("selectOptions", vec![Value::Array(wanted)]);
        let prepared = self.prepare(&needs, self.page().deadline()).await?;
        let selected = prepared.value["selected"].as_array().into_iter().flatten();
        Ok(selected.filter_map(|value| value.as_str().map(str::to_owned)).collect())
    }

    /// Gives it the focus.
    pub async fn focus(&self) -> Result<()> {
        let needs = Needs::new("focused", ATTACHED).todo("focus", Vec::new());
        self.prepare(&needs, self.page().deadline()).await.map(drop)
    }

    /// Takes the focus away.
    pub async fn blur(&self) -> Result<()> {
        let needs = Needs::new("blurred", ATTACHED).todo("blur", Vec::new());
        self.prepare(&needs, self.page().deadline()).await.map(drop)
    }

    /// Selects its text.
    pub async fn select_text(&self) -> Result<()> {
        let needs = Needs::new("selected", VISIBLE).todo("selectText", Vec::new());
        self.prepare(&needs, self.page().deadline()).await.map(drop)
    }

    /// Scrolls so that it is seen, where it is not.
    pub async fn scroll_into_view(&self) -> Result<()> {
        let needs = Needs::new("scrolled to", ATTACHED).todo("scrollIntoView", Vec::new());
        self.prepare(&Needs { stable: true, ..needs }, self.page().deadline()).await.map(drop)
    }

    /// Puts files into an `<input type=file>`; no file empties it. Paths are those of the browser's machine.
    pub async fn set_input_files(&self, files: &[impl AsRef<Path>]) -> Result<()> {
        let deadline = self.page().deadline();
        let paths = input_paths(self.page(), files).await?;
        let element = self.element_within(deadline).await?;
        if paths.is_empty() {
            return element.call(NO_FILES, &[]).await;
        }
        let command =
            Raw::new("DOM.setFileInputFiles", json!({ "files": paths, "objectId": element.object_id() }));
        match element.place().session.call_as::<Done>(command, deadline).await {
            Err(BrowserError::Protocol { message, .. }) => {
                Err(BrowserError::invalid(format!("{self}: expected an input of type file ({message})")))
            }
            other => other.map(drop),
        }
    }

    /// Dispatches an event made by the page's own constructors: for what no user could do.
    pub async fn dispatch_event(&self, kind: &str, init: Value) -> Result<()> {
        const DISPATCH: &str = "(element, kind, init) => {
          const of = { click: MouseEvent, dblclick: MouseEvent, mousedown: MouseEvent, mouseup: MouseEvent,
            mousemove: MouseEvent, mouseover: MouseEvent, mouseout: MouseEvent, keydown: KeyboardEvent,
            keyup: KeyboardEvent, focus: FocusEvent, blur: FocusEvent, input: InputEvent }[kind] ?? Event;
          element.dispatchEvent(new of(kind, { bubbles: true, cancelable: true, composed: true, ...init }));
        }";
        self.call(DISPATCH, &[kind.into(), init.into()]).await
    }

    /// Waits until it is in a state. Locators that match several elements are an error, except for `Detached` and
    /// `Hidden`, which hold for none.
    pub async fn wait_for(&self, state: ElementState, timeout: Option<Duration>) -> Result<()> {
        let (states, action): (&[&str], _) = match state {
            ElementState::Attached => (ATTACHED, "attached"),
            ElementState::Detached => (&["detached"], "detached"),
            ElementState::Visible => (VISIBLE, "visible"),
            ElementState::Hidden => (&["hidden"], "hidden"),
        };
        let deadline = self.page().deadline_of(timeout);
        self.prepare(&Needs::new(action, states), deadline).await.map(drop)
    }

    /// The element, once it is attached.
    pub(super) async fn element_within(&self, deadline: Deadline) -> Result<JsHandle> {
        const FIRST: &str = "function(steps) { return this.query(steps)[0] ?? null; }";
        let waiting_for = || format!("{self} to be attached");
        self.retrying(deadline, waiting_for, |frame| async move {
            self.prepare_in(&frame, &Needs::new("attached", ATTACHED), deadline).await?;
            let injected = frame.injected(deadline).await?;
            let found = injected.call_handle(&frame, FIRST, &[self.steps_json().into()], deadline).await?;
            // It went away between the two: looked for again.
            found.ok_or(BrowserError::Stale)
        })
        .await
    }

    /// Where to click, in the viewport of the main frame.
    async fn point(&self, needs: &Needs, deadline: Deadline) -> Result<Point> {
        let waiting_for = || format!("{self} to be {}", needs.action);
        let covered = std::sync::Mutex::new(None);
        let found = self
            .retrying(deadline, waiting_for, |frame| {
                let covered = &covered;
                async move {
                    let prepared = self.prepare_in(&frame, needs, deadline).await?;
                    let (x, y) = (prepared.value["x"].as_f64(), prepared.value["y"].as_f64());
                    let (Some(x), Some(y)) = (x, y) else { return Err(BrowserError::Stale) };
                    let InMain { x, y, covered: above } = frame.to_main((x, y), deadline).await?;
                    if let (Some(above), false) = (above, needs.force) {
                        if let Ok(mut covered) = covered.lock() {
                            *covered = Some(above);
                        }
                        return Err(BrowserError::Stale);
                    }
                    Ok(Point::new(x, y))
                }
            })
            .await;
        let covered = covered.into_inner().ok().flatten();
        match (found, covered) {
            (Err(error), Some(above)) => Err(error
                .waiting_for(|| format!("{self} to be {}; its frame is covered by {above}", needs.action))),
            (found, _) => found,
        }
    }

    async fn prepare(&self, needs: &Needs, deadline: Deadline) -> Result<Prepared> {
        let waiting_for = || format!("{self} to be {}; the page's scripts are busy", needs.action);
        self.retrying(
            deadline,
            waiting_for,
            |frame| async move { self.prepare_in(&frame, needs, deadline).await },
        )
        .await
    }

    async fn prepare_in(&self, frame: &Frame, needs: &Needs, deadline: Deadline) -> Result<Prepared> {
        let injected: Injected = frame.injected(deadline).await?;
        let args = [self.steps_json().into(), needs.json(frame, deadline).into()];
        let prepared: Prepared = injected.call(PREPARE, &args, deadline).await?;
        if prepared.count > 1 {
            let (count, samples) = (prepared.count, prepared.samples);
            return Err(BrowserError::Strict { selector: self.to_string(), count, samples });
        }
        if prepared.done {
            return Ok(prepared);
        }
        Err(deadline.timeout(self.explain(needs.action, &prepared)))
    }

    fn explain(&self, action: &str, prepared: &Prepared) -> String {
        let problem = prepared.problem.as_deref().unwrap_or_default();
        let what = match problem {
            "attached" | "detached" if prepared.description.is_some() => "it is still there".to_owned(),
            "visible" | "enabled" | "editable" | "attached" if prepared.description.is_none() => {
                "no element matches".to_owned()
            }
            "visible" => "it is hidden".to_owned(),
            "hidden" => "it is visible".to_owned(),
            "enabled" => "it is disabled".to_owned(),
            "editable" => "it is read-only".to_owned(),
            "stable" => "it is moving".to_owned(),
            "detached" => "it was removed".to_owned(),
            "no_box" => "it has no box".to_owned(),
            "outside_viewport" => "it cannot be scrolled into the viewport".to_owned(),
            other => match other.split_once(' ') {
                Some(("covered", _)) => format!("it is {other}"),
                Some(("missing", options)) => format!("it has no option {options}"),
                Some(("option", value)) => format!("its option {value} is disabled"),
                _ => other.to_owned(),
            },
        };
        match &prepared.description {
            Some(description) => format!("{self} to be {action}; {what}: {description}"),
            None => format!("{self} to be {action}; {what}"),
        }
    }
}
