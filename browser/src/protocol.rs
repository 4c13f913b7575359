//! What is read of Chromium's events and answers: only the fields that are used, so that values which a newer Chromium
//! adds break nothing. Commands are the types of `chromiumoxide::cdp`.

use chromiumoxide::types::MethodId;
use chromiumoxide::{Command, Method};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::sync::Arc;

/// A command with parameters as they are: for lists that may be empty, which the types of `chromiumoxide` leave out
/// although Chromium demands them, and for commands that they do not have.
#[derive(Clone, Debug)]
pub(crate) struct Raw {
    pub(crate) method: Cow<'static, str>,
    pub(crate) params: Value,
}

impl Raw {
    pub(crate) fn new(method: &'static str, params: Value) -> Raw {
        Raw { method: Cow::Borrowed(method), params }
    }
}

impl Serialize for Raw {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.params.serialize(serializer)
    }
}

impl Method for Raw {
    fn identifier(&self) -> MethodId {
        self.method.clone()
    }
}

impl Command for Raw {
    type Response = Value;
}

/// The event's parameters, or `None` with a warning where they are not as expected.
pub(crate) fn event<'a, T: Deserialize<'a>>(method: &str, params: &'a RawValue) -> Option<T> {
    match serde_json::from_str(params.get()) {
        Ok(event) => Some(event),
        Err(error) => {
            tracing::warn!(%error, method, "unreadable event of the browser");
            None
        }
    }
}

/// `Target.TargetInfo`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TargetInfo {
    pub(crate) target_id: Arc<str>,
    #[serde(rename = "type")]
    pub(crate) kind: String,
    #[serde(default)]
    pub(crate) url: String,
    pub(crate) opener_id: Option<Arc<str>>,
    pub(crate) browser_context_id: Option<Arc<str>>,
}

/// `Target.attachedToTarget`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Attached {
    pub(crate) session_id: String,
    pub(crate) target_info: TargetInfo,
}

/// `Target.detachedFromTarget`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Detached {
    pub(crate) session_id: String,
}

/// `Page.Frame`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FrameInfo {
    pub(crate) id: Arc<str>,
    pub(crate) parent_id: Option<Arc<str>>,
    pub(crate) loader_id: Arc<str>,
    #[serde(default)]
    pub(crate) name: String,
    pub(crate) url: String,
    #[serde(default)]
    pub(crate) url_fragment: String,
    pub(crate) unreachable_url: Option<String>,
}

/// `Page.FrameTree`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FrameTreeInfo {
    pub(crate) frame: FrameInfo,
    #[serde(default)]
    pub(crate) child_frames: Vec<FrameTreeInfo>,
}

/// The answer to `Page.getFrameTree`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FrameTreeAnswer {
    pub(crate) frame_tree: FrameTreeInfo,
}

/// `Page.frameNavigated`.
#[derive(Debug, Deserialize)]
pub(crate) struct FrameNavigated {
    pub(crate) frame: FrameInfo,
}

/// `Page.frameAttached`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FrameAttached {
    pub(crate) frame_id: Arc<str>,
    pub(crate) parent_frame_id: Arc<str>,
}

/// `Page.frameDetached`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FrameDetached {
    pub(crate) frame_id: Arc<str>,
    #[serde(default)]
    pub(crate) reason: String,
}

/// `Page.navigatedWithinDocument`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NavigatedWithinDocument {
    pub(crate) frame_id: Arc<str>,
    pub(crate) url: String,
}

/// `Page.lifecycleEvent`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct LifecycleEvent {
    pub(crate) frame_id: Arc<str>,
    pub(crate) loader_id: Arc<str>,
    pub(crate) name: String,
}

/// `Page.frameStoppedLoading`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FrameStoppedLoading {
    pub(crate) frame_id: Arc<str>,
}

/// The answer to `Page.navigate`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Navigated {
    pub(crate) loader_id: Option<Arc<str>>,
    pub(crate) error_text: Option<String>,
    #[serde(default)]
    pub(crate) is_download: bool,
}

/// `Runtime.executionContextCreated`.
#[derive(Debug, Deserialize)]
pub(crate) struct ContextCreated {
    pub(crate) context: ContextInfo,
}

/// `Runtime.ExecutionContextDescription`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ContextInfo {
    pub(crate) id: i64,
    #[serde(default)]
    pub(crate) name: String,
    pub(crate) aux_data: Option<ContextAux>,
}

/// What tells which frame an execution context is of.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ContextAux {
    #[serde(default)]
    pub(crate) is_default: bool,
    pub(crate) frame_id: Option<Arc<str>>,
}

/// `Runtime.executionContextDestroyed`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ContextDestroyed {
    pub(crate) execution_context_id: i64,
}

/// `Runtime.RemoteObject`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct RemoteObject {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) subtype: Option<String>,
    pub(crate) class_name: Option<String>,
    pub(crate) value: Option<Box<RawValue>>,
    pub(crate) unserializable_value: Option<String>,
    pub(crate) description: Option<String>,
    pub(crate) deep_serialized_value: Option<Box<RawValue>>,
    pub(crate) object_id: Option<Arc<str>>,
}

/// `Runtime.ExceptionDetails`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ExceptionDetails {
    #[serde(default)]
    pub(crate) text: String,
    pub(crate) exception: Option<RemoteObject>,
    pub(crate) url: Option<String>,
    #[serde(default)]
    pub(crate) line_number: i64,
    #[serde(default)]
    pub(crate) column_number: i64,
}

/// The answer to `Runtime.evaluate` and `Runtime.callFunctionOn`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Evaluated {
    #[serde(default)]
    pub(crate) result: RemoteObject,
    pub(crate) exception_details: Option<ExceptionDetails>,
}

/// An answer of which nothing is read.
#[derive(Debug, Deserialize)]
pub(crate) struct Done {}

/// Reads an answer given to `call_then`.
pub(crate) fn answer<T: DeserializeOwned>(
    method: &str,
    result: crate::error::Result<bytes::Bytes>,
) -> crate::error::Result<T> {
    serde_json::from_slice(&result?).map_err(|error| crate::error::BrowserError::unreadable(method, &error))
}
