//! Between the generated types of `espalier:browser` and those of `espalier_core::host::browser`.

use crate::bindings::harness::espalier::browser::browsers as wit;
use espalier_core::chat::Tool;
use espalier_core::host::browser::{
    Action, Area, BrowserStep, Effect, ElementNote, Picture, PictureFormat, Position, ScreenshotOptions,
    ScriptWorld, Settled, Snapshot, SnapshotOptions, StepOutcome, Tab,
};

pub(crate) fn tool_out(tool: Tool) -> wit::Tool {
    wit::Tool { name: tool.name, description: tool.description, parameters: tool.parameters }
}

pub(crate) fn action_in(action: wit::Action) -> Action {
    Action { name: action.name, arguments: action.arguments }
}

pub(crate) fn snapshot_options_in(options: &wit::SnapshotOptions) -> SnapshotOptions {
    let wit::SnapshotOptions { tokens_max, changes, whole_page, extra: _ } = *options;
    SnapshotOptions { tokens_max, changes, whole_page }
}

pub(crate) fn screenshot_options_in(options: &wit::ScreenshotOptions) -> ScreenshotOptions {
    let wit::ScreenshotOptions { format, quality, scale, full_page, extra: _ } = *options;
    let format = match format {
        wit::Format::Png => PictureFormat::Png,
        wit::Format::Jpeg => PictureFormat::Jpeg,
        wit::Format::Webp => PictureFormat::Webp,
    };
    ScreenshotOptions { format, quality, scale, full_page }
}

pub(crate) fn world_in(world: wit::ScriptWorld) -> ScriptWorld {
    match world {
        wit::ScriptWorld::Page => ScriptWorld::Page,
        wit::ScriptWorld::Isolated => ScriptWorld::Isolated,
    }
}

pub(crate) fn tab_out(tab: Tab) -> wit::Tab {
    let Tab { index, url, title, is_active } = tab;
    wit::Tab { index, url, title, is_active, extra: None }
}

pub(crate) fn snapshot_out(snapshot: Snapshot) -> wit::Snapshot {
    let Snapshot { text, tokens, left_out } = snapshot;
    wit::Snapshot { text, tokens, left_out, extra: None }
}

pub(crate) fn picture_out(picture: Picture) -> wit::Picture {
    let Picture { blob, width, height } = picture;
    wit::Picture { blob, width, height, extra: None }
}

pub(crate) fn step_out(step: BrowserStep) -> wit::Step {
    wit::Step {
        name: step.name,
        outcome: outcome_out(step.outcome),
        element: step.element.map(element_out),
        position: step.position.map(position_out),
        meanwhile: step.meanwhile.into_iter().map(effect_out).collect(),
        effects: step.effects.into_iter().map(effect_out).collect(),
        settled: step.settled.map(settled_out),
        duration_ms: step.duration_ms,
        text: step.text,
        extra: None,
    }
}

fn outcome_out(outcome: StepOutcome) -> wit::Outcome {
    match outcome {
        StepOutcome::Done => wit::Outcome::Done,
        StepOutcome::Failed { code, text } => wit::Outcome::Failed(wit::Problem { code, text }),
        StepOutcome::Skipped(reason) => wit::Outcome::Skipped(reason),
        StepOutcome::Ended { response, status } => wit::Outcome::Ended(wit::End { response, status }),
        StepOutcome::Asked(message) => wit::Outcome::Asked(message),
    }
}

fn element_out(element: ElementNote) -> wit::Element {
    let ElementNote { text, role, name, tag, area } = element;
    let area = area.map(|Area { x, y, width, height }| wit::Area { x, y, width, height });
    wit::Element { text, role, name, tag, area, extra: None }
}

fn position_out(position: Position) -> wit::Position {
    wit::Position { x: position.x, y: position.y }
}

fn effect_out(effect: Effect) -> wit::Effect {
    match effect {
        Effect::Navigated { url, title, status, within_document } => {
            wit::Effect::Navigated(wit::Navigation { url, title, status, within_document })
        }
        Effect::NavigationFailed { url, reason } => {
            wit::Effect::NavigationFailed(wit::NavigationFailure { url, reason })
        }
        Effect::Blocked(url) => wit::Effect::Blocked(url),
        Effect::TabOpened(tab) => wit::Effect::TabOpened(tab_out(tab)),
        Effect::TabClosed(index) => wit::Effect::TabClosed(index),
        Effect::Dialog { kind, message, answer } => {
            wit::Effect::Dialog(wit::Dialog { kind, message, answer })
        }
        Effect::Downloaded { name, url, blob, length } => {
            wit::Effect::Downloaded(wit::Download { name, url, blob, length })
        }
        Effect::DownloadFailed { name, reason } => {
            wit::Effect::DownloadFailed(wit::DownloadFailure { name, reason })
        }
        Effect::ConsoleErrors { count, first } => wit::Effect::ConsoleErrors((count, first)),
        Effect::Scrolled { what, x, y, at_end } => wit::Effect::Scrolled(wit::Scroll { what, x, y, at_end }),
        Effect::Changed(summary) => wit::Effect::Changed(summary),
        Effect::NothingChanged => wit::Effect::NothingChanged,
    }
}

fn settled_out(settled: Settled) -> wit::Settled {
    let Settled { cause, after_ms, pending } = settled;
    wit::Settled { cause, after_ms, pending }
}
