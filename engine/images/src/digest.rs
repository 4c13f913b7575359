//! Digests as registries write them, and readers that compute them on the way.

use crate::ImageError;
use sha2::Digest as _;
use std::fmt;
use std::io::{self, Read};

/// `sha256:` or `sha512:` with lower-case hexadecimal digits.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Digest {
    /// Both parts; the digits begin at 7 for either algorithm.
    text: String,
}

const PREFIX: usize = "sha256:".len();

impl Digest {
    /// Reads a digest; `what` is named in the error.
    pub fn parse(text: &str, what: &str) -> Result<Digest, ImageError> {
        let length = match text.get(..PREFIX) {
            Some("sha256:") => 64,
            Some("sha512:") => 128,
            _ => return Err(ImageError::bad(what, format!("digest {text:?} is neither sha256 nor sha512"))),
        };
        let digits = &text[PREFIX..];
        if digits.len() != length || !digits.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(ImageError::bad(what, format!("digest {text:?} is not {length} hexadecimal digits")));
        }
        Ok(Digest { text: text.to_owned() })
    }

    /// The sha256 of these bytes.
    pub fn of(bytes: &[u8]) -> Digest {
        let mut hasher = Hasher::default();
        hasher.update(bytes);
        hasher.finish()
    }

    /// The digits: a name for a file.
    pub fn hex(&self) -> &str {
        &self.text[PREFIX..]
    }

    /// `sha256` or `sha512`.
    pub fn algorithm(&self) -> &str {
        &self.text[..PREFIX - 1]
    }

    /// As registries write it.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// Computes a digest of the same kind.
    pub fn hasher(&self) -> Hasher {
        match self.algorithm() {
            "sha512" => Hasher::Sha512(Box::default()),
            _ => Hasher::default(),
        }
    }

    /// Whether the bytes have this digest.
    pub fn check(&self, bytes: &[u8], what: &str) -> Result<(), ImageError> {
        let mut hasher = self.hasher();
        hasher.update(bytes);
        self.check_is(&hasher.finish(), what)
    }

    /// Whether the computed digest is this one.
    pub(crate) fn check_is(&self, found: &Digest, what: &str) -> Result<(), ImageError> {
        if found == self {
            return Ok(());
        }
        Err(ImageError::bad(what, format!("its digest is {found}, expected {self}")))
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl TryFrom<String> for Digest {
    type Error = ImageError;

    fn try_from(text: String) -> Result<Digest, ImageError> {
        Digest::parse(&text, "a record")
    }
}

impl From<Digest> for String {
    fn from(digest: Digest) -> String {
        digest.text
    }
}

/// A digest in the making.
#[derive(Clone)]
pub enum Hasher {
    /// 256 bits.
    Sha256(sha2::Sha256),
    /// 512 bits.
    Sha512(Box<sha2::Sha512>),
}

impl Default for Hasher {
    fn default() -> Hasher {
        Hasher::Sha256(sha2::Sha256::new())
    }
}

impl Hasher {
    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Hasher::Sha256(hasher) => hasher.update(bytes),
            Hasher::Sha512(hasher) => hasher.update(bytes),
        }
    }

    /// What came of it.
    pub fn finish(self) -> Digest {
        let text = match self {
            Hasher::Sha256(hasher) => format!("sha256:{}", hex::encode(hasher.finalize())),
            Hasher::Sha512(hasher) => format!("sha512:{}", hex::encode(hasher.finalize())),
        };
        Digest { text }
    }
}

/// Reads through, computing the digest and refusing more bytes than `bytes_max`.
pub(crate) struct HashRead<R> {
    inner: R,
    /// `None` where nobody asks.
    hasher: Option<Hasher>,
    /// Read so far.
    pub(crate) bytes: u64,
    bytes_max: u64,
}

/// The marker inside an `io::Error` by which [`HashRead`] says that its bound is passed.
#[derive(Debug, thiserror::Error)]
#[error("{0} bytes")]
pub(crate) struct BoundPassed(pub(crate) u64);

impl<R: Read> HashRead<R> {
    pub(crate) fn new(inner: R, hasher: Option<Hasher>, bytes_max: u64) -> HashRead<R> {
        HashRead { inner, hasher, bytes: 0, bytes_max }
    }

    /// Reads what is left, and gives the digest.
    pub(crate) fn drain(&mut self) -> io::Result<Option<Digest>> {
        let mut buffer = vec![0; 64 << 10];
        while self.read(&mut buffer)? > 0 {}
        Ok(self.hasher.take().map(Hasher::finish))
    }
}

impl<R: Read> Read for HashRead<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.bytes += count as u64;
        if self.bytes > self.bytes_max {
            return Err(io::Error::other(BoundPassed(self.bytes_max)));
        }
        if let Some(hasher) = &mut self.hasher {
            hasher.update(&buffer[..count]);
        }
        Ok(count)
    }
}
