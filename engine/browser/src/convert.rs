//! Between the types of `espalier_browser::agent` and those of `espalier_core::host::browser`.

use espalier_browser::agent::{self, SettleOptions, ToolOptions};
use espalier_browser::{
    ColorScheme as PageColors, ContextOptions, Cookie, SameSite, ServiceWorkers, StorageState, Viewport,
};
use espalier_core::browser::{BrowserSpec, BrowserTools, ColorScheme, Dialogs};
use espalier_core::chat::Tool;
use espalier_core::host::browser::{
    Action, Area, BrowserStep, Effect, ElementNote, PictureFormat, Position, ScreenshotOptions, ScriptWorld,
    Settled, SnapshotOptions, StepOutcome, Tab,
};
use espalier_core::sandbox::Network;
use espalier_core::service::{SESSION_COOKIE, ServiceSession};
use serde_json::Value;

fn viewport(spec: &BrowserSpec) -> Viewport {
    let [width, height] = spec.viewport;
    Viewport { width, height }
}

/// A browser that reaches the services of its rollout.
pub(crate) fn with_services(mut spec: BrowserSpec, services: Option<&ServiceSession>) -> BrowserSpec {
    let Some(services) = services else { return spec };
    spec.start_url = services.fill(&spec.start_url);
    let mut rules = match spec.network {
        Network::Allow(rules) => rules,
        Network::None | Network::Loopback => Vec::new(),
    };
    for name in &services.names {
        let rule = format!("service:{name}");
        if !rules.contains(&rule) {
            rules.push(rule);
        }
    }
    spec.network = Network::Allow(rules);
    spec
}

/// The cookie of the session, for each service: no script reads it, no other site's request carries it.
fn storage_state(services: &ServiceSession) -> StorageState {
    let cookie = |host: String| Cookie {
        http_only: true,
        same_site: SameSite::Strict,
        ..Cookie::new(SESSION_COOKIE, services.token.clone(), host)
    };
    StorageState { cookies: services.hosts().map(cookie).collect(), ..StorageState::default() }
}

pub(crate) fn context_options(spec: &BrowserSpec, services: Option<&ServiceSession>) -> ContextOptions {
    ContextOptions {
        viewport: viewport(spec),
        device_scale_factor: spec.device_scale,
        locale: Some(spec.locale.clone()),
        timezone: Some(spec.timezone.clone()),
        color_scheme: match spec.color_scheme {
            ColorScheme::Light => PageColors::Light,
            ColorScheme::Dark => PageColors::Dark,
        },
        touch: spec.touch,
        deterministic: spec.deterministic.as_ref().map(crate::episode::options),
        storage_state: services.map(storage_state),
        // What they write to the console goes through the one thread that all contexts of a process need, and nothing slows them down.
        service_workers: match spec.sandbox {
            None => ServiceWorkers::Block,
            Some(_) => ServiceWorkers::Allow,
        },
        ..ContextOptions::default()
    }
}

fn tool_options(tools: BrowserTools) -> ToolOptions {
    ToolOptions {
        points: tools.points,
        refs: tools.references,
        call_user: tools.call_user,
        terminate: tools.terminate,
    }
}

/// What a model is given that may use these.
pub fn tools(tools: BrowserTools) -> Vec<Tool> {
    agent::tools(&tool_options(tools)).into_iter().map(tool).collect()
}

pub(crate) fn session_options(spec: &BrowserSpec) -> agent::SessionOptions {
    agent::SessionOptions {
        viewport: viewport(spec),
        tools: tool_options(spec.tools),
        settle: SettleOptions { bound: spec.settle_max, ..SettleOptions::default() },
        dialogs: match spec.dialogs {
            Dialogs::Accept => agent::DialogAnswer::Accept,
            Dialogs::Dismiss => agent::DialogAnswer::Dismiss,
        },
        ..agent::SessionOptions::default()
    }
}

pub(crate) fn tool(tool: agent::ToolSchema) -> Tool {
    Tool { name: tool.name, description: tool.description, parameters: tool.parameters.to_string() }
}

/// Arguments that are not JSON are handed on as text, which the tool refuses by name.
pub(crate) fn call(action: Action) -> agent::ToolCall {
    let arguments = serde_json::from_str(&action.arguments).unwrap_or(Value::String(action.arguments));
    agent::ToolCall::new(action.name, arguments)
}

pub(crate) fn snapshot_options(options: &SnapshotOptions) -> agent::SnapshotOptions {
    let default = agent::SnapshotOptions::default();
    agent::SnapshotOptions {
        tokens_max: options.tokens_max.unwrap_or(default.tokens_max),
        changes: options.changes,
        viewport_only: !options.whole_page,
    }
}

pub(crate) fn picture_options(options: &ScreenshotOptions) -> agent::PictureOptions {
    let default = agent::PictureOptions::default();
    agent::PictureOptions {
        format: match options.format {
            PictureFormat::Png => agent::PictureFormat::Png,
            PictureFormat::Jpeg => agent::PictureFormat::Jpeg,
            PictureFormat::Webp => agent::PictureFormat::Webp,
        },
        quality: options.quality.unwrap_or(default.quality),
        scale: options.scale.unwrap_or(default.scale),
        full_page: options.full_page,
        ..default
    }
}

pub(crate) fn world(world: ScriptWorld) -> agent::ScriptWorld {
    match world {
        ScriptWorld::Page => agent::ScriptWorld::Main,
        ScriptWorld::Isolated => agent::ScriptWorld::Isolated,
    }
}

fn index(index: usize) -> u32 {
    u32::try_from(index).unwrap_or(u32::MAX)
}

pub(crate) fn tab(tab: agent::Tab) -> Tab {
    Tab { index: index(tab.index), url: tab.url, title: tab.title, is_active: tab.is_active }
}

/// Without its effects.
pub(crate) fn step(step: agent::Step) -> BrowserStep {
    BrowserStep {
        name: step.tool,
        outcome: outcome(step.outcome),
        element: step.element.map(element),
        position: step.point.map(|point| Position { x: point.x, y: point.y }),
        meanwhile: Vec::new(),
        effects: Vec::new(),
        settled: step.settled.map(settled),
        duration_ms: step.duration_ms,
        text: step.text,
    }
}

fn outcome(outcome: agent::StepOutcome) -> StepOutcome {
    match outcome {
        agent::StepOutcome::Done => StepOutcome::Done,
        agent::StepOutcome::Failed { code, text } => StepOutcome::Failed { code: code.to_string(), text },
        agent::StepOutcome::Skipped { reason } => StepOutcome::Skipped(reason),
        agent::StepOutcome::Ended { response, status } => StepOutcome::Ended { response, status },
        agent::StepOutcome::Asked { message } => StepOutcome::Asked(message),
    }
}

fn element(note: agent::ElementNote) -> ElementNote {
    let agent::ElementNote { text, role, name, tag, area, .. } = note;
    let role = role.unwrap_or_default();
    let what = if role.is_empty() { &tag } else { &role };
    let label = if name.is_empty() { &text } else { &name };
    let text = if label.is_empty() { what.clone() } else { format!("{what} {label:?}") };
    let area = Area { x: area.x, y: area.y, width: area.width, height: area.height };
    ElementNote { text, role, name, tag, area: Some(area) }
}

fn settled(settled: agent::Settled) -> Settled {
    let cause = match settled.cause {
        agent::SettleCause::Quiet => "quiet",
        agent::SettleCause::Bound => "bound",
        agent::SettleCause::Navigation => "navigation",
        agent::SettleCause::Dialog => "dialog",
        agent::SettleCause::Closed => "closed",
    };
    Settled { cause: cause.to_owned(), after_ms: settled.after_ms, pending: settled.pending }
}

/// A download is without its blob.
pub(crate) fn effect(effect: agent::Effect) -> Effect {
    match effect {
        agent::Effect::Navigated { url, title, status, within_document } => {
            let status = status.and_then(|status| u16::try_from(status).ok());
            Effect::Navigated { url, title, status, within_document }
        }
        agent::Effect::NavigationFailed { url, reason } => Effect::NavigationFailed { url, reason },
        agent::Effect::Blocked { url } => Effect::Blocked(url),
        agent::Effect::TabOpened { index: at, url, is_active } => {
            Effect::TabOpened(Tab { index: index(at), url, title: String::new(), is_active })
        }
        agent::Effect::TabClosed { index: at } => Effect::TabClosed(index(at)),
        agent::Effect::Dialog { dialog, message, answer } => {
            Effect::Dialog { kind: dialog.to_string(), message, answer }
        }
        agent::Effect::Downloaded { name, url, size, path: _ } => {
            Effect::Downloaded { name, url, blob: None, length: size }
        }
        agent::Effect::DownloadRefused { name, reason } => Effect::DownloadFailed { name, reason },
        agent::Effect::ConsoleErrors { count, first } => {
            Effect::ConsoleErrors { count: u32::try_from(count).unwrap_or(u32::MAX), first }
        }
        agent::Effect::Scrolled { what, x, y, at_end } => Effect::Scrolled { what, x, y, at_end },
        agent::Effect::Changed { summary } => Effect::Changed(summary),
        agent::Effect::NothingChanged => Effect::NothingChanged,
    }
}
