//! What a new context is like.

use crate::auth::Credentials;
use crate::deterministic::DeterministicOptions;
use crate::emulation::{ColorScheme, Emulated, Geolocation, MediaOptions, Viewport};
use crate::launch::Proxy;
use crate::permission::Permission;
use crate::storage::StorageState;
use crate::workers::ServiceWorkers;
use std::collections::BTreeMap;

/// What a new context is like. The default is an empty desktop browser of 1280 x 720.
#[derive(Clone, Debug)]
pub struct ContextOptions {
    /// The size of its pages. Default: 1280 x 720.
    pub viewport: Viewport,
    /// Device pixels a CSS pixel. Default: 1.
    pub device_scale_factor: f64,
    /// Such as `de-DE`: `navigator.language`, `Accept-Language`, number and date formats. Default: Chromium's.
    pub locale: Option<String>,
    /// Such as `Europe/Berlin`. Default: the machine's.
    pub timezone: Option<String>,
    /// Where the device is. Default: unknown. Pages see it with [`Permission::Geolocation`] only.
    pub geolocation: Option<Geolocation>,
    /// Granted to every origin. Default: none; pages that ask are refused.
    pub permissions: Vec<Permission>,
    /// `prefers-color-scheme`. Default: light.
    pub color_scheme: ColorScheme,
    /// Whether the device has a touch screen. Default: false.
    pub touch: bool,
    /// Whether the viewport behaves as on a phone (`meta viewport`, overlay scrollbars). Default: false.
    pub mobile: bool,
    /// Whether the network is cut off. Default: false.
    pub offline: bool,
    /// Sent as `User-Agent`. Default: Chromium's.
    pub user_agent: Option<String>,
    /// Sent with every request.
    pub extra_headers: BTreeMap<String, String>,
    /// Cookies and local storage to start with.
    pub storage_state: Option<StorageState>,
    /// Whether downloads are kept until the context is closed. Default: true. Otherwise they fail.
    pub accept_downloads: bool,
    /// The proxy of its requests. Default: that of the browser.
    pub proxy: Option<Proxy>,
    /// Whether pages run scripts. Default: true. Locators and `evaluate` work either way.
    pub javascript_enabled: bool,
    /// Whether pages' content security policies are ignored. Default: false.
    pub bypass_csp: bool,
    /// Whether invalid certificates are taken. Default: false.
    pub ignore_https_errors: bool,
    /// Given to servers and proxies that ask for a name and a password. Default: they are refused.
    pub http_credentials: Option<Credentials>,
    /// Makes time and chance of its pages the same whenever the same is done: see [`DeterministicOptions`]. Default: off.
    pub deterministic: Option<DeterministicOptions>,
    /// Whether pages may have service workers. Default: they may.
    pub service_workers: ServiceWorkers,
}

impl Default for ContextOptions {
    fn default() -> Self {
        ContextOptions {
            viewport: Viewport::default(),
            device_scale_factor: 1.0,
            locale: None,
            timezone: None,
            geolocation: None,
            permissions: Vec::new(),
            color_scheme: ColorScheme::Light,
            touch: false,
            mobile: false,
            offline: false,
            user_agent: None,
            extra_headers: BTreeMap::new(),
            storage_state: None,
            accept_downloads: true,
            proxy: None,
            javascript_enabled: true,
            bypass_csp: false,
            ignore_https_errors: false,
            http_credentials: None,
            deterministic: None,
            service_workers: ServiceWorkers::Allow,
        }
    }
}

impl ContextOptions {
    pub(crate) fn emulated(&self) -> Emulated {
        Emulated {
            viewport: self.viewport,
            device_scale_factor: self.device_scale_factor,
            mobile: self.mobile,
            touch: self.touch,
            locale: self.locale.clone().or_else(|| self.deterministic.as_ref().map(|of| of.locale.clone())),
            timezone: self
                .timezone
                .clone()
                .or_else(|| self.deterministic.as_ref().map(|of| of.timezone.clone())),
            user_agent: self.user_agent.clone(),
            geolocation: self.geolocation,
            media: MediaOptions { color_scheme: self.color_scheme, ..MediaOptions::default() },
            offline: self.offline,
            extra_headers: self.extra_headers.clone(),
            javascript_disabled: !self.javascript_enabled,
            bypass_csp: self.bypass_csp,
            ignore_https_errors: self.ignore_https_errors,
            cache_disabled: false,
        }
    }
}
