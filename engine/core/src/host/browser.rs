//! What a plugin can do with the browsers of its rollout (`espalier:browser`), as traits and plain types.
//!
//! `engine/browser` implements them over `espalier-browser`. Methods may be cut while they wait: what the browser was told by then is done,
//! and the next call finds the page as it is.

use crate::chat::Tool;
use crate::failure::Failure;
use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// Most actions of one call.
pub const ACTIONS_MAX: usize = 32;
/// Bounds of [`SnapshotOptions::tokens_max`].
pub const SNAPSHOT_TOKENS: (u32, u32) = (100, 100_000);

/// The browsers of one rollout.
#[async_trait]
pub trait Browsers: Send + Sync {
    /// The browser of this name; the first call starts it, at its start page. Errors: `Invalid` for a name that the task does not have,
    /// `Unavailable` where it cannot be started.
    async fn open(&self, name: &str) -> Result<Arc<dyn BrowserSession>, Failure>;
}

/// What whoever asks for a browser is told where neither task nor experiment has one.
pub fn no_browser(name: &str) -> Failure {
    Failure::Invalid(format!(
        "no browser `{name}`: this rollout has no browsers; a task declares one in `browser`, the experiment in [browser]"
    ))
}

/// One browser of a rollout.
#[async_trait]
pub trait BrowserSession: Send + Sync {
    /// The tools that the experiment gives the model.
    fn tools(&self) -> Vec<Tool>;
    /// Carries out actions one after another; one step for each.
    async fn act(&self, actions: Vec<Action>) -> Result<Vec<BrowserStep>, Failure>;
    /// The tabs.
    async fn tabs(&self) -> Result<Vec<Tab>, Failure>;
    /// The active tab as text.
    async fn snapshot(&self, options: SnapshotOptions) -> Result<Snapshot, Failure>;
    /// The active tab as a picture, kept as a blob of the rollout.
    async fn screenshot(&self, options: ScreenshotOptions) -> Result<Picture, Failure>;
    /// Value of an expression in the active tab, as JSON. Errors: `Other` with the code `script`.
    async fn evaluate(&self, expression: String, world: ScriptWorld) -> Result<String, Failure>;
    /// Cookies and local storage, as JSON.
    async fn storage_state(&self) -> Result<String, Failure>;
}

/// A tool to use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Action {
    /// Its name.
    pub name: String,
    /// JSON text, an object.
    pub arguments: String,
}

/// A rectangle in the viewport, in CSS pixels.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Area {
    /// From the left.
    pub x: f64,
    /// From the top.
    pub y: f64,
    /// To the right.
    pub width: f64,
    /// To the bottom.
    pub height: f64,
}

/// A position in the viewport, in CSS pixels.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Position {
    /// From the left.
    pub x: f64,
    /// From the top.
    pub y: f64,
}

/// The element that an action was on, as it was before.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ElementNote {
    /// A short line.
    pub text: String,
    /// As assistive technology sees it.
    pub role: String,
    /// Accessible name.
    pub name: String,
    /// Name of the tag, in lower case.
    pub tag: String,
    /// Where it was.
    pub area: Option<Area>,
}

/// What became of an action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StepOutcome {
    /// It was carried out.
    Done,
    /// It could not be.
    Failed {
        /// Stable word for programs.
        code: String,
        /// For the model.
        text: String,
    },
    /// It was not tried; says why.
    Skipped(String),
    /// The model ended the episode.
    Ended {
        /// Its answer.
        response: String,
        /// `success` or `failure`, as the model says.
        status: Option<String>,
    },
    /// A message for the user.
    Asked(String),
}

/// What an action led to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effect {
    /// The tab shows another address.
    Navigated {
        /// Where it is now.
        url: String,
        /// The title there.
        title: String,
        /// Of the response.
        status: Option<u16>,
        /// Whether the document is the same.
        within_document: bool,
    },
    /// The tab was to show another address, and does not.
    NavigationFailed {
        /// Where to.
        url: String,
        /// Chromium's reason.
        reason: String,
    },
    /// An attempt to leave for an address that may not be opened.
    Blocked(String),
    /// A tab was opened.
    TabOpened(Tab),
    /// The tab with this index was closed.
    TabClosed(u32),
    /// A dialog, and how it was answered.
    Dialog {
        /// `alert`, `confirm`, `prompt`, `beforeunload`.
        kind: String,
        /// What it said.
        message: String,
        /// `accepted` or `dismissed`.
        answer: String,
    },
    /// A file was downloaded.
    Downloaded {
        /// As the page suggests.
        name: String,
        /// From where.
        url: String,
        /// Its bytes as a blob of the rollout, where they are within the bounds.
        blob: Option<String>,
        /// Bytes.
        length: u64,
    },
    /// A download was cancelled, or failed.
    DownloadFailed {
        /// As the page suggests.
        name: String,
        /// Why.
        reason: String,
    },
    /// Errors in the console.
    ConsoleErrors {
        /// How many.
        count: u32,
        /// The first.
        first: String,
    },
    /// Something was scrolled by a tool.
    Scrolled {
        /// `the page`, or the element.
        what: String,
        /// By CSS pixels to the right.
        x: f64,
        /// By CSS pixels down.
        y: f64,
        /// Whether its end in this direction is reached.
        at_end: bool,
    },
    /// The page is another; a short summary.
    Changed(String),
    /// It is not.
    NothingChanged,
}

/// How the page came to rest after an action.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settled {
    /// `quiet`, `bound`, `navigation`, `dialog`, `closed`.
    pub cause: String,
    /// How long it took.
    pub after_ms: u64,
    /// What was still pending.
    pub pending: Vec<String>,
}

/// One action, carried out or not.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BrowserStep {
    /// The tool.
    pub name: String,
    /// What became of it.
    pub outcome: StepOutcome,
    /// What it was on.
    pub element: Option<ElementNote>,
    /// Where it acted.
    pub position: Option<Position>,
    /// What had happened since the step before, by itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub meanwhile: Vec<Effect>,
    /// What it led to.
    pub effects: Vec<Effect>,
    /// How the page came to rest.
    pub settled: Option<Settled>,
    /// How long it took in all.
    pub duration_ms: u64,
    /// What the model is told.
    pub text: String,
}

/// A tab.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tab {
    /// From 0.
    pub index: u32,
    /// Where it is.
    pub url: String,
    /// Of its document.
    pub title: String,
    /// Whether tools act in it.
    pub is_active: bool,
}

/// What a snapshot tells.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotOptions {
    /// Bound of the text in tokens, estimated; see [`SNAPSHOT_TOKENS`].
    pub tokens_max: Option<u32>,
    /// Only what is new or changed.
    pub changes: bool,
    /// Also what is scrolled away.
    pub whole_page: bool,
}

/// A page as text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The outline.
    pub text: String,
    /// Estimated.
    pub tokens: u32,
    /// Interactive elements that the bound left out.
    pub left_out: u32,
}

/// How a picture is encoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PictureFormat {
    /// Without loss.
    #[default]
    Png,
    /// With a quality.
    Jpeg,
    /// With a quality.
    Webp,
}

/// What a picture shows, and how.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ScreenshotOptions {
    /// How it is encoded.
    pub format: PictureFormat,
    /// 1 to 100.
    pub quality: Option<u8>,
    /// Size over that of the viewport.
    pub scale: Option<f64>,
    /// The page from top to bottom.
    pub full_page: bool,
}

/// A picture.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Picture {
    /// Its bytes, a blob of the rollout.
    pub blob: String,
    /// Pixels.
    pub width: u32,
    /// Pixels.
    pub height: u32,
}

/// Where an expression is evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ScriptWorld {
    /// Where the page's scripts run.
    Page,
    /// A world of its own.
    Isolated,
}

impl SnapshotOptions {
    /// Whether every value is within its bounds.
    pub fn check(&self) -> Result<(), Failure> {
        let (least, most) = SNAPSHOT_TOKENS;
        match self.tokens_max {
            Some(tokens) if !(least..=most).contains(&tokens) => {
                Err(Failure::Invalid(format!("tokens-max {tokens}: expected {least} to {most}")))
            }
            _ => Ok(()),
        }
    }
}

impl ScreenshotOptions {
    /// Whether every value is within its bounds.
    pub fn check(&self) -> Result<(), Failure> {
        if let Some(quality) = self.quality.filter(|quality| !(1..=100).contains(quality)) {
            return Err(Failure::Invalid(format!("quality {quality}: expected 1 to 100")));
        }
        match self.scale {
            Some(scale) if !(scale > 0.0 && scale <= 4.0) => {
                Err(Failure::Invalid(format!("scale {scale}: expected a number above 0, at most 4")))
            }
            _ => Ok(()),
        }
    }
}
