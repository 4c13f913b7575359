//! What a context makes its pages believe: viewport, locale, time zone, place, colours, touch, network.

use crate::error::{BrowserError, Result};
use crate::page::startup::Startup;
use crate::protocol::Raw;
use chromiumoxide::cdp::browser_protocol::emulation::{
    MediaFeature, SetDeviceMetricsOverrideParams, SetEmulatedMediaParams, SetFocusEmulationEnabledParams,
    SetGeolocationOverrideParams, SetLocaleOverrideParams, SetScriptExecutionDisabledParams,
    SetTimezoneOverrideParams, SetTouchEmulationEnabledParams, SetUserAgentOverrideParams,
};
use chromiumoxide::cdp::browser_protocol::network::{
    Headers, OverrideNetworkStateParams, SetExtraHttpHeadersParams,
};
use chromiumoxide::cdp::browser_protocol::page::SetBypassCspParams;
use chromiumoxide::cdp::browser_protocol::security::SetIgnoreCertificateErrorsParams;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;

/// The longest side of a viewport, in CSS pixels.
const SIDE_MAX: u32 = 16_384;

/// The size of a page's visible part, in CSS pixels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Viewport {
    /// Pixels across.
    pub width: u32,
    /// Pixels down.
    pub height: u32,
}

impl Default for Viewport {
    /// 1280 x 720.
    fn default() -> Self {
        Viewport { width: 1280, height: 720 }
    }
}

/// Where the device is said to be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Geolocation {
    /// Degrees, -90 to 90.
    pub latitude: f64,
    /// Degrees, -180 to 180.
    pub longitude: f64,
    /// Metres.
    pub accuracy: f64,
}

/// The preferred colours of `prefers-color-scheme`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ColorScheme {
    /// Light.
    #[default]
    Light,
    /// Dark.
    Dark,
}

impl ColorScheme {
    fn as_str(self) -> &'static str {
        match self {
            ColorScheme::Light => "light",
            ColorScheme::Dark => "dark",
        }
    }
}

/// Which style sheets apply.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Media {
    /// Those for screens.
    #[default]
    Screen,
    /// Those for print.
    Print,
}

/// How a page's media queries are answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MediaOptions {
    /// Screen or print.
    pub media: Media,
    /// `prefers-color-scheme`.
    pub color_scheme: ColorScheme,
    /// Whether `prefers-reduced-motion: reduce` holds.
    pub reduced_motion: bool,
    /// Whether `forced-colors: active` holds.
    pub forced_colors: bool,
}

impl MediaOptions {
    pub(crate) fn command(self) -> SetEmulatedMediaParams {
        let feature =
            |name: &str, value: &str| MediaFeature { name: name.to_owned(), value: value.to_owned() };
        let media = match self.media {
            Media::Screen => "",
            Media::Print => "print",
        };
        SetEmulatedMediaParams {
            media: Some(media.to_owned()),
            features: Some(vec![
                feature("prefers-color-scheme", self.color_scheme.as_str()),
                feature("prefers-reduced-motion", if self.reduced_motion { "reduce" } else { "" }),
                feature("forced-colors", if self.forced_colors { "active" } else { "" }),
            ]),
        }
    }
}

/// What is the same for every page of a context and can be changed while it is open.
#[derive(Clone, Debug, Default)]
pub(crate) struct Emulated {
    pub(crate) viewport: Viewport,
    pub(crate) device_scale_factor: f64,
    pub(crate) mobile: bool,
    pub(crate) touch: bool,
    pub(crate) locale: Option<String>,
    pub(crate) timezone: Option<String>,
    pub(crate) user_agent: Option<String>,
    pub(crate) geolocation: Option<Geolocation>,
    pub(crate) media: MediaOptions,
    pub(crate) offline: bool,
    pub(crate) extra_headers: BTreeMap<String, String>,
    pub(crate) javascript_disabled: bool,
    pub(crate) bypass_csp: bool,
    pub(crate) ignore_https_errors: bool,
    pub(crate) cache_disabled: bool,
}

impl Emulated {
    /// Fails where a value could never hold.
    pub(crate) fn check(&self) -> Result<()> {
        check_viewport(self.viewport)?;
        if !(self.device_scale_factor > 0.0 && self.device_scale_factor <= 10.0) {
            return Err(BrowserError::invalid(format!(
                "device_scale_factor {}: expected above 0 and at most 10",
                self.device_scale_factor
            )));
        }
        self.geolocation.as_ref().map_or(Ok(()), check_geolocation)
    }

    /// Sends what a new session needs. `main`: the page's own, not a frame of another process.
    pub(crate) fn apply(&self, startup: &mut Startup<'_>, main: bool) {
        if main {
            startup.send(self.metrics(self.viewport));
            startup.send(SetFocusEmulationEnabledParams::new(true));
        }
        if self.touch {
            startup.send(touch(true));
        }
        if let Some(locale) = &self.locale {
            startup.send(SetLocaleOverrideParams { locale: Some(locale.clone()) });
        }
        if let Some(timezone) = &self.timezone {
            startup.send(SetTimezoneOverrideParams::new(timezone.clone()));
        }
        if let Some(command) = self.user_agent(startup.default_user_agent()) {
            startup.send(command);
        }
        if self.geolocation.is_some() {
            startup.send(geolocation(self.geolocation));
        }
        startup.send(self.media.command());
        if self.offline {
            let (requests, state) = offline(true);
            startup.send(requests);
            startup.send(state);
        }
        if !self.extra_headers.is_empty() {
            startup.send(headers(&self.extra_headers));
        }
        if self.cache_disabled {
            startup.send(crate::archive::without_cache());
        }
        if self.javascript_disabled {
            startup.send(SetScriptExecutionDisabledParams::new(true));
        }
        if self.bypass_csp {
            startup.send(SetBypassCspParams::new(true));
        }
        if self.ignore_https_errors {
            startup.send(SetIgnoreCertificateErrorsParams::new(true));
        }
    }

    pub(crate) fn metrics(&self, viewport: Viewport) -> SetDeviceMetricsOverrideParams {
        let (width, height) = (i64::from(viewport.width), i64::from(viewport.height));
        let mut command =
            SetDeviceMetricsOverrideParams::new(width, height, self.device_scale_factor, self.mobile);
        command.screen_width = Some(width);
        command.screen_height = Some(height);
        command
    }

    fn user_agent(&self, default: &str) -> Option<SetUserAgentOverrideParams> {
        if self.user_agent.is_none() && self.locale.is_none() {
            return None;
        }
        let mut command =
            SetUserAgentOverrideParams::new(self.user_agent.clone().unwrap_or_else(|| default.to_owned()));
        command.accept_language = self.locale.clone();
        Some(command)
    }
}

pub(crate) fn check_viewport(viewport: Viewport) -> Result<()> {
    let fits = |side: u32| (1..=SIDE_MAX).contains(&side);
    if fits(viewport.width) && fits(viewport.height) {
        return Ok(());
    }
    Err(BrowserError::invalid(format!(
        "viewport {}x{}: expected sides of 1 to {SIDE_MAX} pixels",
        viewport.width, viewport.height
    )))
}

pub(crate) fn check_geolocation(place: &Geolocation) -> Result<()> {
    let fits = place.latitude.abs() <= 90.0 && place.longitude.abs() <= 180.0 && place.accuracy >= 0.0;
    if fits {
        return Ok(());
    }
    Err(BrowserError::invalid(format!(
        "geolocation {}, {} within {} m: expected latitude -90 to 90, longitude -180 to 180, accuracy from 0",
        place.latitude, place.longitude, place.accuracy
    )))
}

/// `None`: the place is unknown.
pub(crate) fn geolocation(place: Option<Geolocation>) -> SetGeolocationOverrideParams {
    SetGeolocationOverrideParams {
        latitude: place.map(|place| place.latitude),
        longitude: place.map(|place| place.longitude),
        accuracy: place.map(|place| place.accuracy),
        ..SetGeolocationOverrideParams::default()
    }
}

/// What requests meet, and what `navigator.onLine` says.
pub(crate) fn offline(offline: bool) -> (Raw, OverrideNetworkStateParams) {
    let rules = json!({ "offline": offline, "matchedNetworkConditions": [{
        "urlPattern": "", "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1,
    }] });
    let rules = Raw::new("Network.emulateNetworkConditionsByRule", rules);
    (rules, OverrideNetworkStateParams::new(offline, 0.0, -1.0, -1.0))
}

pub(crate) fn touch(enabled: bool) -> SetTouchEmulationEnabledParams {
    let mut command = SetTouchEmulationEnabledParams::new(enabled);
    command.max_touch_points = Some(5);
    command
}

pub(crate) fn headers(headers: &BTreeMap<String, String>) -> SetExtraHttpHeadersParams {
    let headers: serde_json::Map<String, serde_json::Value> =
        headers.iter().map(|(name, value)| (name.clone(), value.clone().into())).collect();
    SetExtraHttpHeadersParams::new(Headers::new(serde_json::Value::Object(headers)))
}
