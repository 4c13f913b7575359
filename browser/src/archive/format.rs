//! An archive as one blob: a line with the version, the length of a JSON header, the header, and the bodies, each once.

use super::ArchiveOptions;
use crate::error::{BrowserError, Result};
use crate::route::{Fetched, Route};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::collections::hash_map::Entry as Slot;
use std::fmt;
use std::ops::Range;

/// The first line of version 1.
const MAGIC: &[u8] = b"espalier-network-archive 1\n";
/// The longest header that is read.
const HEADER_BYTES_MAX: usize = 64 << 20;

/// Which request is meant: its method, its address and its body.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct RequestKey {
    method: String,
    url: String,
    /// Length and digest of the body; empty where it has none.
    body: String,
}

impl RequestKey {
    pub(crate) fn of(route: &Route) -> RequestKey {
        let kind = route.headers().iter().find(|(name, _)| name.eq_ignore_ascii_case("content-type"));
        let boundary = kind.and_then(|(_, kind)| kind.split_once("boundary="));
        let boundary = boundary.map(|(_, boundary)| boundary.trim_matches('"').as_bytes());
        let body = without(&route.post_bytes(), boundary.unwrap_or_default());
        let body = match body.is_empty() {
            true => String::new(),
            false => format!("{}-{:032x}", body.len(), digest(&body)),
        };
        RequestKey { method: route.method().to_owned(), url: route.url().to_owned(), body }
    }
}

impl fmt::Display for RequestKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.method, self.url)?;
        if !self.body.is_empty() {
            write!(f, " with body {}", self.body)?;
        }
        Ok(())
    }
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Response(Fetched),
    Failed(String),
}

/// One request with its answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) key: RequestKey,
    /// How many such requests came before.
    pub(crate) occurrence: u32,
    pub(crate) outcome: Outcome,
}

/// Requests with their answers, as [`BrowserContext::record_archive`](crate::BrowserContext::record_archive) has recorded
/// them. Matched by method, address, body and occurrence: the second request for the same gets the second answer.
#[derive(Clone, Debug, Default)]
pub struct Archive {
    entries: Vec<Entry>,
    places: HashMap<(RequestKey, u32), usize>,
    /// Where each body is that was met, by length and digest.
    bodies: HashMap<(usize, u128), Bytes>,
    body_bytes: usize,
}

#[derive(Serialize, Deserialize)]
struct Header {
    entries: Vec<HeaderEntry>,
}

#[derive(Serialize, Deserialize)]
struct HeaderEntry {
    #[serde(flatten)]
    key: RequestKey,
    occurrence: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    response: Option<HeaderResponse>,
    /// Why it failed, where it has no response.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    failed: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct HeaderResponse {
    status: u16,
    headers: Vec<(String, String)>,
    /// From the end of the header.
    start: usize,
    bytes: usize,
}

impl Archive {
    /// How many requests it has.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether it has none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes of its bodies, where equal ones count once.
    pub fn body_bytes(&self) -> usize {
        self.body_bytes
    }

    /// False: it is full.
    pub(crate) fn add(&mut self, entry: Entry, options: &ArchiveOptions) -> bool {
        let digest = match &entry.outcome {
            Outcome::Response(response) => digest(&response.body),
            Outcome::Failed(_) => 0,
        };
        self.add_digested(entry, digest, options)
    }

    fn add_digested(&mut self, mut entry: Entry, digest: u128, options: &ArchiveOptions) -> bool {
        if self.entries.len() >= options.entries_max {
            return false;
        }
        if let Outcome::Response(response) = &mut entry.outcome {
            let id = (response.body.len(), digest);
            match self.bodies.get(&id) {
                Some(body) => response.body = body.clone(),
                None if self.body_bytes + response.body.len() > options.bytes_max => return false,
                None => {
                    self.body_bytes += response.body.len();
                    self.bodies.insert(id, response.body.clone());
                }
            }
        }
        self.places.insert((entry.key.clone(), entry.occurrence), self.entries.len());
        self.entries.push(entry);
        true
    }

    pub(crate) fn get(&self, key: &RequestKey, occurrence: u32) -> Option<&Outcome> {
        let place = *self.places.get(&(key.clone(), occurrence))?;
        Some(&self.entries[place].outcome)
    }

    /// The archive as one blob.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bodies: Vec<u8> = Vec::new();
        let mut starts: HashMap<(usize, u128), usize> = HashMap::new();
        let mut entries = Vec::new();
        for entry in &self.entries {
            let (response, failed) = match &entry.outcome {
                Outcome::Failed(reason) => (None, Some(reason.clone())),
                Outcome::Response(response) => {
                    let id = (response.body.len(), digest(&response.body));
                    let start = *starts.entry(id).or_insert_with(|| {
                        bodies.extend_from_slice(&response.body);
                        bodies.len() - response.body.len()
                    });
                    let (status, headers) = (response.status, response.headers.clone());
                    (Some(HeaderResponse { status, headers, start, bytes: response.body.len() }), None)
                }
            };
            let (key, occurrence) = (entry.key.clone(), entry.occurrence);
            entries.push(HeaderEntry { key, occurrence, response, failed });
        }
        let header = serde_json::to_vec(&Header { entries }).expect("strings and numbers are JSON");
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&(header.len() as u64).to_le_bytes());
        bytes.extend_from_slice(&header);
        bytes.extend_from_slice(&bodies);
        bytes
    }

    /// Reads a blob of [`to_bytes`](Self::to_bytes).
    pub fn from_bytes(blob: &[u8]) -> Result<Archive> {
        let wrong = |what: String| BrowserError::invalid(format!("network archive: {what}"));
        let Some(rest) = blob.strip_prefix(MAGIC) else {
            let line = String::from_utf8_lossy(&blob[..blob.len().min(MAGIC.len())]).into_owned();
            return Err(wrong(format!("expected `espalier-network-archive 1`, it begins with {line:?}")));
        };
        let cut = || wrong("it is cut off".to_owned());
        let (length, rest) = rest.split_first_chunk::<8>().ok_or_else(cut)?;
        let length = usize::try_from(u64::from_le_bytes(*length)).map_err(|_| cut())?;
        if length > HEADER_BYTES_MAX {
            return Err(wrong(format!("header of {length} bytes: expected at most {HEADER_BYTES_MAX}")));
        }
        let (header, bodies) = rest.split_at_checked(length).ok_or_else(cut)?;
        let header: Header =
            serde_json::from_slice(header).map_err(|error| wrong(format!("header: {error}")))?;
        let bodies = Bytes::copy_from_slice(bodies);
        let unbounded =
            ArchiveOptions { bytes_max: usize::MAX, entries_max: usize::MAX, ..ArchiveOptions::default() };
        let mut archive = Archive::default();
        let mut digests: HashMap<(usize, usize), u128> = HashMap::new();
        let mut digested = 0_usize;
        for entry in header.entries {
            let mut of_body = 0;
            let outcome = match (entry.response, entry.failed) {
                (Some(response), _) => {
                    let end = response.start.checked_add(response.bytes).filter(|end| *end <= bodies.len());
                    let range: Range<usize> = response.start..end.ok_or_else(cut)?;
                    let (status, headers, body) =
                        (response.status, response.headers, bodies.slice(range.clone()));
                    of_body = match digests.entry((range.start, range.end)) {
                        Slot::Occupied(known) => *known.get(),
                        Slot::Vacant(new) => {
                            // Each byte is looked at once, however many entries say that it is theirs.
                            digested = digested.saturating_add(body.len());
                            if digested > bodies.len() {
                                return Err(wrong(format!("{}: its body overlaps with others", entry.key)));
                            }
                            *new.insert(digest(&body))
                        }
                    };
                    Outcome::Response(Fetched { status, headers, body })
                }
                (None, Some(reason)) => Outcome::Failed(reason),
                (None, None) => {
                    return Err(wrong(format!("{}: expected a response or a failure", entry.key)));
                }
            };
            let entry = Entry { key: entry.key, occurrence: entry.occurrence, outcome };
            archive.add_digested(entry, of_body, &unbounded);
        }
        Ok(archive)
    }
}

/// FNV-1a of 128 bits: names a body, and does not guard against one that is made to collide.
fn digest(bytes: &[u8]) -> u128 {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    bytes.iter().fold(OFFSET, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(PRIME))
}

/// The body without the boundary between its parts, which is made at random.
fn without(body: &[u8], boundary: &[u8]) -> Vec<u8> {
    if boundary.is_empty() || body.len() < boundary.len() {
        return body.to_vec();
    }
    let mut kept = Vec::new();
    let mut rest = body;
    while let Some((first, after)) = rest.split_first() {
        match rest.strip_prefix(boundary) {
            Some(after) => rest = after,
            None => {
                kept.push(*first);
                rest = after;
            }
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn entry(url: &str, occurrence: u32, body: &'static str) -> Entry {
        let key = RequestKey { method: "GET".into(), url: url.into(), body: String::new() };
        let headers =
            vec![("set-cookie".to_owned(), "a=1".to_owned()), ("set-cookie".to_owned(), "b=2".to_owned())];
        let outcome =
            Outcome::Response(Fetched { status: 200, headers, body: Bytes::from_static(body.as_bytes()) });
        Entry { key, occurrence, outcome }
    }

    #[test]
    fn archives_are_written_and_read() {
        let mut archive = Archive::default();
        let options = ArchiveOptions { bytes_max: 8, entries_max: 4, ..ArchiveOptions::default() };
        assert!(archive.add(entry("http://a/", 0, "one"), &options));
        assert!(archive.add(entry("http://a/", 1, "two"), &options));
        assert!(archive.add(entry("http://b/", 0, "one"), &options), "an equal body counts once");
        assert!(!archive.add(entry("http://c/", 0, "long"), &options), "its bytes are bounded");
        let key = RequestKey { method: "POST".into(), url: "http://f/".into(), body: "1-2".into() };
        let failed = Entry { key: key.clone(), occurrence: 0, outcome: Outcome::Failed("refused".into()) };
        assert!(archive.add(failed.clone(), &options));
        assert!(!archive.add(failed, &options), "its requests are bounded");
        let bytes = archive.to_bytes();
        let read = Archive::from_bytes(&bytes).expect("an archive");
        assert_eq!((read.len(), read.body_bytes()), (4, 6));
        assert_eq!(read.entries, archive.entries);
        assert_eq!(read.get(&key, 0), Some(&Outcome::Failed("refused".into())));
        assert_eq!(read.get(&key, 1), None);
        assert_eq!(read.to_bytes(), bytes);
    }

    #[test]
    fn blobs_that_are_no_archives_are_refused() {
        let mut archive = Archive::default();
        archive.add(entry("http://a/", 0, "one"), &ArchiveOptions::default());
        let bytes = archive.to_bytes();
        let table: [(&[u8], &str); 4] = [
            (b"garbage", "it begins with \"garbage\""),
            (b"espalier-network-archive 2\nxxxxxxxxx", "expected `espalier-network-archive 1`"),
            (&bytes[..bytes.len() - 1], "it is cut off"),
            (&bytes[..40], "it is cut off"),
        ];
        for (blob, expected) in table {
            let error = Archive::from_bytes(blob).expect_err("no archive").to_string();
            assert!(error.starts_with("invalid network archive: ") && error.contains(expected), "{error}");
        }
    }

    /// A file of 65 MiB could keep the engine reading for months.
    #[test]
    fn bodies_that_overlap_are_refused() {
        let entry = |start: usize, bytes: usize| {
            json!({ "method": "GET", "url": format!("http://a/{start}"), "body": "", "occurrence": 0,
                "response": { "status": 200, "headers": [], "start": start, "bytes": bytes } })
        };
        let read = |ranges: &[(usize, usize)]| {
            let entries: Vec<_> = ranges.iter().map(|(start, bytes)| entry(*start, *bytes)).collect();
            let header = json!({ "entries": entries }).to_string();
            let length = (header.len() as u64).to_le_bytes();
            let blob = [MAGIC, &length[..], header.as_bytes(), b"0123456789"].concat();
            Archive::from_bytes(&blob).map(|archive| archive.len()).map_err(|error| error.to_string())
        };
        assert_eq!(read(&[(0, 4), (4, 6), (0, 4)]), Ok(3), "an equal body is there once");
        let refused = "invalid network archive: GET http://a/1: its body overlaps with others";
        assert_eq!(read(&[(0, 9), (1, 9)]), Err(refused.to_owned()));
    }

    #[test]
    fn boundaries_of_forms_do_not_matter() {
        assert_eq!(without(b"--xyz\r\na\r\n--xyz--", b"xyz"), b"--\r\na\r\n----");
        assert_eq!(without(b"abc", b""), b"abc");
    }
}
