//! A browser as experiments and tasks ask for it, and as it is made.

use crate::limits::{DurationText, SizeText};
use crate::sandbox::{Network, Rule, SandboxSpec};
use crate::service::SERVICE_DOMAIN;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Longest URL, bytes.
const URL_BYTES_MAX: usize = 2 << 20;
/// As much of a value as an error repeats.
const SHOWN_CHARACTERS_MAX: usize = 200;
/// Pixels of a side of the viewport: the least and the most.
const SIDE: (u32, u32) = (64, 8192);
/// [`BrowserSpec::settle_max`]: the least and the most.
const SETTLE: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(60));
/// [`Deterministic::step`]: the most.
const STEP_MAX: Duration = Duration::from_secs(3600);
/// [`Deterministic::start_ms`]: the end of the year 9999.
const START_MS_MAX: u64 = 253_402_300_799_999;
/// Browsers of rollouts in one process of Chromium: the most.
const CONTEXTS_MAX: usize = 256;

/// Which colours pages are asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ColorScheme {
    /// Dark text on light ground.
    #[default]
    Light,
    /// The reverse.
    Dark,
}

/// How dialogs of pages are answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Dialogs {
    /// With OK; prompts with their default text.
    #[default]
    Accept,
    /// With Cancel.
    Dismiss,
}

/// Which tools a model is given, besides the usual ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct BrowserTools {
    /// Whether tools take points `[x, y]`, both from 0 to 1000 over the viewport. Default true.
    pub points: bool,
    /// Whether tools take references of the last snapshot. Default true.
    pub references: bool,
    /// Whether there is `call_user`. Default false.
    pub call_user: bool,
    /// Whether there is `terminate`. Default false.
    pub terminate: bool,
}

impl Default for BrowserTools {
    fn default() -> BrowserTools {
        BrowserTools { points: true, references: true, call_user: false, terminate: false }
    }
}

/// What becomes of requests that an archive does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Misses {
    /// They fail.
    #[default]
    Fail,
    /// They go to the network.
    Live,
}

/// An episode in which the same actions on the same content give the same page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Deterministic {
    /// What random numbers of pages are made from. Default 0.
    pub seed: u64,
    /// The time at which it begins, in milliseconds since 1970; default 1767225600000, the beginning of 2026.
    pub start_ms: u64,
    /// How far the time of pages goes on with each action, 0ms to 1h; default 500ms. Between actions it stands still.
    pub step: DurationText,
    /// File with a recorded archive, beside the experiment file, that answers all requests. Without it they go to the network, and are
    /// recorded: `espalier show ROLLOUT --blob browser-archive` prints what was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub archive: Option<String>,
    /// What becomes of requests that the archive does not have: `fail` (default) or `live`.
    pub misses: Misses,
}

impl Default for Deterministic {
    fn default() -> Deterministic {
        Deterministic {
            seed: 0,
            start_ms: 1_767_225_600_000,
            step: DurationText(Duration::from_millis(500)),
            archive: None,
            misses: Misses::default(),
        }
    }
}

/// The keys of [`BrowserSpec`] as a file writes them, and those of one kind of file alone.
macro_rules! browser_keys {
    ($(#[$attribute:meta])* pub struct $name:ident { $($own:tt)* }) => {
        $(#[$attribute])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            /// The page that is open at first; default `about:blank`.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub start_url: Option<String>,
            /// Width and height of the viewport in CSS pixels, 64 to 8192 each; default `[1280, 1000]`.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub viewport: Option<[u32; 2]>,
            /// Device pixels per CSS pixel, 0.25 to 4; default 1.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub device_scale: Option<f64>,
            /// Language and region, such as `de-DE`; default `en-US`.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub locale: Option<String>,
            /// Time zone, such as `Europe/Berlin`; default `UTC`.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub timezone: Option<String>,
            /// `light` (default) or `dark`.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub color_scheme: Option<ColorScheme>,
            /// Whether it has a touch screen; default false.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub touch: Option<bool>,
            /// How dialogs are answered: `accept` (default) or `dismiss`.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub dialogs: Option<Dialogs>,
            /// What pages may reach: `none` (default), or `allow` with a list such as `["example.org:443"]`. Only what the experiment
            /// allows as well.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub network: Option<Network>,
            /// Longest time that a page is waited for after an action, 50ms to 60s; default 5s.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub settle_max: Option<DurationText>,
            /// Which tools the model is given.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub tools: Option<BrowserTools>,
            /// The sandbox of the task that it runs in, such as `main`: its pages reach the servers there, and what they download lands in
            /// its folder `/tmp/downloads`. Its network is that of the sandbox. Default: a sandbox of its own.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub sandbox: Option<String>,
            /// Makes episodes repeatable; `{}` for all defaults.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub deterministic: Option<Deterministic>,
            $($own)*
        }
    };
}

browser_keys! {
    /// A browser; every key is optional.
    pub struct BrowserFile {}
}

browser_keys! {
    /// The browser of each rollout. What it says wins over a task; the network is an upper bound where both speak.
    pub struct BrowserConfig {
        /// Browsers of rollouts that share one process of Chromium, 1 to 256; default 8.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub contexts_max: Option<usize>,
        /// CPU cores of one process of Chromium with all its children; 0.01 to 1024, default 2.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub cpu: Option<f64>,
        /// Memory of one process of Chromium with all its children; default 2GiB.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub memory: Option<SizeText>,
        /// The image that Chromium is started from, as in `[sandbox]`; default `host`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub image: Option<String>,
        /// The program in the image; default: `chromium-headless-shell`, or `chromium`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pub executable: Option<String>,
        /// Start Chromium without its own sandbox, in a process of its own for each rollout. Default false.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        pub no_sandbox: bool,
    }
}

impl BrowserConfig {
    /// What bounds a task's browser.
    pub fn file(&self) -> BrowserFile {
        BrowserFile {
            start_url: self.start_url.clone(),
            viewport: self.viewport,
            device_scale: self.device_scale,
            locale: self.locale.clone(),
            timezone: self.timezone.clone(),
            color_scheme: self.color_scheme,
            touch: self.touch,
            dialogs: self.dialogs,
            network: self.network.clone(),
            settle_max: self.settle_max,
            tools: self.tools,
            sandbox: self.sandbox.clone(),
            deterministic: self.deterministic.clone(),
        }
    }

    /// What its processes are.
    pub fn process(&self) -> Result<ProcessSpec, BrowserError> {
        let default = ProcessSpec::default();
        let contexts_max = self.contexts_max.unwrap_or(default.contexts_max);
        if !(1..=CONTEXTS_MAX).contains(&contexts_max) {
            return Err(BrowserError::new("contexts_max", contexts_max, "1 to 256"));
        }
        let memory = self.memory.map_or(default.memory, |size| size.0);
        let cpu = self.cpu.unwrap_or(default.cpu);
        if !(0.01..=1024.0).contains(&cpu) {
            return Err(BrowserError::new("cpu", cpu, "0.01 to 1024 cores"));
        }
        if memory < 128 << 20 {
            return Err(BrowserError::new("memory", SizeText(memory), "128MiB at least"));
        }
        Ok(ProcessSpec {
            contexts_max: if self.no_sandbox { 1 } else { contexts_max },
            cpu,
            memory,
            image: self.image.clone().unwrap_or(default.image),
            executable: self.executable.clone(),
            no_sandbox: self.no_sandbox,
        })
    }
}

/// The processes that the browsers of a run live in.
#[derive(Clone, Debug, PartialEq)]
pub struct ProcessSpec {
    /// Browsers of rollouts in one.
    pub contexts_max: usize,
    /// Cores of one.
    pub cpu: f64,
    /// Bytes of one.
    pub memory: u64,
    /// The image.
    pub image: String,
    /// The program; `None`: the first that is found.
    pub executable: Option<String>,
    /// Without Chromium's own sandbox.
    pub no_sandbox: bool,
}

impl Default for ProcessSpec {
    fn default() -> ProcessSpec {
        ProcessSpec {
            contexts_max: 8,
            cpu: 2.0,
            memory: 2 << 30,
            image: "host".to_owned(),
            executable: None,
            no_sandbox: false,
        }
    }
}

/// A browser, said in full.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BrowserSpec {
    /// See [`BrowserFile::start_url`].
    pub start_url: String,
    /// CSS pixels.
    pub viewport: [u32; 2],
    /// Device pixels per CSS pixel.
    pub device_scale: f64,
    /// Language and region.
    pub locale: String,
    /// Time zone.
    pub timezone: String,
    /// Colours.
    pub color_scheme: ColorScheme,
    /// Whether it has a touch screen.
    pub touch: bool,
    /// How dialogs are answered.
    pub dialogs: Dialogs,
    /// What pages may reach.
    pub network: Network,
    /// Longest wait after an action.
    pub settle_max: Duration,
    /// Tools.
    pub tools: BrowserTools,
    /// The sandbox of the task that it runs in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<String>,
    /// Whether, and how, its episodes are repeatable.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deterministic: Option<Deterministic>,
}

impl Default for BrowserSpec {
    fn default() -> BrowserSpec {
        BrowserSpec {
            start_url: "about:blank".to_owned(),
            viewport: [1280, 1000],
            device_scale: 1.0,
            locale: "en-US".to_owned(),
            timezone: "UTC".to_owned(),
            color_scheme: ColorScheme::default(),
            touch: false,
            dialogs: Dialogs::default(),
            network: Network::None,
            settle_max: Duration::from_secs(5),
            tools: BrowserTools::default(),
            sandbox: None,
            deterministic: None,
        }
    }
}

/// A value that no browser can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid browser.{key} {value:?}: expected {wanted}")]
pub struct BrowserError {
    /// Which key.
    pub key: &'static str,
    /// What was asked.
    pub value: String,
    /// What would do.
    pub wanted: &'static str,
}

impl BrowserError {
    fn new(key: &'static str, value: impl std::fmt::Display, wanted: &'static str) -> BrowserError {
        BrowserError { key, value: value.to_string().chars().take(SHOWN_CHARACTERS_MAX).collect(), wanted }
    }
}

impl Deterministic {
    fn check(&self) -> Result<(), BrowserError> {
        if self.step.0 > STEP_MAX {
            return Err(BrowserError::new("deterministic.step", self.step, "0ms to 1h"));
        }
        if self.start_ms > START_MS_MAX {
            let wanted = "milliseconds since 1970, before the year 10000";
            return Err(BrowserError::new("deterministic.start_ms", self.start_ms, wanted));
        }
        if let Some(archive) = self.archive.as_ref().filter(|path| path.is_empty() || path.contains('\0')) {
            return Err(BrowserError::new("deterministic.archive", archive, "the path of a file"));
        }
        if self.archive.is_none() && self.misses == Misses::Live {
            return Err(BrowserError::new(
                "deterministic.misses",
                "live",
                "an `archive` that may miss a request",
            ));
        }
        Ok(())
    }
}

impl BrowserSpec {
    /// What holds: what the experiment says wins; a network is what both allow, and what leaves the machine the experiment has to name.
    pub fn resolve(experiment: &BrowserFile, task: &BrowserFile) -> Result<BrowserSpec, BrowserError> {
        let default = BrowserSpec::default();
        let text = |one: &Option<String>, other: &Option<String>, default: String| {
            one.clone().or_else(|| other.clone()).unwrap_or(default)
        };
        let network = match (&experiment.network, &task.network) {
            (Some(experiment), Some(task)) => experiment.and(task),
            (Some(experiment), None) => experiment.clone(),
            (None, _) => Network::None,
        };
        let sandbox = experiment.sandbox.as_ref().or(task.sandbox.as_ref());
        // What `[browser]` says of the network is said of browsers in sandboxes of their own, where a task alone names one of its.
        let is_given = task.network.is_some() || experiment.sandbox.is_some() && experiment.network.is_some();
        if let Some(name) = sandbox.filter(|_| is_given) {
            let wanted = "no `browser.network` beside it: the browser has the network of the sandbox";
            return Err(BrowserError::new("sandbox", name, wanted));
        }
        let settle = experiment.settle_max.or(task.settle_max);
        let spec = BrowserSpec {
            start_url: text(&experiment.start_url, &task.start_url, default.start_url),
            viewport: experiment.viewport.or(task.viewport).unwrap_or(default.viewport),
            device_scale: experiment.device_scale.or(task.device_scale).unwrap_or(default.device_scale),
            locale: text(&experiment.locale, &task.locale, default.locale),
            timezone: text(&experiment.timezone, &task.timezone, default.timezone),
            color_scheme: experiment.color_scheme.or(task.color_scheme).unwrap_or_default(),
            touch: experiment.touch.or(task.touch).unwrap_or_default(),
            dialogs: experiment.dialogs.or(task.dialogs).unwrap_or_default(),
            network,
            settle_max: settle.map_or(default.settle_max, |DurationText(time)| time),
            tools: experiment.tools.or(task.tools).unwrap_or_default(),
            sandbox: sandbox.cloned(),
            deterministic: experiment.deterministic.clone().or_else(|| task.deterministic.clone()),
        };
        spec.check()?;
        Ok(spec)
    }

    /// Whether the sandbox that it runs in, if it does, is one that Chromium starts in: `find` gives the task's sandbox of a name, or which
    /// there are.
    pub fn check_sandbox(
        &self,
        no_sandbox: bool,
        find: impl FnOnce(&str) -> Result<SandboxSpec, String>,
    ) -> Result<(), String> {
        let Some(name) = &self.sandbox else { return Ok(()) };
        let spec = find(name).map_err(|why| format!("browser.sandbox {name:?}: {why}"))?;
        if !no_sandbox && !spec.user_namespaces {
            return Err(format!(
                "browser.sandbox {name:?}: Chromium's own sandbox needs `user_namespaces = true` in `[sandbox]` of the experiment; or set `no_sandbox = true` in `[browser]`"
            ));
        }
        let Some((service, _)) = service_of(&self.start_url) else {
            return match spec.network {
                Network::None => Err(format!(
                    "browser.sandbox {name:?}: pages could reach nothing, as that sandbox has no network; set `network = \"loopback\"`, or a list, in `[sandbox]` of the experiment"
                )),
                Network::Loopback | Network::Allow(_) => Ok(()),
            };
        };
        let rule = format!("service:{service}");
        match &spec.network {
            Network::Allow(rules) if rules.iter().any(|known| known.eq_ignore_ascii_case(&rule)) => Ok(()),
            _ => Err(format!(
                "browser.start_url {:?}: the sandbox {name:?} that the browser runs in does not reach it; add {rule:?} to `network.allow` in `[sandbox]` of the experiment",
                self.shown_start()
            )),
        }
    }

    /// Whether its start page, if that is of a service, is of one that the task has, and whether its network can be replayed with them.
    pub fn check_services<'a>(&self, names: impl Iterator<Item = &'a str>) -> Result<(), String> {
        let names: Vec<&str> = names.collect();
        if let Some((service, is_plain)) = service_of(&self.start_url) {
            let url = self.shown_start();
            if !names.contains(&service.as_str()) {
                let has = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
                return Err(format!(
                    "browser.start_url {url:?}: the task has no service {service:?}; its `services`: {has}"
                ));
            }
            if !is_plain {
                return Err(format!(
                    "browser.start_url {url:?}: services are at http://{service}.{SERVICE_DOMAIN}/, at no other scheme or port"
                ));
            }
            if !self.start_url.contains("{sid}") {
                return Err(format!(
                    "browser.start_url {url:?}: the page would find no session; add the session's id, as in `/?sid={{sid}}`"
                ));
            }
        }
        match &self.deterministic {
            Some(Deterministic { archive: Some(archive), misses: Misses::Fail, .. }) if !names.is_empty() => {
                Err(format!(
                    "browser.deterministic.archive {archive:?}: requests to services differ from rollout to rollout by their session, so they cannot \
                 come from an archive; set `misses = \"live\"`"
                ))
            }
            _ => Ok(()),
        }
    }

    /// Whether its network, where it has one of its own, may let its start page through. What is replayed from an archive needs none.
    pub fn check_start(&self) -> Result<(), String> {
        let is_replayed = self.deterministic.as_ref().is_some_and(|replay| replay.archive.is_some());
        let Some(Origin { host, port, .. }) = Origin::of(&self.start_url) else { return Ok(()) };
        if self.sandbox.is_some()
            || is_replayed
            || service_of(&self.start_url).is_some()
            || self.network.may_reach(&host, port)
        {
            return Ok(());
        }
        Err(format!(
            "browser.start_url {:?}: pages may not reach it; add {:?} to `network.allow` in `[browser]` of the experiment, and to that of the task if it has one",
            self.shown_start(),
            format!("{host}:{port}")
        ))
    }

    fn shown_start(&self) -> String {
        self.start_url.chars().take(SHOWN_CHARACTERS_MAX).collect()
    }

    /// Whether every value is one that a browser can have.
    pub fn check(&self) -> Result<(), BrowserError> {
        let known = ["http://", "https://"].iter().any(|scheme| self.start_url.starts_with(scheme));
        if !(known || self.start_url == "about:blank") || self.start_url.len() > URL_BYTES_MAX {
            return Err(BrowserError::new(
                "start_url",
                &self.start_url,
                "http://..., https://... or about:blank",
            ));
        }
        let [width, height] = self.viewport;
        if !(SIDE.0..=SIDE.1).contains(&width) || !(SIDE.0..=SIDE.1).contains(&height) {
            let value = format!("[{width}, {height}]");
            return Err(BrowserError::new("viewport", value, "a width and a height from 64 to 8192"));
        }
        if !(0.25..=4.0).contains(&self.device_scale) {
            return Err(BrowserError::new("device_scale", self.device_scale, "0.25 to 4"));
        }
        if !(SETTLE.0..=SETTLE.1).contains(&self.settle_max) {
            return Err(BrowserError::new("settle_max", DurationText(self.settle_max), "50ms to 60s"));
        }
        let plain = |text: &str| {
            let fine = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '/' | '+');
            (1..=64).contains(&text.len()) && text.chars().all(fine)
        };
        if !plain(&self.locale) {
            return Err(BrowserError::new("locale", &self.locale, "a language and region, such as `en-US`"));
        }
        if !plain(&self.timezone) {
            return Err(BrowserError::new(
                "timezone",
                &self.timezone,
                "a time zone, such as `Europe/Berlin`",
            ));
        }
        if let Network::Allow(rules) = &self.network {
            for rule in rules {
                Rule::parse(rule).map_err(|error| BrowserError::new("network.allow", rule, error.wanted))?;
            }
        }
        if let Some(deterministic) = &self.deterministic {
            deterministic.check()?;
        }
        if !self.tools.points && !self.tools.references {
            let both = "{ points = false, references = false }";
            return Err(BrowserError::new("tools", both, "at least one of them to be true"));
        }
        Ok(())
    }
}

/// Whom a URL asks.
struct Origin {
    /// In lower case; an IPv6 address in brackets.
    host: String,
    /// As the URL says, or of its scheme; 0 is none that there is.
    port: u16,
    is_http: bool,
}

impl Origin {
    fn of(url: &str) -> Option<Origin> {
        let (scheme, rest) = url.split_once("://")?;
        let is_http = scheme.eq_ignore_ascii_case("http");
        let authority = rest.split(['/', '?', '#', '\\']).next()?;
        let host = authority.rsplit('@').next()?;
        let (host, port) = match host.rsplit_once(':').filter(|(_, port)| !port.ends_with(']')) {
            Some((host, port)) => (host, port),
            None => (host, ""),
        };
        let port = match port {
            "" if is_http => 80,
            "" => 443,
            port => port.parse().unwrap_or(0),
        };
        Some(Origin { host: host.trim_end_matches('.').to_ascii_lowercase(), port, is_http })
    }
}

/// The service that a URL is of, and whether it is reached there: by `http`, at port 80.
fn service_of(url: &str) -> Option<(String, bool)> {
    let Origin { host, port, is_http } = Origin::of(url)?;
    let name = host.strip_suffix(SERVICE_DOMAIN)?.strip_suffix('.')?;
    Some((name.to_owned(), is_http && port == 80))
}

#[cfg(test)]
mod tests;
