//! What a checked call asks for.

use super::arguments::Arguments;
use super::step::{Failure, FailureCode};
use super::urls;
use crate::input::Button;
use std::time::Duration;

/// Where an action acts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Target {
    /// In thousandths of the viewport.
    Point(f64, f64),
    /// A reference of the last page description.
    Ref(u64),
}

/// Which way to scroll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Up,
    Down,
    Left,
    Right,
}

/// One action of an agent.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Action {
    Click { target: Target, clicks: u32, button: Button },
    Hover { target: Target },
    Drag { start: Target, end: Target, steps: u32 },
    Write { text: String, field: Option<u64>, clear: bool },
    PressKeys { keys: Vec<String>, together: bool, presses: u32 },
    Scroll { direction: Direction, amount: f64, target: Option<Target> },
    GotoUrl { url: String },
    GoBack,
    Wait { time: Duration },
    NewTab,
    SwitchTab { index: usize },
    CloseTab,
    Done { response: String },
    CallUser { message: String },
    Terminate { status: String, response: String },
}

impl Action {
    pub(super) fn from_arguments(tool: &str, arguments: &Arguments) -> Result<Action, Failure> {
        let target = |point: &str, reference: &str| {
            let at = arguments.point(point).map(|(x, y)| Target::Point(x, y));
            at.or_else(|| arguments.reference(reference).map(Target::Ref))
        };
        let wanted = |point: &str, reference: &str| {
            target(point, reference)
                .ok_or_else(|| Failure::new(FailureCode::InvalidArguments, format!("missing {tool}.{point}")))
        };
        let text = |name: &str| arguments.text(name).unwrap_or_default().to_owned();
        // Bounds of the table are far below those of the types.
        let count = |name: &str| u32::try_from(arguments.integer(name)).unwrap_or(1);
        Ok(match tool {
            "click" => Action::Click {
                target: wanted("point_2d", "ref")?,
                clicks: count("clicks"),
                button: match arguments.text("button") {
                    Some("right") => Button::Right,
                    Some("middle") => Button::Middle,
                    _ => Button::Left,
                },
            },
            "hover" => Action::Hover { target: wanted("point_2d", "ref")? },
            "drag" => Action::Drag {
                start: wanted("start_point_2d", "start_ref")?,
                end: wanted("end_point_2d", "end_ref")?,
                steps: count("steps"),
            },
            "write" => Action::Write {
                text: text("message"),
                field: arguments.reference("ref"),
                clear: arguments.flag("clear"),
            },
            "press_keys" => Action::PressKeys {
                keys: arguments.keys("keys"),
                together: arguments.flag("is_hotkey"),
                presses: count("presses"),
            },
            "scroll" => Action::Scroll {
                direction: match arguments.text("direction") {
                    Some("up") => Direction::Up,
                    Some("left") => Direction::Left,
                    Some("right") => Direction::Right,
                    _ => Direction::Down,
                },
                amount: arguments.number("amount"),
                target: target("point_2d", "ref"),
            },
            "goto_url" => Action::GotoUrl { url: urls::allowed(&text("url"))? },
            "go_back" => Action::GoBack,
            "wait" => Action::Wait { time: Duration::from_secs_f64(arguments.number("seconds").max(0.0)) },
            "new_tab" => Action::NewTab,
            "switch_tab" => {
                Action::SwitchTab { index: usize::try_from(arguments.integer("tab_index")).unwrap_or(0) }
            }
            "close_tab" => Action::CloseTab,
            "call_user" => Action::CallUser { message: text("message") },
            "terminate" => Action::Terminate { status: text("status"), response: text("response") },
            _ => Action::Done { response: text("response") },
        })
    }
}
