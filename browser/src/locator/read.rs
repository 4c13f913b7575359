//! What can be read of the elements of a locator.

use super::Locator;
use crate::deadline::Deadline;
use crate::error::{BrowserError, Result};
use crate::handle::JsHandle;
use crate::screenshot::{Area, Rect, ScreenshotOptions};
use crate::value::JsArg;
use bytes::Bytes;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Waits until the one element is attached, and reads `what` of it.
const READ: &str = "async function(steps, what, args, limit) {
  const { element, count, reached } = await this.waitFor(steps, ['attached'], { limit_ms: limit, strict: true });
  if (count > 1) return { count, samples: this.query(steps).slice(0, 5).map(one => this.describe(one)) };
  if (!reached) return { missing: true };
  const plain = {
    textContent: () => element.textContent,
    innerText: () => element instanceof HTMLElement ? element.innerText : element.textContent,
    innerHTML: () => element.innerHTML,
    attribute: () => element.getAttribute(args[0]),
  };
  return { value: what in plain ? plain[what]() : this[what](element, ...args) };
}";

/// Reads of what is there now: nothing is waited for.
const READ_ALL: &str = "function(steps, what) {
  const elements = this.query(steps);
  const one = {
    count: null,
    textContent: element => element.textContent ?? '',
    innerText: element => element instanceof HTMLElement ? element.innerText : element.textContent,
    describe: element => this.describe(element),
  }[what];
  return one === null ? elements.length : elements.map(one);
}";

#[derive(Deserialize)]
struct ReadAnswer {
    #[serde(default)]
    value: Value,
    #[serde(default)]
    missing: bool,
    #[serde(default)]
    count: usize,
    #[serde(default)]
    samples: Vec<String>,
}

impl Locator {
    /// How many elements match now.
    pub async fn count(&self) -> Result<usize> {
        self.read_all("count").await
    }

    /// A locator for each element that matches now.
    pub async fn all(&self) -> Result<Vec<Locator>> {
        let count = self.count().await?;
        Ok((0..count).map(|index| self.nth(i64::try_from(index).unwrap_or(i64::MAX))).collect())
    }

    /// `textContent` of all elements that match now.
    pub async fn all_text_contents(&self) -> Result<Vec<String>> {
        self.read_all("textContent").await
    }

    /// `innerText` of all elements that match now.
    pub async fn all_inner_texts(&self) -> Result<Vec<String>> {
        self.read_all("innerText").await
    }

    /// All elements that match now, described in a line each, such as `<button id="save">Save</button>`.
    pub async fn descriptions(&self) -> Result<Vec<String>> {
        self.read_all("describe").await
    }

    /// Its `textContent`.
    pub async fn text_content(&self) -> Result<String> {
        self.read("textContent", Vec::new()).await
    }

    /// Its `innerText`: the text as it is shown.
    pub async fn inner_text(&self) -> Result<String> {
        self.read("innerText", Vec::new()).await
    }

    /// Its `innerHTML`.
    pub async fn inner_html(&self) -> Result<String> {
        self.read("innerHTML", Vec::new()).await
    }

    /// An attribute; `None`: it has none of this name.
    pub async fn get_attribute(&self, name: &str) -> Result<Option<String>> {
        self.read("attribute", vec![name.into()]).await
    }

    /// The value of an input, a text area or a drop-down list, or of the one that a label is for.
    pub async fn input_value(&self) -> Result<String> {
        let value: Option<String> = self.read("value", Vec::new()).await?;
        value.ok_or_else(|| {
            BrowserError::invalid(format!("{self}: expected an input, text area or drop-down list"))
        })
    }

    /// Whether it is visible now; false where none matches.
    pub async fn is_visible(&self) -> Result<bool> {
        let state = self.state_now().await?;
        Ok(state["visible"] == Value::Bool(true))
    }

    /// Whether it is hidden now; true where none matches.
    pub async fn is_hidden(&self) -> Result<bool> {
        Ok(!self.is_visible().await?)
    }

    /// Whether it is enabled.
    pub async fn is_enabled(&self) -> Result<bool> {
        self.state("enabled").await
    }

    /// Whether it is disabled.
    pub async fn is_disabled(&self) -> Result<bool> {
        Ok(!self.state("enabled").await?)
    }

    /// Whether a user can change its text.
    pub async fn is_editable(&self) -> Result<bool> {
        self.state("editable").await
    }

    /// Whether a checkbox or radio button is checked. Mixed is not.
    pub async fn is_checked(&self) -> Result<bool> {
        self.state("checked").await
    }

    /// Whether it has the focus.
    pub async fn is_focused(&self) -> Result<bool> {
        self.state("focused").await
    }

    /// Its role as assistive technology sees it; `None`: it has none.
    pub async fn role(&self) -> Result<Option<String>> {
        self.read("role", Vec::new()).await
    }

    /// Its accessible name; may be empty.
    pub async fn accessible_name(&self) -> Result<String> {
        self.read("name", Vec::new()).await
    }

    /// Its accessible description; may be empty.
    pub async fn accessible_description(&self) -> Result<String> {
        self.read("description", Vec::new()).await
    }

    /// Its box in the viewport of the main frame; `None`: it has none.
    pub async fn bounding_box(&self) -> Result<Option<Rect>> {
        self.box_within(self.page().deadline()).await
    }

    /// A picture of it, after scrolling to it.
    pub async fn screenshot(&self, options: ScreenshotOptions) -> Result<Bytes> {
        self.wait_for(super::ElementState::Visible, options.timeout).await?;
        self.scroll_into_view().await?;
        let rect = self.bounding_box().await?;
        let rect = rect.ok_or_else(|| BrowserError::invalid(format!("{self}: it has no box to draw")))?;
        self.page().screenshot_with(ScreenshotOptions { area: Area::Clip(rect), ..options }).await
    }

    /// Calls a function with the element and `args`, in the page's own world.
    ///
    /// ```ignore
    /// let tag: String = locator.call("element => element.tagName", &[]).await?;
    /// ```
    pub async fn call<T: DeserializeOwned>(&self, function: &str, args: &[JsArg]) -> Result<T> {
        self.handle().await?.call(function, args).await
    }

    /// Calls a function with an array of all elements that match now, in the page's own world.
    pub async fn call_all<T: DeserializeOwned>(&self, function: &str, args: &[JsArg]) -> Result<T> {
        const COUNT: &str = "function(steps) { return this.query(steps); }";
        const ONE: &str = "(list, index) => list[index]";
        let deadline = self.page().deadline();
        let frame = self.target_frame(deadline).await?;
        let injected = frame.injected(deadline).await?;
        let list = injected.call_handle(&frame, COUNT, &[self.steps_json().into()], deadline).await?;
        let list = list.ok_or(BrowserError::Stale)?;
        let length: usize = list.call("list => list.length", &[]).await?;
        let mut elements = Vec::new();
        for index in 0..length {
            elements.push(frame.adopt(&list.call_handle(ONE, &[index.into()]).await?, deadline).await?);
        }
        let mut all: Vec<JsArg> = vec![length.into()];
        all.extend(elements.iter().map(JsArg::from));
        all.extend_from_slice(args);
        let function =
            format!("(length, ...rest) => ({function})(rest.slice(0, length), ...rest.slice(length))");
        frame.call(&function, &all).await
    }

    /// The element as an object of the page's own world. Unlike the locator it goes stale with its document.
    pub async fn handle(&self) -> Result<JsHandle> {
        let deadline = self.page().deadline();
        let element = self.element_within(deadline).await?;
        element.frame().adopt(&element, deadline).await
    }

    async fn box_within(&self, deadline: Deadline) -> Result<Option<Rect>> {
        #[derive(Deserialize)]
        struct ElementBox {
            x: f64,
            y: f64,
            width: f64,
            height: f64,
        }
        let waiting_for = || format!("the box of {self}");
        self.retrying(deadline, waiting_for, |frame| async move {
            let value: Option<ElementBox> = self.read_in(&frame, "box", Vec::new(), deadline).await?;
            let Some(ElementBox { x, y, width, height }) = value else { return Ok(None) };
            let at = frame.to_main((x, y), deadline).await?;
            Ok(Some(Rect { x: at.x, y: at.y, width, height }))
        })
        .await
    }

    async fn state(&self, name: &str) -> Result<bool> {
        let states: Value = self.read("states", Vec::new()).await?;
        match (&states[name], name) {
            (Value::Bool(state), _) => Ok(*state),
            (Value::String(_), _) => Ok(false),
            (_, "editable") => Err(BrowserError::invalid(format!(
                "{self}: expected an input, text area, drop-down list or editable element"
            ))),
            _ => Err(BrowserError::invalid(format!("{self}: expected a checkbox or radio button"))),
        }
    }

    async fn state_now(&self) -> Result<Value> {
        let deadline = self.page().deadline();
        let waiting_for = || format!("the state of {self}; the page's scripts are busy");
        let answer = self.retrying(deadline, waiting_for, |frame| async move {
            let injected = frame.injected(deadline).await?;
            let args = [self.steps_json().into(), "states".into(), Value::Array(Vec::new()).into(), 0.into()];
            injected.call::<ReadAnswer>(READ, &args, deadline).await
        });
        self.strict(answer.await?).map(Option::unwrap_or_default)
    }

    async fn read<T: DeserializeOwned>(&self, what: &str, args: Vec<Value>) -> Result<T> {
        let deadline = self.page().deadline();
        let waiting_for = || format!("{self} to be attached");
        self.retrying(deadline, waiting_for, |frame| {
            let args = args.clone();
            async move { self.read_in(&frame, what, args, deadline).await }
        })
        .await
    }

    async fn read_in<T: DeserializeOwned>(
        &self,
        frame: &crate::frame::Frame,
        what: &str,
        args: Vec<Value>,
        deadline: Deadline,
    ) -> Result<T> {
        let injected = frame.injected(deadline).await?;
        let args =
            [self.steps_json().into(), what.into(), Value::Array(args).into(), deadline.in_page_ms().into()];
        let answer: ReadAnswer = injected.call(READ, &args, deadline).await?;
        let missing = || deadline.timeout(format!("{self} to be attached; no element matches"));
        let value = self.strict(answer)?.ok_or_else(missing)?;
        serde_json::from_value(value)
            .map_err(|error| BrowserError::invalid(format!("{what} of {self}: {error}")))
    }

    /// The value, or `None` where no element matches.
    fn strict(&self, answer: ReadAnswer) -> Result<Option<Value>> {
        if answer.count > 1 {
            let (count, samples) = (answer.count, answer.samples);
            return Err(BrowserError::Strict { selector: self.to_string(), count, samples });
        }
        Ok((!answer.missing).then_some(answer.value))
    }

    async fn read_all<T: DeserializeOwned>(&self, what: &str) -> Result<T> {
        let deadline = self.page().deadline();
        let waiting_for = || format!("{self}; the page's scripts are busy");
        self.retrying(deadline, waiting_for, |frame| async move {
            let injected = frame.injected(deadline).await?;
            injected.call(READ_ALL, &[self.steps_json().into(), what.into()], deadline).await
        })
        .await
    }
}
