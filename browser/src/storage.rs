//! Cookies, local storage and IndexedDB, in and out.

mod indexed;

pub use indexed::{IndexedDatabase, IndexedIndex, IndexedRecord, IndexedStore};

use crate::context::BrowserContext;
use crate::deadline::Deadline;
use crate::error::{BrowserError, Result};
use crate::frame::Frame;
use crate::page::Page;
use crate::protocol::{Done, Raw};
use crate::route::{Fulfill, Route};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Origins whose storage is looked at.
pub(crate) const ORIGINS_MAX: usize = 1000;

/// One cookie. Written as JSON it is what Playwright writes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Cookie {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
    /// Such as `example.com`, or `.example.com` with its subdomains.
    pub domain: String,
    /// Such as `/`.
    pub path: String,
    /// Seconds since 1970-01-01; -1: until the context is closed.
    pub expires: f64,
    /// Whether scripts cannot read it.
    pub http_only: bool,
    /// Whether it is sent over HTTPS only.
    pub secure: bool,
    /// Whether other sites' requests carry it.
    pub same_site: SameSite,
}

impl Cookie {
    /// A cookie of a host, for all its paths, until the context is closed.
    pub fn new(name: impl Into<String>, value: impl Into<String>, domain: impl Into<String>) -> Cookie {
        Cookie {
            name: name.into(),
            value: value.into(),
            domain: domain.into(),
            path: "/".to_owned(),
            expires: -1.0,
            http_only: false,
            secure: false,
            same_site: SameSite::Lax,
        }
    }
}

/// Whether other sites' requests carry a cookie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum SameSite {
    /// Never.
    Strict,
    /// When the user goes there.
    #[default]
    Lax,
    /// Always.
    None,
}

/// What a context has stored. Written as JSON it is what Playwright writes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StorageState {
    /// All cookies.
    #[serde(default)]
    pub cookies: Vec<Cookie>,
    /// Local storage and IndexedDB, by origin.
    #[serde(default)]
    pub origins: Vec<OriginStorage>,
}

/// What one origin has stored.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OriginStorage {
    /// Such as `https://example.com`.
    pub origin: String,
    /// Its items.
    #[serde(default)]
    pub local_storage: Vec<StorageItem>,
    /// Its databases: see [`StateOptions::indexed_db`].
    #[serde(default, rename = "indexedDB", skip_serializing_if = "Vec::is_empty")]
    pub indexed_db: Vec<IndexedDatabase>,
}

/// What a stored state has besides cookies and local storage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StateOptions {
    /// Whether IndexedDB is read: at most 64 MiB of an origin, and no blobs or keys of Web Crypto in it. Default: false.
    pub indexed_db: bool,
}

/// An item of local storage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StorageItem {
    /// Its key.
    pub name: String,
    /// Its value.
    pub value: String,
}

/// The answer to `Storage.getCookies`.
#[derive(Deserialize)]
struct Cookies {
    cookies: Vec<CookieInfo>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CookieInfo {
    name: String,
    value: String,
    domain: String,
    path: String,
    expires: f64,
    http_only: bool,
    secure: bool,
    #[serde(default)]
    session: bool,
    same_site: Option<String>,
}

impl From<CookieInfo> for Cookie {
    fn from(info: CookieInfo) -> Self {
        let same_site = match info.same_site.as_deref() {
            Some("Strict") => SameSite::Strict,
            Some("None") => SameSite::None,
            _ => SameSite::Lax,
        };
        Cookie {
            name: info.name,
            value: info.value,
            domain: info.domain,
            path: info.path,
            expires: if info.session { -1.0 } else { info.expires },
            http_only: info.http_only,
            secure: info.secure,
            same_site,
        }
    }
}

const READ_ITEMS: &str =
    "() => Object.keys(localStorage).sort().map(name => ({ name, value: localStorage.getItem(name) }))";
const WRITE_ITEMS: &str =
    "items => { for (const { name, value } of items) localStorage.setItem(name, value); }";

impl BrowserContext {
    /// All its cookies.
    pub async fn cookies(&self) -> Result<Vec<Cookie>> {
        let command = Raw::new("Storage.getCookies", json!({ "browserContextId": &*self.inner.id }));
        let cookies: Cookies = self.inner.browser.root().call_as(command, self.deadline()).await?;
        Ok(cookies.cookies.into_iter().map(Cookie::from).collect())
    }

    /// Adds cookies, or replaces those of the same name, domain and path.
    pub async fn add_cookies(&self, cookies: &[Cookie]) -> Result<()> {
        let cookies: Vec<Value> = cookies.iter().map(to_cdp).collect();
        let params = json!({ "cookies": cookies, "browserContextId": &*self.inner.id });
        let command = Raw::new("Storage.setCookies", params);
        self.inner.browser.root().call_as::<Done>(command, self.deadline()).await?;
        Ok(())
    }

    /// Removes all its cookies.
    pub async fn clear_cookies(&self) -> Result<()> {
        let command = Raw::new("Storage.clearCookies", json!({ "browserContextId": &*self.inner.id }));
        self.inner.browser.root().call_as::<Done>(command, self.deadline()).await?;
        Ok(())
    }

    /// Its cookies, and the local storage of every origin that a frame of it has shown.
    pub async fn storage_state(&self) -> Result<StorageState> {
        self.storage_state_with(StateOptions::default()).await
    }

    /// Like [`storage_state`](Self::storage_state), with more.
    pub async fn storage_state_with(&self, options: StateOptions) -> Result<StorageState> {
        let deadline = self.deadline();
        let cookies = self.cookies().await?;
        let mut origins: BTreeMap<String, Stored> = BTreeMap::new();
        let mut others = self.inner.visited_origins();
        for frame in self.pages().iter().flat_map(Page::frames) {
            let Some(origin) = origin_of(&frame.url()) else { continue };
            // Frames in a sandbox have no storage, and a frame may just be going away.
            if !others.contains(&origin) {
                continue;
            }
            if let Ok(items) = frame.isolated_within(READ_ITEMS, &[], deadline).await {
                let databases = read_databases(&frame, options, deadline).await?;
                others.remove(&origin);
                origins.insert(origin, (items, databases));
            }
        }
        if !others.is_empty() {
            let page = self.page_for_storage().await?;
            for origin in others {
                page.goto(&origin).await?;
                let items = page.main_frame().isolated_within(READ_ITEMS, &[], deadline).await?;
                let databases = read_databases(&page.main_frame(), options, deadline).await?;
                origins.insert(origin, (items, databases));
            }
            page.close().await?;
        }
        let filled =
            origins.into_iter().filter(|(_, (items, databases))| !(items.is_empty() && databases.is_empty()));
        let origins = filled
            .map(|(origin, (local_storage, indexed_db))| OriginStorage { origin, local_storage, indexed_db })
            .collect();
        Ok(StorageState { cookies, origins })
    }

    /// Adds cookies, local storage and databases to what it has. A database that is there already in this version keeps its
    /// stores.
    pub async fn set_storage_state(&self, state: &StorageState) -> Result<()> {
        if !state.cookies.is_empty() {
            self.add_cookies(&state.cookies).await?;
        }
        let is_empty =
            |origin: &OriginStorage| origin.local_storage.is_empty() && origin.indexed_db.is_empty();
        if state.origins.iter().all(is_empty) {
            return Ok(());
        }
        let deadline: Deadline = self.deadline();
        let page = self.page_for_storage().await?;
        for OriginStorage { origin, local_storage, indexed_db } in &state.origins {
            page.goto(origin).await?;
            let items = serde_json::to_value(local_storage)
                .map_err(|error| BrowserError::invalid(format!("storage of {origin}: {error}")))?;
            page.main_frame().isolated_within::<()>(WRITE_ITEMS, &[items.into()], deadline).await?;
            if !indexed_db.is_empty() {
                let databases = serde_json::to_value(indexed_db)
                    .map_err(|error| BrowserError::invalid(format!("databases of {origin}: {error}")))?;
                let writer = indexed::writer();
                page.main_frame().isolated_within::<()>(&writer, &[databases.into()], deadline).await?;
            }
            self.inner.visit(origin);
        }
        page.close().await
    }

    /// A page that nobody else sees, on which every address is empty.
    async fn page_for_storage(&self) -> Result<Page> {
        let page = self.open_page(crate::context::HIDDEN_PAGE).await?;
        page.route(
            "**",
            Arc::new(|route: Route| {
                Box::pin(async move {
                    let empty = Fulfill { content_type: Some("text/html".to_owned()), ..Fulfill::default() };
                    // Nothing else decides on it.
                    let _ = route.fulfill(empty);
                })
            }),
        )
        .await?;
        Ok(page)
    }
}

/// Local storage and databases.
type Stored = (Vec<StorageItem>, Vec<IndexedDatabase>);

async fn read_databases(
    frame: &Frame,
    options: StateOptions,
    deadline: Deadline,
) -> Result<Vec<IndexedDatabase>> {
    if !options.indexed_db {
        return Ok(Vec::new());
    }
    frame.isolated_within(&indexed::reader(), &[(indexed::BYTES_MAX as f64).into()], deadline).await
}

fn to_cdp(cookie: &Cookie) -> Value {
    let same_site = match cookie.same_site {
        SameSite::Strict => "Strict",
        SameSite::Lax => "Lax",
        SameSite::None => "None",
    };
    let mut param = json!({
        "name": cookie.name, "value": cookie.value, "domain": cookie.domain, "path": cookie.path,
        "httpOnly": cookie.http_only, "secure": cookie.secure, "sameSite": same_site,
    });
    if cookie.expires >= 0.0 {
        param["expires"] = json!(cookie.expires);
    }
    param
}

/// `scheme://host:port` of an http address.
pub(crate) fn origin_of(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once("://")?;
    if !matches!(scheme, "http" | "https") {
        return None;
    }
    let host = rest.split(['/', '?', '#']).next()?;
    let host = host.rsplit_once('@').map_or(host, |(_, host)| host);
    Some(format!("{scheme}://{host}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn origins_are_cut_out_of_addresses() {
        assert_eq!(origin_of("http://a.b:1/c?d#e").as_deref(), Some("http://a.b:1"));
        assert_eq!(origin_of("https://u:p@a.b").as_deref(), Some("https://a.b"));
        assert_eq!(origin_of("data:text/html,x"), None);
        assert_eq!(origin_of("file:///etc"), None);
    }

    #[test]
    fn states_are_written_as_playwright_writes_them() {
        let state = StorageState {
            cookies: vec![Cookie::new("a", "b", "example.com")],
            origins: vec![OriginStorage {
                origin: "http://x".into(),
                local_storage: vec![StorageItem { name: "n".into(), value: "v".into() }],
                indexed_db: Vec::new(),
            }],
        };
        let json = serde_json::to_value(&state).expect("JSON");
        assert_eq!(json["cookies"][0]["sameSite"], "Lax");
        assert_eq!(json["cookies"][0]["httpOnly"], false);
        assert_eq!(json["origins"][0]["localStorage"][0]["name"], "n");
        assert_eq!(serde_json::from_value::<StorageState>(json).expect("a state"), state);
    }
}
