//! The page as text, over all its frames: what a model reads in place of a picture, or beside it.

use super::options::SnapshotOptions;
use super::session::{Session, State};
use super::settle::FRAMES_MAX;
use super::spot::{RefPlace, Refs};
use crate::deadline::Deadline;
use crate::error::{BrowserError, Result};
use crate::frame::Frame;
use crate::handle::JsHandle;
use crate::page::Page;
use crate::page::state::World;
use crate::protocol::Raw;
use crate::script::Return;
use crate::value::JsArg;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::HashMap;
use std::time::Duration;

/// What a description may take.
const BOUND: Duration = Duration::from_secs(10);
/// The least that a description is given, and the least that is left to a frame in the page, in tokens.
const TOKENS_MIN: u32 = 100;
const FRAME_TOKENS_MIN: u32 = 60;
/// Frames in frames that are described.
const DEPTH_MAX: usize = 5;
/// Elements with listeners of clicks that are asked for, in documents of at most so many elements: a framework that
/// listens at the root has few, and more would cost more than they tell.
const CLICKABLE_MAX: usize = 100;
const CLICKABLE_DOCUMENT_MAX: u64 = 2_000;

/// The description of a page.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// A line for what stands beside each other; see the README for its form. Texts of the page are JSON strings.
    pub text: String,
    /// Tokens of the text, estimated.
    pub tokens: u32,
    /// Interactive elements and frames that were left out to meet the bound.
    pub truncated: u32,
    /// References that the text gives, in order.
    pub refs: Vec<String>,
    /// Against the description before, over all frames; `None` for the first of a document.
    pub changed: Option<SnapshotChanges>,
}

/// What a description differs in from the one before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotChanges {
    /// Elements that are new.
    pub added: u32,
    /// Elements whose name, value or state is another.
    pub changed: u32,
    /// References of elements that are gone or scrolled away.
    pub gone: Vec<String>,
}

/// The answer of `ariaSnapshot`.
#[derive(Deserialize)]
struct Described {
    text: String,
    tokens: u32,
    refs: Vec<u64>,
    next_ref: u64,
    frames: Vec<FrameLine>,
    truncated: u32,
    changed: Option<SnapshotChanges>,
}

/// A line that stands for a frame.
#[derive(Deserialize)]
struct FrameLine {
    #[serde(rename = "ref")]
    reference: String,
    line: usize,
    indent: usize,
}

/// What the descriptions of all frames have in common.
struct Build {
    options: SnapshotOptions,
    tokens_left: u32,
    next_ref: u64,
    places: HashMap<u64, RefPlace>,
    result: Snapshot,
    deadline: Deadline,
    frames_left: usize,
}

impl Session {
    /// Describes the current tab, over its frames of any process, and gives references to its interactive elements. They are
    /// good until the next description; those of the one before are not good any more.
    pub async fn snapshot(&self, options: SnapshotOptions) -> Result<Snapshot> {
        let mut state = self.state.lock().await;
        self.find_active(&mut state).await?;
        let page = state.active.clone();
        let deadline = Deadline::after(BOUND);
        let attempts = async {
            loop {
                match self.describe(&mut state, &page, options, deadline).await {
                    // A document was replaced: the next attempt waits for the new one.
                    Err(BrowserError::Navigated | BrowserError::Stale | BrowserError::Detached) => {}
                    other => return other,
                }
            }
        };
        deadline.bound(|| "the page to be described".to_owned(), attempts).await
    }

    async fn describe(
        &self,
        state: &mut State,
        page: &Page,
        options: SnapshotOptions,
        deadline: Deadline,
    ) -> Result<Snapshot> {
        let mut build = Build {
            options,
            tokens_left: options.tokens_max.max(TOKENS_MIN),
            next_ref: state.next_ref,
            places: HashMap::new(),
            result: Snapshot::default(),
            deadline,
            frames_left: FRAMES_MAX,
        };
        let lines = build.frame(&page.main_frame(), 0).await;
        // References that were given stay given, also by an attempt that failed.
        state.next_ref = build.next_ref;
        let lines = lines?;
        let mut snapshot = build.result;
        snapshot.text = lines.join("\n");
        snapshot.refs.dedup();
        state.refs = Refs { page: Some(page.clone()), places: build.places };
        Ok(snapshot)
    }
}

impl Build {
    /// The lines of a frame with those of the frames in it.
    async fn frame(&mut self, frame: &Frame, depth: usize) -> Result<Vec<String>> {
        let described = self.describe(frame).await?;
        let mut lines: Vec<String> = described.text.lines().map(str::to_owned).collect();
        // From the end, so that the places of the others stay.
        for line in described.frames.iter().rev() {
            let inner = self.inner_lines(frame, line, depth).await?;
            let indent = " ".repeat(line.indent + 1);
            let at = (line.line + 1).min(lines.len());
            lines.splice(at..at, inner.into_iter().map(|text| format!("{indent}{text}")));
        }
        Ok(lines)
    }

    async fn inner_lines(&mut self, frame: &Frame, line: &FrameLine, depth: usize) -> Result<Vec<String>> {
        const RESOLVE: &str = "function(ref) { return this.resolveRef(ref); }";
        if depth + 1 >= DEPTH_MAX || self.frames_left == 0 || self.tokens_left < FRAME_TOKENS_MIN {
            self.result.truncated += 1;
            return Ok(vec!["(its content is left out to keep this short)".to_owned()]);
        }
        let injected = frame.injected(self.deadline).await?;
        let args = [JsArg::from(line.reference.as_str())];
        let Some(element) = injected.call_handle(frame, RESOLVE, &args, self.deadline).await? else {
            return Ok(Vec::new());
        };
        let Some(child) = frame.frame_of(&element, self.deadline).await? else { return Ok(Vec::new()) };
        match Box::pin(self.frame(&child, depth + 1)).await {
            // Its document is just being replaced, or does not answer: the page around it is told all the same.
            Err(BrowserError::Navigated | BrowserError::Stale | BrowserError::Detached) => Ok(Vec::new()),
            Err(error) if error.is_timeout() => Ok(vec!["(it does not answer)".to_owned()]),
            Ok(lines) if self.options.changes && lines == ["(no interactive element changed)"] => {
                Ok(Vec::new())
            }
            other => other,
        }
    }

    async fn describe(&mut self, frame: &Frame) -> Result<Described> {
        const SNAPSHOT: &str =
            "function(options, ...clickable) { return this.ariaSnapshot(document, options, ...clickable); }";
        self.frames_left = self.frames_left.saturating_sub(1);
        // A frame in the page may not keep the rest waiting for long.
        let deadline = match frame.parent() {
            None => self.deadline,
            Some(_) => self.deadline.at_most(BOUND / 5),
        };
        let injected = frame.injected(deadline).await?;
        // Part of the bound is kept for frames that are seen.
        let reserved = if has_seen_frames(frame, deadline).await? { self.tokens_left / 4 } else { 0 };
        let options = json!({
            "tokens_max": self.tokens_left - reserved, "viewport_only": self.options.viewport_only,
            "changes": self.options.changes, "next_ref": self.next_ref,
        });
        let clickable = clickable(frame, deadline).await?;
        let mut args: Vec<JsArg> = vec![options.into()];
        args.extend(clickable.iter().map(JsArg::from));
        let described: Described = injected.call(SNAPSHOT, &args, deadline).await?;
        self.next_ref = self.next_ref.max(described.next_ref);
        self.tokens_left = self.tokens_left.saturating_sub(described.tokens);
        self.result.tokens += described.tokens;
        self.result.truncated += described.truncated;
        for number in &described.refs {
            let place = RefPlace { frame: frame.clone(), context: injected.place.context };
            self.places.insert(*number, place);
            self.result.refs.push(format!("e{number}"));
        }
        if let Some(changed) = &described.changed {
            let sum = self.result.changed.get_or_insert_default();
            sum.added += changed.added;
            sum.changed += changed.changed;
            sum.gone.extend(changed.gone.iter().cloned());
        }
        Ok(described)
    }
}

async fn has_seen_frames(frame: &Frame, deadline: Deadline) -> Result<bool> {
    const SEEN: &str = "() => [...document.querySelectorAll('iframe, frame')].some(frame => {
      const box = frame.getBoundingClientRect();
      return box.width * box.height > 2500 && box.bottom > 0 && box.right > 0 && box.top < innerHeight && box.left < innerWidth;
    })";
    match frame.children().is_empty() {
        true => Ok(false),
        false => frame.isolated_within(SEEN, &[], deadline).await,
    }
}

/// The answer to `DOMDebugger.getEventListeners`, of which nodes and types are read.
#[derive(Deserialize)]
struct Listeners {
    listeners: Vec<Listener>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Listener {
    #[serde(rename = "type")]
    kind: String,
    backend_node_id: Option<i64>,
}

/// Elements with listeners of clicks, which no script of the page's document sees. Empty where asking would cost much: that
/// depends on the document alone, so that equal documents are described equally.
async fn clickable(frame: &Frame, deadline: Deadline) -> Result<Vec<JsHandle>> {
    let count: u64 =
        frame.isolated_within("() => document.getElementsByTagName('*').length", &[], deadline).await?;
    if count > CLICKABLE_DOCUMENT_MAX {
        return Ok(Vec::new());
    }
    // Asked through an object of another world than the page's, or with `pierce`, the page crashes in Chromium 156 where
    // elements were seen from both worlds.
    let main = frame.place(World::Main, deadline).await?;
    let document = main.evaluate("document", Return::Handle, deadline).await?;
    let Some(document) = JsHandle::new(frame.clone(), main.clone(), document) else {
        return Ok(Vec::new());
    };
    let params = json!({ "objectId": document.object_id(), "depth": -1, "pierce": false });
    let listeners: Listeners =
        main.session.call_as(Raw::new("DOMDebugger.getEventListeners", params), deadline).await?;
    let of_clicks = listeners.listeners.iter().filter(|listener| {
        matches!(listener.kind.as_str(), "click" | "mousedown" | "mouseup" | "pointerdown" | "pointerup")
    });
    let mut nodes: Vec<i64> = of_clicks.filter_map(|listener| listener.backend_node_id).collect();
    nodes.sort_unstable();
    nodes.dedup();
    if nodes.len() > CLICKABLE_MAX {
        return Ok(Vec::new());
    }
    let place = frame.place(World::Isolated, deadline).await?;
    let elements = nodes.into_iter().map(|node| frame.resolve(node, &place, deadline));
    // Nodes of other documents, and those that went away meanwhile, have no object here.
    Ok(futures::future::join_all(elements).await.into_iter().filter_map(Result::ok).collect())
}
