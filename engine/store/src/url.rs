//! Where a store lies.

use crate::error::StoreError;
use std::fmt;
use std::path::{Path, PathBuf};

/// The folder used where none is named.
pub const DEFAULT_FOLDER: &str = ".espalier";

/// Where a store lies: a folder, or a PostgreSQL database with its blobs in a folder.
#[derive(Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// SQLite file and blobs in one folder.
    Folder(PathBuf),
    /// A database, by its URL, and the folder of blobs.
    Postgres {
        /// `postgres://user:password@host:port/database?...`, without `blobs`.
        database: String,
        /// Named by the parameter `blobs=DIR` of the URL; default: `.espalier/blobs`.
        blobs: PathBuf,
    },
}

impl Default for StoreUrl {
    fn default() -> Self {
        StoreUrl::Folder(PathBuf::from(DEFAULT_FOLDER))
    }
}

impl std::str::FromStr for StoreUrl {
    type Err = StoreError;

    /// A path, or `postgres://...[?blobs=DIR]`. Any other scheme is refused.
    fn from_str(text: &str) -> Result<Self, StoreError> {
        let refuse =
            |reason: &str| StoreError::Url { url: without_password(text), reason: reason.to_owned() };
        let Some((scheme, _)) = text.split_once("://") else {
            if text.is_empty() {
                return Err(refuse("it is empty"));
            }
            return Ok(StoreUrl::Folder(PathBuf::from(text)));
        };
        if !matches!(scheme, "postgres" | "postgresql") {
            return Err(refuse("expected a folder, or postgres://user@host/database?blobs=DIR"));
        }
        let (base, query) = text.split_once('?').unwrap_or((text, ""));
        let mut blobs = None;
        let mut rest = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.strip_prefix("blobs=") {
                Some("") => return Err(refuse("`blobs` is empty")),
                Some(folder) => blobs = Some(PathBuf::from(folder)),
                None => rest.push(pair),
            }
        }
        let database = if rest.is_empty() { base.to_owned() } else { format!("{base}?{}", rest.join("&")) };
        let blobs = blobs.unwrap_or_else(|| Path::new(DEFAULT_FOLDER).join("blobs"));
        Ok(StoreUrl::Postgres { database, blobs })
    }
}

impl fmt::Display for StoreUrl {
    /// As a user would write it, without the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreUrl::Folder(path) => write!(f, "{}", path.display()),
            StoreUrl::Postgres { database, .. } => f.write_str(&without_password(database)),
        }
    }
}

impl fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

fn without_password(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let host_ends = rest.find(['/', '?']).unwrap_or(rest.len());
    let Some(at) = rest[..host_ends].rfind('@') else { return url.to_owned() };
    let user = rest[..at].split(':').next().unwrap_or_default();
    format!("{scheme}://{user}{}", &rest[at..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_its_blobs_and_never_shows_its_password() {
        let parse = |text: &str| text.parse::<StoreUrl>();
        assert_eq!(parse("some/dir").unwrap(), StoreUrl::Folder("some/dir".into()));
        let url = parse("postgres://me:secret@db:5432/runs?sslmode=require&blobs=/data/b").unwrap();
        let StoreUrl::Postgres { database, blobs } = &url else { panic!("{url}") };
        assert_eq!(database, "postgres://me:secret@db:5432/runs?sslmode=require");
        assert_eq!(blobs, Path::new("/data/b"));
        assert_eq!(url.to_string(), "postgres://me@db:5432/runs?sslmode=require");
        assert_eq!(
            parse("mysql://me:secret@db/x").unwrap_err().to_string(),
            "invalid store `mysql://me@db/x`: expected a folder, or postgres://user@host/database?blobs=DIR"
        );
    }
}
