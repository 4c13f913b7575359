//! One image in a registry: its manifests, and its blobs, which are loaded into files and go on where they were cut.
//!
//! Every wait has a bound, every fault that may pass is tried again a bounded number of times, and nothing is believed
//! before its digest is right.

mod session;

use crate::credentials::Credentials;
use crate::digest::Hasher;
use crate::manifest::MANIFEST_BYTES_MAX;
use crate::origin::blocking;
use crate::{Digest, ImageError};
use espalier_egress::{Allowed, Shared};
use futures::future::BoxFuture;
use futures::{FutureExt, StreamExt};
use oci_client::client::{BlobResponse, SizedStream};
use oci_client::errors::{DigestError, OciDistributionError, OciErrorCode};
use oci_client::manifest::{self as media, OciDescriptor};
use oci_client::secrets::RegistryAuth;
use oci_client::{Reference, RegistryOperation};
use session::{Session, Sessions};
use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Told how many bytes of a blob are there.
pub(crate) type Seen = Arc<dyn Fn(u64) + Send + Sync>;

const ACCEPTED: [&str; 4] = [
    media::OCI_IMAGE_INDEX_MEDIA_TYPE,
    media::IMAGE_MANIFEST_LIST_MEDIA_TYPE,
    media::OCI_IMAGE_MEDIA_TYPE,
    media::IMAGE_MANIFEST_MEDIA_TYPE,
];

/// Longest pause between two attempts.
const BACKOFF_MAX: Duration = Duration::from_secs(8);

/// How long a pull waits for what.
#[derive(Clone, Copy, Debug)]
pub struct Waits {
    /// For a connection; default 10 s.
    pub connect: Duration,
    /// Between two pieces of an answer; default 30 s.
    pub idle: Duration,
    /// For a manifest, or the begin of a blob; default 60 s.
    pub request: Duration,
    /// For an image as a whole; default 30 min.
    pub total: Duration,
    /// Attempts after the first that bring nothing new; default 5.
    pub retries: u32,
    /// Before the first of them, doubled each time up to 8 s; default 250 ms.
    pub backoff: Duration,
}

impl Default for Waits {
    fn default() -> Waits {
        Waits {
            connect: Duration::from_secs(10),
            idle: Duration::from_secs(30),
            request: Duration::from_secs(60),
            total: Duration::from_secs(30 * 60),
            retries: 5,
            backoff: Duration::from_millis(250),
        }
    }
}

impl Waits {
    fn backoff(&self, failures: u32) -> Duration {
        let factor = 1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
        self.backoff.saturating_mul(factor).min(BACKOFF_MAX)
    }
}

pub(crate) struct Registry {
    sessions: Sessions,
    image: Reference,
    /// Which credentials are shown, for messages.
    shown: String,
    /// Whether none are.
    anonymous: bool,
    waits: Waits,
}

/// What follows from a fault.
enum RetryDecision {
    /// It may pass.
    Again(String),
    Final(ImageError),
}

impl Registry {
    /// Plain HTTP only where it stays on this machine, or where it was asked for by the registry's name. For strangers it connects
    /// only to addresses that they may reach.
    pub(crate) async fn open(
        image: &Reference,
        files: &[PathBuf],
        plain_http: &[String],
        waits: Waits,
        strangers: Option<&Allowed>,
        all: &Shared,
    ) -> Result<Registry, ImageError> {
        let Credentials { auth, shown } = Credentials::find(files, image).await?;
        let place = image.resolve_registry();
        let plain =
            loopback(place) || plain_http.iter().any(|name| name == place || name == image.registry());
        let anonymous = auth == RegistryAuth::Anonymous;
        let sessions = Sessions::new(image, auth, plain, waits, strangers, all).await?;
        sessions.check()?;
        Ok(Registry { sessions, image: image.clone(), shown, anonymous, waits })
    }

    /// Whether anybody may have what it gives.
    pub(crate) fn is_anonymous(&self) -> bool {
        self.anonymous
    }

    /// The image's manifest or index, or that of the digest in the same repository.
    pub(crate) async fn manifest(&self, digest: Option<&Digest>) -> Result<(Digest, Vec<u8>), ImageError> {
        let reference = match digest {
            Some(digest) => self.image.clone_with_digest(digest.to_string()),
            None => self.image.clone(),
        };
        let what = format!("manifest of {reference}");
        let wanted = reference.clone();
        let bytes = self
            .tried(&what, || {
                let wanted = wanted.clone();
                let pull = async move {
                    let Session { small: client, auth, .. } = self.sessions.get().await?;
                    // Said first by itself, since a fault of it is lost within other calls.
                    client.auth(&wanted, &auth, RegistryOperation::Pull).await?;
                    client.pull_manifest_raw(&wanted, &auth, &ACCEPTED).await.map(|(bytes, _)| bytes)
                };
                pull.boxed()
            })
            .await?;
        if bytes.len() as u64 > MANIFEST_BYTES_MAX {
            return Err(ImageError::TooLarge { what, bound: format!("{MANIFEST_BYTES_MAX} bytes") });
        }
        let found = match reference.digest() {
            Some(pinned) => {
                let pinned = Digest::parse(pinned, &what)?;
                pinned.check(&bytes, &what)?;
                pinned
            }
            None => Digest::of(&bytes),
        };
        Ok((found, bytes.to_vec()))
    }

    /// A small blob.
    pub(crate) async fn blob(&self, digest: &Digest, size: u64, what: &str) -> Result<Vec<u8>, ImageError> {
        let descriptor = descriptor(digest, size);
        let bytes = self
            .tried(what, || {
                let descriptor = descriptor.clone();
                let pull = async move {
                    let client = self.sessions.get().await?.large;
                    let mut stream = client.pull_blob_stream(&self.image, &descriptor).await?;
                    let mut bytes = Vec::new();
                    while let Some(piece) = stream.stream.next().await {
                        bytes.extend_from_slice(&piece.map_err(OciDistributionError::IoError)?);
                        if bytes.len() as u64 > size {
                            break;
                        }
                    }
                    Ok(bytes)
                };
                pull.boxed()
            })
            .await?;
        if bytes.len() as u64 != size {
            return Err(ImageError::bad(what, format!("{} bytes or more, not {size}", bytes.len())));
        }
        digest.check(&bytes, what)?;
        Ok(bytes)
    }

    /// Loads a blob into a file, going on with what an earlier attempt left there. The file comes back whole, verified and
    /// locked, so that nobody else writes or removes it.
    pub(crate) async fn load(
        &self,
        digest: &Digest,
        size: u64,
        path: &Path,
        seen: &Seen,
    ) -> Result<File, ImageError> {
        let what = format!("layer {digest}");
        let mut partial = Partial::open(path, digest, size).await?;
        let descriptor = descriptor(digest, size);
        // Bytes of several answers may not fit together: then all are asked for again, once.
        let (mut mixed, mut restarted) = (partial.length > 0, false);
        let mut failures = 0;
        loop {
            seen(partial.length);
            let before = partial.length;
            if before == size {
                let found = partial.hasher.clone().finish();
                if found == *digest {
                    return Ok(partial.file);
                }
                partial = partial.restart()?;
                if !mixed || restarted {
                    return Err(digest.check_is(&found, &what).expect_err("they differ"));
                }
                (mixed, restarted) = (false, true);
                continue;
            }
            let answer = async {
                let client = self.sessions.get().await?.large;
                client.pull_blob_stream_partial(&self.image, &descriptor, before, None).await
            };
            let said = match tokio::time::timeout(self.waits.request, answer).await {
                Err(_) => self.late(),
                Ok(Ok(answer)) => {
                    let stream = match answer {
                        BlobResponse::Partial(stream) => stream,
                        BlobResponse::Full(stream) => {
                            partial = partial.restart()?;
                            stream
                        }
                    };
                    mixed |= partial.length > 0;
                    let said;
                    (partial, said) = pour(stream, partial, seen.clone()).await?;
                    match said {
                        None if partial.length < size => "the answer ended early".to_owned(),
                        None => continue,
                        Some(said) => said,
                    }
                }
                Ok(Err(error)) => match self.classify(error, &what) {
                    RetryDecision::Again(said) => said,
                    RetryDecision::Final(ImageError::BadContent { .. }) if before > 0 && !restarted => {
                        partial = partial.restart()?;
                        (mixed, restarted) = (false, true);
                        continue;
                    }
                    RetryDecision::Final(error) => return Err(error),
                },
            };
            failures = if partial.length > before { 1 } else { failures + 1 };
            tracing::debug!(%digest, have = partial.length, of = size, said, "cut");
            if failures > self.waits.retries {
                return Err(self.unreachable(&what, failures, said));
            }
            tokio::time::sleep(self.waits.backoff(failures)).await;
        }
    }

    async fn tried<'a, T>(
        &'a self,
        what: &str,
        act: impl Fn() -> BoxFuture<'a, Result<T, OciDistributionError>>,
    ) -> Result<T, ImageError> {
        let mut failures = 0;
        loop {
            let said = match tokio::time::timeout(self.waits.request, act()).await {
                Ok(Ok(done)) => return Ok(done),
                Ok(Err(error)) => match self.classify(error, what) {
                    RetryDecision::Again(said) => said,
                    RetryDecision::Final(error) => return Err(error),
                },
                Err(_) => self.late(),
            };
            failures += 1;
            if failures > self.waits.retries {
                return Err(self.unreachable(what, failures, said));
            }
            tokio::time::sleep(self.waits.backoff(failures)).await;
        }
    }

    fn late(&self) -> String {
        format!("no answer within {} s", self.waits.request.as_secs_f32())
    }

    fn unreachable(&self, what: &str, attempts: u32, said: String) -> ImageError {
        let place = self.image.registry().to_owned();
        ImageError::Unreachable { place, what: what.to_owned(), attempts, said }
    }

    fn classify(&self, error: OciDistributionError, what: &str) -> RetryDecision {
        use OciDistributionError as E;
        let image = self.image.to_string();
        match self.sessions.take_refusal() {
            Some((true, why)) => return RetryDecision::Final(ImageError::NotReachable { image, why }),
            Some((false, why)) => return RetryDecision::Again(why),
            None => {}
        }
        let place = self.image.registry().to_owned();
        let unknown = |said: String| {
            RetryDecision::Final(ImageError::Unknown { image: image.clone(), place: place.clone(), said })
        };
        let denied = |said: String| {
            let credentials = self.shown.clone();
            RetryDecision::Final(ImageError::Denied {
                image: image.clone(),
                place: place.clone(),
                credentials,
                said,
            })
        };
        match error {
            E::RegistryError { envelope, .. } => {
                let said: Vec<String> = envelope
                    .errors
                    .iter()
                    .map(|error| format!("{} ({})", error.message, code(&error.code)))
                    .collect();
                let said = said.join(", ");
                match envelope.errors.first().map(|error| &error.code) {
                    Some(OciErrorCode::Toomanyrequests) => RetryDecision::Again(said),
                    Some(OciErrorCode::Unauthorized | OciErrorCode::Denied) => denied(said),
                    Some(
                        OciErrorCode::ManifestUnknown
                        | OciErrorCode::NameUnknown
                        | OciErrorCode::NotFound
                        | OciErrorCode::BlobUnknown
                        | OciErrorCode::NameInvalid,
                    ) => unknown(said),
                    _ => RetryDecision::Final(ImageError::bad(what, said)),
                }
            }
            E::ServerError { code, message, .. } => {
                let message = message.trim().chars().take(200).collect::<String>();
                let said = if message.is_empty() {
                    format!("status {code}")
                } else {
                    format!("status {code}: {message}")
                };
                match code {
                    404 => unknown(said),
                    401 | 403 => denied(said),
                    408 | 429 | 500.. => RetryDecision::Again(said),
                    _ => RetryDecision::Final(ImageError::bad(what, said)),
                }
            }
            E::UnauthorizedError { .. } => denied("status 401".to_owned()),
            E::AuthenticationFailure(said) => denied(said.trim().chars().take(200).collect()),
            E::DigestError(DigestError::VerificationError { expected, actual }) => RetryDecision::Final(
                ImageError::bad(what, format!("its digest is {actual}, expected {expected}")),
            ),
            E::RequestError(error) if error.is_builder() => {
                RetryDecision::Final(ImageError::bad(what, chain(&error)))
            }
            E::RequestError(error) => RetryDecision::Again(chain(&error)),
            E::IoError(error) => match error.get_ref().map(|inner| inner.is::<DigestError>()) {
                Some(true) => RetryDecision::Final(ImageError::bad(what, chain(&error))),
                _ => RetryDecision::Again(chain(&error)),
            },
            other => RetryDecision::Final(ImageError::bad(what, chain(&other))),
        }
    }
}

fn code(code: &OciErrorCode) -> String {
    serde_json::to_value(code).ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
}

/// An error with its causes, each once.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let said = inner.to_string();
        if !text.contains(&said) {
            text = format!("{text}: {said}");
        }
        cause = inner.source();
    }
    text
}

fn descriptor(digest: &Digest, size: u64) -> OciDescriptor {
    OciDescriptor { digest: digest.to_string(), size: size as i64, ..OciDescriptor::default() }
}

fn loopback(registry: &str) -> bool {
    let host = registry.rsplit_once(':').map_or(registry, |(host, _)| host);
    host == "localhost" || host.parse().is_ok_and(|address: std::net::IpAddr| address.is_loopback())
}

/// Writes what comes; the second part says why it ended before the stream did. The writer beside the runtime is owned here:
/// if this is dropped, it writes what it was given and ends.
async fn pour(
    stream: SizedStream,
    mut partial: Partial,
    seen: Seen,
) -> Result<(Partial, Option<String>), ImageError> {
    // Sixteen pieces of some KiB: the network waits for the disk.
    let (sender, mut receiver) = tokio::sync::mpsc::channel::<bytes::Bytes>(16);
    let writer = blocking(move || {
        while let Some(bytes) = receiver.blocking_recv() {
            partial.write(&bytes)?;
            seen(partial.length);
        }
        Ok(partial)
    });
    let reader = async move {
        let mut stream = stream.stream;
        while let Some(piece) = stream.next().await {
            match piece {
                // The writer's own error says why it takes no more.
                Ok(bytes) => {
                    if sender.send(bytes).await.is_err() {
                        return None;
                    }
                }
                Err(error) => return Some(chain(&error)),
            }
        }
        None
    };
    let (partial, said) = tokio::join!(writer, reader);
    Ok((partial?, said))
}

/// A blob that is not all there.
struct Partial {
    file: File,
    path: PathBuf,
    digest: Digest,
    size: u64,
    /// Bytes in the file; the hasher has seen them.
    length: u64,
    hasher: Hasher,
}

/// What came of opening one.
enum Tried {
    Open(Partial),
    /// Whoever was done with it has removed it meanwhile.
    Removed,
    /// Somebody loads it.
    Loading,
}

impl Partial {
    /// Waits for whoever else loads the same; the caller bounds that.
    async fn open(path: &Path, digest: &Digest, size: u64) -> Result<Partial, ImageError> {
        loop {
            let (path, digest) = (path.to_path_buf(), digest.clone());
            let tried = blocking(move || {
                let failed = |error| ImageError::store("opening", &path, error);
                let mut options = std::fs::OpenOptions::new();
                options.read(true).write(true).create(true).truncate(false).mode(0o600);
                let file = options.open(&path).map_err(failed)?;
                if !crate::store::try_lock(&file, true).map_err(failed)? {
                    return Ok(Tried::Loading);
                }
                if file.metadata().map_err(failed)?.nlink() == 0 {
                    return Ok(Tried::Removed);
                }
                let hasher = digest.hasher();
                Partial { file, path, digest, size, length: 0, hasher }.read_again().map(Tried::Open)
            });
            match tried.await? {
                Tried::Open(partial) => return Ok(partial),
                Tried::Removed => continue,
                Tried::Loading => {}
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// What an earlier attempt left.
    fn read_again(mut self) -> Result<Partial, ImageError> {
        let failed = |error| ImageError::store("reading", &self.path, error);
        let length = self.file.metadata().map_err(failed)?.len();
        if length > self.size {
            return self.restart();
        }
        let mut buffer = vec![0; 128 << 10];
        while self.length < length {
            let count = self.file.read_at(&mut buffer, self.length).map_err(failed)?;
            if count == 0 {
                break;
            }
            self.hasher.update(&buffer[..count]);
            self.length += count as u64;
        }
        Ok(self)
    }

    fn restart(mut self) -> Result<Partial, ImageError> {
        self.file.set_len(0).map_err(|error| ImageError::store("clearing", &self.path, error))?;
        (self.length, self.hasher) = (0, self.digest.hasher());
        Ok(self)
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), ImageError> {
        if self.length + bytes.len() as u64 > self.size {
            let _ = self.file.set_len(0);
            return Err(ImageError::bad(
                format!("layer {}", self.digest),
                format!("more than {} bytes", self.size),
            ));
        }
        if let Err(error) = self.file.write_all_at(bytes, self.length) {
            let error = ImageError::store("writing", &self.path, error);
            if matches!(error, ImageError::DiskFull { .. }) {
                // Others need the room more than we need the part.
                let _ = std::fs::remove_file(&self.path);
            }
            return Err(error);
        }
        self.hasher.update(bytes);
        self.length += bytes.len() as u64;
        Ok(())
    }
}
