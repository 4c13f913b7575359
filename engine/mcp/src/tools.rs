//! How tools are told to clients, and those that are no actions.

use espalier_core::chat::Tool;
use espalier_core::host::browser::{PictureFormat, SNAPSHOT_TOKENS, ScreenshotOptions, SnapshotOptions};
use rmcp::model::{JsonObject, ToolAnnotations};
use serde::Deserialize;
use serde_json::{Value, json};

/// A tool of the browser as the protocol tells it.
pub(super) fn described(tool: Tool) -> rmcp::model::Tool {
    // The schemas are the browser's own: objects.
    let schema: JsonObject = serde_json::from_str(&tool.parameters).unwrap_or_default();
    let looks = matches!(&*tool.name, "hover" | "scroll" | "wait" | "switch_tab");
    let annotations = ToolAnnotations::new().read_only(looks).destructive(!looks).open_world(true);
    rmcp::model::Tool::new(tool.name, tool.description, schema).annotate(annotations)
}

/// Tools by which clients look at the page without acting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Own {
    Snapshot,
    Screenshot,
}

/// One of them, called.
pub(super) enum OwnCall {
    Snapshot(SnapshotOptions),
    Screenshot(ScreenshotOptions),
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SnapshotArguments {
    #[serde(default)]
    whole_page: bool,
    tokens_max: Option<u32>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScreenshotArguments {
    #[serde(default)]
    full_page: bool,
    #[serde(default)]
    format: PictureFormat,
}

impl Own {
    pub(super) const ALL: [Own; 2] = [Own::Snapshot, Own::Screenshot];

    pub(super) fn of(name: &str) -> Option<Own> {
        Own::ALL.into_iter().find(|own| own.name() == name)
    }

    fn name(self) -> &'static str {
        match self {
            Own::Snapshot => "snapshot",
            Own::Screenshot => "screenshot",
        }
    }

    pub(super) fn described(self) -> rmcp::model::Tool {
        let (least, most) = SNAPSHOT_TOKENS;
        let (description, properties) = match self {
            Own::Snapshot => (
                "Describes the page: an outline in which interactive elements have references.",
                json!({
                    "whole_page": { "type": "boolean", "default": false, "description": "Also what is scrolled away." },
                    "tokens_max": { "type": "integer", "minimum": least, "maximum": most, "default": 2000, "description": "Bound of the text, in tokens." },
                }),
            ),
            Own::Screenshot => (
                "Shows the page as a picture.",
                json!({
                    "full_page": { "type": "boolean", "default": false, "description": "The page from top to bottom, in place of the viewport." },
                    "format": { "type": "string", "enum": ["png", "jpeg", "webp"], "default": "png" },
                }),
            ),
        };
        let schema = json!({ "type": "object", "properties": properties, "additionalProperties": false });
        let schema = match schema {
            Value::Object(schema) => schema,
            _ => JsonObject::default(),
        };
        let annotations = ToolAnnotations::new().read_only(true).open_world(true);
        rmcp::model::Tool::new(self.name(), description, schema).annotate(annotations)
    }

    /// Errors name what is wrong.
    pub(super) fn read(self, arguments: &str) -> Result<OwnCall, String> {
        let wrong = |error: &dyn std::fmt::Display| {
            let error = error.to_string();
            // Where in the JSON it is says nothing to whoever wrote an object.
            let error = error.split_once(" at line ").map_or(error.as_str(), |(what, _)| what);
            format!("invalid arguments of `{}`: {error}", self.name())
        };
        match self {
            Own::Snapshot => {
                let given: SnapshotArguments =
                    serde_json::from_str(arguments).map_err(|error| wrong(&error))?;
                let options = SnapshotOptions {
                    tokens_max: given.tokens_max,
                    changes: false,
                    whole_page: given.whole_page,
                };
                options.check().map_err(|error| wrong(&error))?;
                Ok(OwnCall::Snapshot(options))
            }
            Own::Screenshot => {
                let given: ScreenshotArguments =
                    serde_json::from_str(arguments).map_err(|error| wrong(&error))?;
                let (format, full_page) = (given.format, given.full_page);
                Ok(OwnCall::Screenshot(ScreenshotOptions {
                    format,
                    full_page,
                    ..ScreenshotOptions::default()
                }))
            }
        }
    }
}
