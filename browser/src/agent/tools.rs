//! The tools of an agent: one table, from which the JSON Schemas come and by which calls are checked.

use super::action::Action;
use super::arguments::{Argument, Arguments, Kind, Presence, Preset};
use super::options::ToolOptions;
use super::step::{Failure, FailureCode};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// A tool as models are told of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolSchema {
    /// Its name.
    pub name: String,
    /// What it does.
    pub description: String,
    /// JSON Schema of its arguments: an object.
    pub parameters: Value,
}

/// A call of a tool by a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolCall {
    /// The tool's name.
    pub name: String,
    /// Its arguments: an object, or the text of one.
    #[serde(default)]
    pub arguments: Value,
}

impl ToolCall {
    /// A call.
    pub fn new(name: impl Into<String>, arguments: Value) -> ToolCall {
        ToolCall { name: name.into(), arguments }
    }
}

/// A row of the table.
struct Row {
    name: &'static str,
    description: &'static str,
    arguments: &'static [Argument],
}

const TEXT_CHARS_MAX: usize = 100_000;
const URL_CHARS_MAX: usize = 8_192;

const fn argument(name: &'static str, kind: Kind, presence: Presence, description: &'static str) -> Argument {
    Argument { name, kind, presence, description }
}

const TARGET_POINT: Argument = argument(
    "point_2d",
    Kind::Point,
    Presence::Either("target"),
    "Where: [x, y] in thousandths of the screen's width and height, from its top left corner.",
);
const TARGET_REF: Argument = argument(
    "ref",
    Kind::Ref,
    Presence::Either("target"),
    "Which element: its reference in the last page description. It is scrolled into view first.",
);

const ROWS: [Row; 15] = [
    Row {
        name: "click",
        description: "Clicks with the mouse.",
        arguments: &[
            TARGET_POINT,
            TARGET_REF,
            argument(
                "clicks",
                Kind::Integer { min: 1, max: 3 },
                Presence::Default(Preset::Integer(1)),
                "How often: 2 is a double click.",
            ),
            argument(
                "button",
                Kind::Choice(&["left", "right", "middle"]),
                Presence::Default(Preset::Word("left")),
                "Which button of the mouse.",
            ),
        ],
    },
    Row {
        name: "hover",
        description: "Moves the mouse without clicking: shows tooltips and opens menus that open by themselves.",
        arguments: &[TARGET_POINT, TARGET_REF],
    },
    Row {
        name: "drag",
        description: "Presses the left button at one place, moves the mouse to another and releases it there.",
        arguments: &[
            argument(
                "start_point_2d",
                Kind::Point,
                Presence::Either("start"),
                "Where to press: [x, y] in thousandths of the screen's width and height.",
            ),
            argument(
                "start_ref",
                Kind::Ref,
                Presence::Either("start"),
                "Which element to drag: its reference.",
            ),
            argument(
                "end_point_2d",
                Kind::Point,
                Presence::Either("end"),
                "Where to release: [x, y] in thousandths of the screen's width and height.",
            ),
            argument(
                "end_ref",
                Kind::Ref,
                Presence::Either("end"),
                "Which element to drop on: its reference.",
            ),
            argument(
                "steps",
                Kind::Integer { min: 1, max: 100 },
                Presence::Default(Preset::Integer(10)),
                "How many moves of the mouse lie between.",
            ),
        ],
    },
    Row {
        name: "write",
        description: "Types a text into the field that has the focus, in place of what is in it. Click on the field \
                      first. In a drop-down list it chooses the option of that text.",
        arguments: &[
            argument("message", Kind::Text { chars_max: TEXT_CHARS_MAX }, Presence::Required, "The text."),
            argument(
                "ref",
                Kind::Ref,
                Presence::Optional,
                "Which field: its reference in the last page description. It needs no click before. Default: the one \
                 with the focus.",
            ),
            argument(
                "clear",
                Kind::Flag,
                Presence::Default(Preset::Flag(true)),
                "Whether what is in the field is removed first; otherwise the text is added at its end.",
            ),
        ],
    },
    Row {
        name: "press_keys",
        description: "Presses keys of the keyboard, one after another or together.",
        arguments: &[
            argument(
                "keys",
                Kind::Keys,
                Presence::Required,
                "The keys: Alt, Control, Meta, Shift, Enter, Tab, Space, Backspace, Delete, Insert, Escape, ArrowUp, \
                 ArrowDown, ArrowLeft, ArrowRight, Home, End, PageUp, PageDown, F1 to F12, or single characters.",
            ),
            argument(
                "is_hotkey",
                Kind::Flag,
                Presence::Default(Preset::Flag(false)),
                "Whether they are pressed together, such as [\"Control\", \"a\"].",
            ),
            argument(
                "presses",
                Kind::Integer { min: 1, max: 100 },
                Presence::Default(Preset::Integer(1)),
                "How often all of it is done.",
            ),
        ],
    },
    Row {
        name: "scroll",
        description: "Scrolls the page, or what can be scrolled at a place of it, such as a list or a dialog.",
        arguments: &[
            argument(
                "direction",
                Kind::Choice(&["up", "down", "left", "right"]),
                Presence::Default(Preset::Word("down")),
                "Which way.",
            ),
            argument(
                "amount",
                Kind::Number { min: 0.0, max: 1.0 },
                Presence::Default(Preset::Number(0.5)),
                "How far, as a share of the screen's height: 0.5 is half of it.",
            ),
            argument(
                "point_2d",
                Kind::Point,
                Presence::AtMostOne("target"),
                "What to scroll: [x, y] of a place in it, in thousandths of the screen's width and height. Default: \
                 the page.",
            ),
            argument(
                "ref",
                Kind::Ref,
                Presence::AtMostOne("target"),
                "What to scroll: the reference of an element in it. Default: the page.",
            ),
        ],
    },
    Row {
        name: "goto_url",
        description: "Opens an address in the current tab.",
        arguments: &[argument(
            "url",
            Kind::Text { chars_max: URL_CHARS_MAX },
            Presence::Required,
            "The whole address; http, https or about:blank.",
        )],
    },
    Row { name: "go_back", description: "Goes back to the page before, in the current tab.", arguments: &[] },
    Row {
        name: "wait",
        description: "Waits. Actions already wait until the page has reacted, so this is for what comes later.",
        arguments: &[argument(
            "seconds",
            Kind::Number { min: 0.0, max: 60.0 },
            Presence::Default(Preset::Number(3.0)),
            "How long.",
        )],
    },
    Row {
        name: "new_tab",
        description: "Opens an empty tab and switches to it; goto_url then opens an address in it.",
        arguments: &[],
    },
    Row {
        name: "switch_tab",
        description: "Switches to another tab.",
        arguments: &[argument(
            "tab_index",
            Kind::Integer { min: 0, max: 9_999 },
            Presence::Required,
            "Its index in the list of tabs, from 0.",
        )],
    },
    Row {
        name: "close_tab",
        description: "Closes the current tab and switches to the nearest one that remains.",
        arguments: &[],
    },
    Row {
        name: "done",
        description: "Ends the task: it is completed, or cannot be (such as for a captcha).",
        arguments: &[argument(
            "response",
            Kind::Text { chars_max: TEXT_CHARS_MAX },
            Presence::Required,
            "The final answer: what was found or done, or why the task could not be completed.",
        )],
    },
    Row {
        name: "call_user",
        description: "Asks the user for something that only they know or may decide, and waits for the answer.",
        arguments: &[argument(
            "message",
            Kind::Text { chars_max: TEXT_CHARS_MAX },
            Presence::Required,
            "The question.",
        )],
    },
    Row {
        name: "terminate",
        description: "Ends the task and says whether it is completed.",
        arguments: &[
            argument(
                "status",
                Kind::Choice(&["success", "failure"]),
                Presence::Required,
                "Whether the task is completed.",
            ),
            argument(
                "response",
                Kind::Text { chars_max: TEXT_CHARS_MAX },
                Presence::Optional,
                "The final answer, or why the task could not be completed. Default: empty.",
            ),
        ],
    },
];

impl Row {
    /// Its arguments with these options; `None`: the tool is not offered.
    fn takes(&self, options: &ToolOptions) -> Option<Vec<&'static Argument>> {
        let offered = match self.name {
            "call_user" => options.call_user,
            "terminate" => options.terminate,
            _ => true,
        };
        let mut takes = Vec::new();
        let mut groups_missing = Vec::new();
        for argument in self.arguments {
            let is_taken = match argument.kind {
                Kind::Point => options.points,
                Kind::Ref => options.refs,
                _ => true,
            };
            if is_taken {
                takes.push(argument);
            } else if let Presence::Either(label) = argument.presence {
                groups_missing.push(label);
            }
        }
        let reachable = |label: &&str| {
            takes.iter().any(|argument| matches!(argument.presence, Presence::Either(of) if of == *label))
        };
        (offered && groups_missing.iter().all(reachable)).then_some(takes)
    }

    fn schema(&self, takes: &[&Argument]) -> ToolSchema {
        let mut properties = Map::new();
        let mut required = Vec::new();
        for argument in takes {
            let mut schema = argument.kind.schema();
            let mut description = argument.description.to_owned();
            match argument.presence {
                Presence::Required => required.push(argument.name),
                Presence::Default(preset) => schema["default"] = preset.json(),
                Presence::Either(label) => {
                    let others = others_of(takes, argument, label);
                    // Model services refuse `oneOf` beside the properties.
                    if others.is_empty() {
                        required.push(argument.name);
                    } else {
                        description.push_str(&format!(" Give either this or {}.", others.join(" or ")));
                    }
                }
                Presence::Optional | Presence::AtMostOne(_) => {}
            }
            schema["description"] = description.into();
            properties.insert(argument.name.to_owned(), schema);
        }
        let mut parameters =
            json!({ "type": "object", "properties": properties, "additionalProperties": false });
        if !required.is_empty() {
            parameters["required"] = required.into();
        }
        ToolSchema { name: self.name.to_owned(), description: self.description.to_owned(), parameters }
    }
}

fn others_of(takes: &[&Argument], argument: &Argument, label: &str) -> Vec<&'static str> {
    let of_group = |other: &&&Argument| {
        other.name != argument.name && matches!(other.presence, Presence::Either(of) if of == label)
    };
    takes.iter().filter(of_group).map(|other| other.name).collect()
}

/// The tools that these options offer, in a fixed order.
pub fn tools(options: &ToolOptions) -> Vec<ToolSchema> {
    ROWS.iter().filter_map(|row| row.takes(options).map(|takes| row.schema(&takes))).collect()
}

/// What a call asks for. The failure names the tool or argument and what it may be.
pub(super) fn parse(call: &ToolCall, options: &ToolOptions) -> Result<Action, Failure> {
    let name = call.name.trim();
    let row = ROWS.iter().find(|row| row.name.eq_ignore_ascii_case(name));
    let found = row.and_then(|row| row.takes(options).map(|takes| (row.name, takes)));
    let Some((tool, takes)) = found else {
        let known: Vec<String> = tools(options).into_iter().map(|tool| tool.name).collect();
        let text = format!("unknown tool {name:?}: expected {}", known.join(", "));
        return Err(Failure::new(FailureCode::UnknownTool, text));
    };
    let arguments = Arguments::check(tool, &takes, &call.arguments)
        .map_err(|text| Failure::new(FailureCode::InvalidArguments, text))?;
    Action::from_arguments(tool, &arguments)
}

#[cfg(test)]
mod tests;
