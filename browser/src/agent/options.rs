//! How a session is set up, and what is asked of it.

use crate::emulation::Viewport;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// How a session is set up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SessionOptions {
    /// The size of its tabs, in CSS pixels. Default: 1280 x 1000.
    pub viewport: Viewport,
    /// What the tools take.
    pub tools: ToolOptions,
    /// What is waited for after an action.
    pub settle: SettleOptions,
    /// What the input of an action may take, before its effects. Default: 5 s.
    #[serde(with = "milliseconds", rename = "action_timeout_ms")]
    pub action_timeout: Duration,
    /// What a navigation by `goto_url` or `go_back` may take. Default: 30 s.
    #[serde(with = "milliseconds", rename = "navigation_timeout_ms")]
    pub navigation_timeout: Duration,
    /// How dialogs of pages are answered. Default: dismissed.
    pub dialogs: DialogAnswer,
    /// Downloads that are kept; more are cancelled. Default: 20.
    pub downloads_max: u32,
    /// The largest download in bytes; a larger one is cancelled. Default: 100 MiB.
    pub download_bytes_max: u64,
    /// Open tabs; popups beyond are closed, and `new_tab` fails. Default: 20.
    pub tabs_max: u32,
}

impl Default for SessionOptions {
    fn default() -> Self {
        SessionOptions {
            viewport: Viewport { width: 1280, height: 1000 },
            tools: ToolOptions::default(),
            settle: SettleOptions::default(),
            action_timeout: Duration::from_secs(5),
            navigation_timeout: Duration::from_secs(30),
            dialogs: DialogAnswer::Dismiss,
            downloads_max: 20,
            download_bytes_max: 100 << 20,
            tabs_max: 20,
        }
    }
}

/// What the tools take.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ToolOptions {
    /// Points of the screen, `point_2d`: each axis from 0 to 1000. Default: true.
    pub points: bool,
    /// References of the page description, `ref`. Default: false.
    pub refs: bool,
    /// Whether the user can be asked. Default: false.
    pub call_user: bool,
    /// Whether the episode may end with a status. Default: false.
    pub terminate: bool,
}

impl Default for ToolOptions {
    fn default() -> Self {
        ToolOptions { points: true, refs: false, call_user: false, terminate: false }
    }
}

/// What is waited for after an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SettleOptions {
    /// The longest time. Default: 5 s.
    #[serde(with = "milliseconds", rename = "bound_ms")]
    pub bound: Duration,
    /// Animation frames in a row without a change. Default: 2.
    pub quiet_frames: u32,
}

impl Default for SettleOptions {
    fn default() -> Self {
        SettleOptions { bound: Duration::from_secs(5), quiet_frames: 2 }
    }
}

/// How dialogs of pages are answered, at once. The question before a page is left is always accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DialogAnswer {
    /// Dismissed.
    #[default]
    Dismiss,
    /// Accepted; a prompt with its default text.
    Accept,
    /// Accepted; a prompt with this text.
    AcceptWith(String),
}

/// What a page description holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SnapshotOptions {
    /// Bound of the text in tokens, estimated. At least 100. Default: 2,000.
    pub tokens_max: u32,
    /// Whether only what changed since the last description is told. Default: false.
    pub changes: bool,
    /// Whether what is scrolled away is left out. Default: true.
    pub viewport_only: bool,
}

impl Default for SnapshotOptions {
    fn default() -> Self {
        SnapshotOptions { tokens_max: 2_000, changes: false, viewport_only: true }
    }
}

/// How a picture is encoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PictureFormat {
    /// Without loss.
    #[default]
    Png,
    /// With loss.
    Jpeg,
    /// With loss.
    Webp,
}

/// What a picture shows, and how.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PictureOptions {
    /// Default: PNG.
    pub format: PictureFormat,
    /// 0 to 100, of JPEG and WebP. Default: 80.
    pub quality: u8,
    /// Pixels of the picture a CSS pixel: above 0, at most 4. Default: 1.
    pub scale: f64,
    /// Whether the whole document is shown, at most 16,384 pixels high. Default: false.
    pub full_page: bool,
    /// Only the element of this reference, such as `e12`. Default: none.
    pub part: Option<String>,
}

impl Default for PictureOptions {
    fn default() -> Self {
        PictureOptions { format: PictureFormat::Png, quality: 80, scale: 1.0, full_page: false, part: None }
    }
}

/// Durations as whole milliseconds.
mod milliseconds {
    use serde::{Deserialize, Deserializer, Serializer};
    use std::time::Duration;

    pub(super) fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        u64::deserialize(deserializer).map(Duration::from_millis)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn options_are_json_with_defaults_and_no_unknown_names() {
        let options: SessionOptions = serde_json::from_value(json!({
            "viewport": { "width": 800, "height": 600 }, "tools": { "refs": true }, "settle": { "bound_ms": 250 },
            "navigation_timeout_ms": 1000, "dialogs": { "accept_with": "yes" },
        }))
        .expect("options");
        assert_eq!(options.settle.bound, Duration::from_millis(250));
        assert_eq!(options.navigation_timeout, Duration::from_secs(1));
        assert_eq!(options.dialogs, DialogAnswer::AcceptWith("yes".to_owned()));
        assert!(options.tools.points && options.tools.refs);
        let back: SessionOptions =
            serde_json::from_value(serde_json::to_value(&options).expect("JSON")).expect("options");
        assert_eq!(back, options);
        assert!(serde_json::from_value::<SessionOptions>(json!({ "timeout": 1 })).is_err());
    }
}
