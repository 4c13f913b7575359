//! Carries out one action on the current tab, up to the moment when the page has taken it.

use super::action::{Action, Direction, Target};
use super::effects::{UNSAFE_REDIRECT, failed_since, told_reason};
use super::session::{Session, State};
use super::spot::{Fault, Spot, element_of_ref, note_of, reach, with_focus};
use super::step::{Effect, ElementNote, Failure, FailureCode, PixelPoint, quoted};
use super::urls;
use crate::deadline::Deadline;
use crate::error::{BrowserError, Result};
use crate::handle::JsHandle;
use crate::input::{Button, ClickOptions, Point};
use crate::navigation::GotoOptions;
use crate::page::Page;
use crate::page::state::LoadState;
use chromiumoxide::cdp::browser_protocol::page::StopLoadingParams;
use serde::Deserialize;
use std::time::Duration;

/// What a key may take beyond the bound of the action, where there are many.
const KEY_BOUND: Duration = Duration::from_millis(20);

/// What an action did, besides its result.
#[derive(Debug, Default)]
pub(super) struct Report {
    pub(super) element: Option<ElementNote>,
    pub(super) point: Option<PixelPoint>,
    /// What the tool itself knows it did.
    pub(super) effects: Vec<Effect>,
    /// More for the line for the model.
    pub(super) note: String,
    /// Whether anything reached the page.
    pub(super) has_acted: bool,
    /// Whether tabs that the page opens stay in the background.
    pub(super) keeps_tab: bool,
}

/// What the page answers to a text.
#[derive(Deserialize)]
struct Prepared {
    state: String,
    #[serde(default)]
    options: Vec<String>,
}

/// What was scrolled.
#[derive(Deserialize)]
struct Scrolled {
    what: String,
    x: f64,
    y: f64,
    at_end: bool,
}

/// An input that was given while its document went away has reached the page.
fn delivered(result: Result<()>) -> Result<(), Fault> {
    match result {
        Err(BrowserError::Navigated | BrowserError::Stale | BrowserError::Detached) => Ok(()),
        other => Ok(other?),
    }
}

impl Session {
    pub(super) async fn perform(
        &self,
        state: &mut State,
        action: &Action,
        report: &mut Report,
    ) -> Result<(), Fault> {
        let deadline = Deadline::after(self.options.action_timeout);
        let page = state.active.clone();
        if !matches!(action, Action::Click { .. } | Action::Hover { .. } | Action::Wait { .. }) {
            state.open_list = None;
        }
        match action {
            Action::Click { target, clicks, button } => {
                let spot = reach(&page, *target, &state.refs, *button == Button::Left, deadline).await?;
                if let Some(list) = state.open_list.as_ref().filter(|list| is_on_open_list(list, spot.at)) {
                    let options = told_options(list);
                    let text = format!(
                        "the open list of {} lies there, which takes keys only (hint: `write` chooses an option: {options})",
                        list.told()
                    );
                    return Err(Failure::new(FailureCode::Covered, text).into());
                }
                report.found(&spot);
                report.keeps_tab = *button == Button::Middle;
                let list = spot.note.filter(|note| !note.options.is_empty() && *button == Button::Left);
                if let Some(list) = &list {
                    report.note =
                        format!("; its options are {} (hint: `write` chooses one)", told_options(list));
                }
                // The next click on an open list closes it.
                let is_open = state.open_list.take();
                state.open_list = list.filter(|list| *clicks == 1 && is_open.as_ref() != Some(list));
                let options = ClickOptions { button: *button, count: *clicks, ..ClickOptions::default() };
                let at = Point::new(spot.at.x, spot.at.y);
                delivered(page.mouse().click_within(at, &options, deadline).await)
            }
            Action::Hover { target } => {
                let spot = reach(&page, *target, &state.refs, false, deadline).await?;
                report.found(&spot);
                delivered(page.mouse().move_within(Point::new(spot.at.x, spot.at.y), 1, deadline).await)
            }
            Action::Drag { start, end, steps } => {
                drag(&page, state, (*start, *end), *steps, report, deadline).await
            }
            Action::Write { text, field, clear } => {
                write(&page, state, text, *field, *clear, report, deadline).await
            }
            Action::PressKeys { keys, together, presses } => {
                let count = u32::try_from(keys.len()).unwrap_or(u32::MAX).saturating_mul(*presses);
                let deadline = Deadline::after(self.options.action_timeout + KEY_BOUND.saturating_mul(count));
                press(&page, keys, *together, *presses, report, deadline).await
            }
            Action::Scroll { direction, amount, target } => {
                let distance = amount * f64::from(page.viewport_size().height);
                let by = match direction {
                    Direction::Up => (0.0, -distance),
                    Direction::Down => (0.0, distance),
                    Direction::Left => (-distance, 0.0),
                    Direction::Right => (distance, 0.0),
                };
                scroll(&page, state, by, *target, report, deadline).await
            }
            Action::GotoUrl { url } => {
                report.has_acted = true;
                let failures = failures(&page);
                let went = page.goto_with(url, self.navigation()).await.and_then(|response| {
                    // An answer of the proxy is no page of that address.
                    let refused = response.and_then(|response| response.proxy_error());
                    refused
                        .map_or(Ok(()), |reason| Err(BrowserError::Navigation { url: url.clone(), reason }))
                });
                self.arrived(&page, url, failures, went).await
            }
            Action::GoBack => {
                report.has_acted = true;
                let failures = failures(&page);
                let went = match page.go_back_with(self.navigation()).await {
                    Ok(true) => Ok(()),
                    Ok(false) => {
                        let text = "there is no page to go back to";
                        return Err(Failure::new(FailureCode::NavigationFailed, text).into());
                    }
                    Err(error) => Err(error),
                };
                self.arrived(&page, "the page before", failures, went).await
            }
            Action::Wait { time } => {
                report.has_acted = true;
                if self.context.is_deterministic() {
                    // The time of its pages goes on by as much behind the action.
                    return Ok(());
                }
                let never = |_: &crate::page::inner::PageState| None::<Result<()>>;
                let waited = page.inner.wait_in_spite_of_dialogs(Deadline::after(*time), String::new, never);
                match waited.await {
                    Err(error) if error.is_timeout() => Ok(()),
                    other => Ok(other?),
                }
            }
            Action::NewTab => {
                let open = self.context.pages().len();
                if open >= usize::try_from(self.options.tabs_max).unwrap_or(usize::MAX) {
                    let text = format!("{open} tabs are open, and there may be no more (hint: close_tab)");
                    return Err(Failure::new(FailureCode::NoSuchTab, text).into());
                }
                report.has_acted = true;
                let page = self.context.new_page().await?;
                Ok(self.switch(state, page)?)
            }
            Action::SwitchTab { index } => {
                let pages = self.context.pages();
                let Some(page) = pages.get(*index) else {
                    let last = pages.len().saturating_sub(1);
                    let text = format!("there is no tab {index}: expected 0 to {last}");
                    return Err(Failure::new(FailureCode::NoSuchTab, text).into());
                };
                report.has_acted = true;
                report.keeps_tab = true;
                page.bring_to_front().await?;
                Ok(self.switch(state, page.clone())?)
            }
            Action::CloseTab => {
                report.has_acted = true;
                report.keeps_tab = true;
                page.close().await?;
                Ok(self.find_active(state).await?)
            }
            Action::Done { .. } | Action::CallUser { .. } | Action::Terminate { .. } => Ok(()),
        }
    }

    fn navigation(&self) -> GotoOptions {
        GotoOptions {
            wait_until: LoadState::DomContentLoaded,
            timeout: Some(self.options.navigation_timeout),
            ..GotoOptions::default()
        }
    }

    /// What a navigation by the agent came to.
    async fn arrived(&self, page: &Page, url: &str, failures: u64, went: Result<()>) -> Result<(), Fault> {
        let failure = match went {
            // A download is told as an effect.
            Ok(()) | Err(BrowserError::Download { .. }) => return Ok(()),
            Err(BrowserError::Navigation { reason, .. }) if reason == UNSAFE_REDIRECT => {
                let text = format!("{} redirects to an address that may not be opened", urls::clip(url));
                Failure::new(FailureCode::BlockedUrl, text)
            }
            Err(BrowserError::Navigation { reason, .. }) if reason.contains("invalid URL") => {
                let text =
                    format!("invalid goto_url.url {url:?}: expected an address such as https://example.com");
                Failure::new(FailureCode::InvalidArguments, text)
            }
            Err(BrowserError::Navigation { reason, .. }) => match failed_since(page, failures).await {
                Some(to) if !urls::may_show(&to) => urls::blocked(&to),
                _ => {
                    let text = format!("{} could not be opened: {}", urls::clip(url), told_reason(&reason));
                    Failure::new(FailureCode::NavigationFailed, text)
                }
            },
            Err(error) => {
                if error.is_timeout() {
                    page.inner.session.post(StopLoadingParams::default());
                }
                return Err(error.into());
            }
        };
        Err(failure.into())
    }
}

/// Navigations of the tab that failed so far.
fn failures(page: &Page) -> u64 {
    page.inner.state.lock().frames.main().failures
}

impl Report {
    fn found(&mut self, spot: &Spot) {
        self.element = spot.note.clone();
        self.point = Some(spot.at);
        self.has_acted = true;
    }
}

fn told_options(list: &ElementNote) -> String {
    let options: Vec<String> = list.options.iter().map(|option| quoted(option)).collect();
    options.join(", ")
}

/// Whether a place lies on a drop-down list that is open. Chromium draws it above the page, but gives the mouse of the
/// protocol to what lies below it. Its rows are at least so high.
fn is_on_open_list(list: &ElementNote, at: PixelPoint) -> bool {
    const ROW_PX: f64 = 20.0;
    const ROWS_MAX: usize = 20;
    let area = list.area;
    let rows = u32::try_from(list.options.len().min(ROWS_MAX)).unwrap_or(0);
    let bottom = area.y + area.height;
    (area.x..area.x + area.width).contains(&at.x)
        && (bottom..bottom + ROW_PX * f64::from(rows)).contains(&at.y)
}

async fn drag(
    page: &Page,
    state: &State,
    (start, end): (Target, Target),
    steps: u32,
    report: &mut Report,
    deadline: Deadline,
) -> Result<(), Fault> {
    reach(page, start, &state.refs, false, deadline).await?;
    let to = reach(page, end, &state.refs, false, deadline).await?;
    // The way to the end may have scrolled the start.
    let from = reach(page, start, &state.refs, false, deadline).await?;
    report.found(&from);
    let onto = to.note.as_ref().map(|note| format!(" onto {}", note.told())).unwrap_or_default();
    report.note = format!("{onto} at ({}, {})", to.at.x.round(), to.at.y.round());
    let (from, to) = (Point::new(from.at.x, from.at.y), Point::new(to.at.x, to.at.y));
    delivered(page.mouse().drag_in_steps(from, to, steps, deadline).await)
}

async fn write(
    page: &Page,
    state: &State,
    text: &str,
    field: Option<u64>,
    clear: bool,
    report: &mut Report,
    deadline: Deadline,
) -> Result<(), Fault> {
    const PREPARE: &str =
        "function(element, text, clear) { return this.prepareField(element, text, clear); }";
    const VALUE: &str = "function(element) { return this.fieldValue(element); }";
    let element: JsHandle = match field {
        Some(number) => element_of_ref(page, number, &state.refs, deadline).await?,
        None => with_focus(page, deadline).await?.ok_or_else(|| {
            let text = "no field has the focus (hint: click on one first)";
            Failure::new(FailureCode::NotInteractive, text)
        })?,
    };
    let note = note_of(&element, deadline).await?;
    let told = note.told();
    report.element = Some(note);
    let frame = element.frame().clone();
    let injected = frame.injected(deadline).await?;
    let args = [(&element).into(), text.into(), clear.into()];
    let prepared: Result<Prepared> = injected.call(PREPARE, &args, deadline).await;
    let prepared = prepared.map_err(|error| not_a_field(error, text))?;
    report.has_acted = true;
    match prepared.state.as_str() {
        "done" => return Ok(()),
        "choose" => {
            let options: Vec<String> = prepared.options.iter().map(|option| quoted(option)).collect();
            let text = format!(
                "invalid write.message {}: expected an option of {told}: {}",
                quoted(text),
                options.join(", ")
            );
            return Err(Failure::new(FailureCode::InvalidArguments, text).into());
        }
        state @ ("disabled" | "readonly") => {
            return Err(Failure::new(FailureCode::NotInteractive, format!("{told} is {state}")).into());
        }
        _ => {}
    }
    let keyboard = page.keyboard();
    let put = match text {
        "" if clear => keyboard.press_within("Delete", deadline).await,
        "" => Ok(()),
        _ => keyboard.insert_within(text, deadline).await,
    };
    delivered(put)?;
    // A page may take less than was written, or something else. Where the field is gone there is nothing to tell.
    if let Ok(Some(now)) = injected.call::<Option<String>>(VALUE, &[(&element).into()], deadline).await
        && clear
        && now != text.replace("\r\n", "\n")
    {
        let shown: String = now.chars().take(100).collect();
        report.note = format!("; the field holds {} now", quoted(&shown));
    }
    Ok(())
}

/// What the injected script says of a text that an element does not take.
fn not_a_field(error: BrowserError, text: &str) -> Fault {
    match &error {
        BrowserError::Invalid { what } => {
            let what = what.strip_prefix("action: ").unwrap_or(what);
            let is_value = what.starts_with("malformed") || what.contains("takes no ");
            match is_value {
                true => {
                    let shown: String = text.chars().take(80).collect();
                    let text = format!("invalid write.message {}: {what}", quoted(&shown));
                    Failure::new(FailureCode::InvalidArguments, text).into()
                }
                false => Failure::new(FailureCode::NotInteractive, what).into(),
            }
        }
        _ => error.into(),
    }
}

async fn press(
    page: &Page,
    keys: &[String],
    together: bool,
    presses: u32,
    report: &mut Report,
    deadline: Deadline,
) -> Result<(), Fault> {
    let strokes = match together {
        true => vec![keys.join("+")],
        false => keys.to_vec(),
    };
    let is_key = |stroke: &String| crate::keys::chord(stroke).is_ok();
    if together && let Some(stroke) = strokes.iter().find(|stroke| !is_key(stroke)) {
        let text = format!("invalid press_keys.keys {stroke:?}: expected keys of a keyboard");
        return Err(Failure::new(FailureCode::InvalidArguments, text).into());
    }
    report.note = format!(" {}", strokes.join(" ").chars().take(100).collect::<String>());
    if presses > 1 {
        report.note.push_str(&format!(", {presses} times"));
    }
    // Which element gets them; keys go to the page where none has the focus.
    if let Ok(Some(element)) = with_focus(page, deadline).await {
        report.element = note_of(&element, deadline).await.ok();
    }
    report.has_acted = true;
    let keyboard = page.keyboard();
    for _ in 0..presses {
        for stroke in &strokes {
            delivered(match is_key(stroke) {
                true => keyboard.press_within(stroke, deadline).await,
                false => keyboard.insert_within(stroke, deadline).await,
            })?;
        }
    }
    Ok(())
}

async fn scroll(
    page: &Page,
    state: &State,
    (x, y): (f64, f64),
    target: Option<Target>,
    report: &mut Report,
    deadline: Deadline,
) -> Result<(), Fault> {
    const PAGE: &str = "function(x, y) { return this.scrollFrom(null, x, y); }";
    const AT: &str = "function(left, top, x, y) { return this.scrollFrom(this.elementAt(left, top), x, y); }";
    let mut best: Option<Scrolled> = None;
    match target {
        None => {
            let injected = page.main_frame().injected(deadline).await?;
            report.has_acted = true;
            best = injected.call(PAGE, &[x.into(), y.into()], deadline).await?;
        }
        Some(target) => {
            let spot = reach(page, target, &state.refs, false, deadline).await?;
            report.found(&spot);
            for (frame, at) in spot.frames.iter().rev() {
                let injected = frame.injected(deadline).await?;
                let args = [at.x.into(), at.y.into(), x.into(), y.into()];
                let scrolled: Option<Scrolled> = injected.call(AT, &args, deadline).await?;
                let has_moved =
                    scrolled.as_ref().is_some_and(|scrolled| scrolled.x != 0.0 || scrolled.y != 0.0);
                if has_moved || best.is_none() {
                    best = scrolled.or(best);
                }
                if has_moved {
                    break;
                }
            }
        }
    }
    if let Some(Scrolled { what, x, y, at_end }) = best {
        report.effects.push(Effect::Scrolled { what, x, y, at_end });
        return Ok(());
    }
    // Nothing can be scrolled: pages such as maps listen to the wheel itself.
    let size = page.viewport_size();
    let middle = PixelPoint { x: f64::from(size.width / 2), y: f64::from(size.height / 2) };
    let at = report.point.unwrap_or(middle);
    delivered(page.mouse().move_within(Point::new(at.x, at.y), 1, deadline).await)?;
    report.note = "; nothing there can be scrolled, the wheel was turned".to_owned();
    delivered(page.mouse().wheel_within(x, y, deadline).await)
}
