//! A real registry on the loopback address, and a bad line to it.

use crate::tars::{Made, digest};
use oci_client::client::{ClientConfig, ClientProtocol};
use oci_client::secrets::RegistryAuth;
use oci_client::{Client, Reference, RegistryOperation};
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::json;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

pub(crate) const USER: (&str, &str) = ("tester", "secret");
/// bcrypt of the password.
const HASH: &str = "$2b$04$aaaaaaaaaaaaaaaaaaaaaOGY9KrC7e/pHj3EXQPxs8hKEBbvQhsvG";

/// Debian's `docker-registry`, killed in the end.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
    folder: tempfile::TempDir,
    closed: bool,
    secure: bool,
}

pub(crate) fn free_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

impl Server {
    pub(crate) async fn start(closed: bool) -> Server {
        Server::start_as(closed, None).await
    }

    /// With a certificate and its key, it speaks TLS.
    pub(crate) async fn start_as(closed: bool, tls: Option<(&Path, &Path)>) -> Server {
        let folder = tempfile::tempdir().unwrap();
        let address = free_port();
        std::fs::write(folder.path().join("htpasswd"), format!("{}:{HASH}\n", USER.0)).unwrap();
        let mut config = json!({
            "version": "0.1",
            "log": {"level": "error", "accesslog": {"disabled": true}},
            "storage": {"filesystem": {"rootdirectory": folder.path().join("data")}},
            "http": {"addr": address.to_string()},
        });
        if closed {
            config["auth"] = json!({"htpasswd": {"realm": "test", "path": folder.path().join("htpasswd")}});
        }
        if let Some((certificate, key)) = tls {
            config["http"]["tls"] = json!({"certificate": certificate, "key": key});
        }
        // JSON is YAML.
        std::fs::write(folder.path().join("config.yml"), config.to_string()).unwrap();
        let child = Command::new("docker-registry")
            .arg("serve")
            .arg(folder.path().join("config.yml"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|error| panic!("docker-registry: {error}; cargo xtask setup tests"));
        let server = Server { child, address, folder, closed, secure: tls.is_some() };
        for _ in 0..600 {
            if TcpStream::connect(address).is_ok() {
                return server;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        panic!("docker-registry does not listen at {address}");
    }

    pub(crate) fn name(&self, rest: &str) -> String {
        format!("{}/{rest}", self.address)
    }

    /// Pushes an image's blobs and its manifest.
    pub(crate) async fn push(&self, made: &Made, rest: &str) {
        let (client, image) = self.client(rest).await;
        for blob in &made.blobs {
            client.push_blob(&image, blob.clone(), &digest(blob)).await.unwrap();
        }
        let kind = http::HeaderValue::from_static("application/vnd.oci.image.manifest.v1+json");
        client.push_manifest_raw(&image, made.manifest.clone(), kind).await.unwrap();
    }

    /// Pushes an index of images that are there.
    pub(crate) async fn push_index(&self, entries: &[serde_json::Value], rest: &str) -> String {
        let (client, image) = self.client(rest).await;
        let kind = "application/vnd.oci.image.index.v1+json";
        let index = json!({"schemaVersion": 2, "mediaType": kind, "manifests": entries}).to_string();
        client.push_manifest_raw(&image, index.clone(), http::HeaderValue::from_static(kind)).await.unwrap();
        digest(index.as_bytes())
    }

    async fn client(&self, rest: &str) -> (Client, Reference) {
        let image: Reference = self.name(rest).parse().unwrap();
        let client = Client::new(ClientConfig {
            protocol: if self.secure { ClientProtocol::Https } else { ClientProtocol::Http },
            accept_invalid_certificates: true,
            ..ClientConfig::default()
        });
        let auth = if self.closed {
            RegistryAuth::Basic(USER.0.to_owned(), USER.1.to_owned())
        } else {
            RegistryAuth::Anonymous
        };
        client.auth(&image, &auth, RegistryOperation::Push).await.unwrap();
        (client, image)
    }

    /// Where the registry keeps a blob.
    pub(crate) fn blob(&self, digest: &str) -> PathBuf {
        let hex = &digest[7..];
        let folder = self.folder.path().join("data/docker/registry/v2/blobs/sha256");
        folder.join(&hex[..2]).join(hex).join("data")
    }

    pub(crate) fn stop(mut self) -> SocketAddr {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a line does to those who use it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Line {
    /// Lets everything through.
    Good,
    /// Cuts each connection after 1 to this many bytes of answers.
    Cuts(u64),
    /// Takes connections and says nothing.
    Silent,
    /// Answers the first connections so, each once.
    Status(&'static str, u64),
    /// Does not let through that only a part is asked for, and cuts the first connections after so many bytes.
    Whole(u64),
    /// Bytes of answers a second.
    Slow(u64),
}

/// A proxy on the loopback address.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    /// Bytes of answers that went through.
    pub(crate) bytes: Arc<AtomicU64>,
    pub(crate) connections: Arc<AtomicU64>,
    task: tokio::task::JoinHandle<()>,
}

impl Proxy {
    pub(crate) async fn start(to: SocketAddr, line: Line, seed: u64) -> Proxy {
        println!("proxy: {line:?}, seed {seed}");
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (bytes, connections) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let rng = Arc::new(Mutex::new(ChaCha8Rng::seed_from_u64(seed)));
        let (all, count) = (bytes.clone(), connections.clone());
        // Ends with the test's runtime or with the proxy.
        let task = tokio::spawn(async move {
            loop {
                let Ok((client, _)) = listener.accept().await else { return };
                let number = count.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(serve(client, to, line, number, rng.clone(), all.clone()));
            }
        });
        Proxy { address, bytes, connections, task }
    }

    pub(crate) fn name(&self, rest: &str) -> String {
        format!("{}/{rest}", self.address)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(
    mut client: tokio::net::TcpStream,
    to: SocketAddr,
    line: Line,
    number: u64,
    rng: Arc<Mutex<ChaCha8Rng>>,
    all: Arc<AtomicU64>,
) {
    let left = match line {
        Line::Cuts(most) => rng.lock().unwrap().random_range(1..=most),
        Line::Silent => {
            tokio::time::sleep(Duration::from_secs(600)).await;
            return;
        }
        Line::Status(status, times) if number < times => {
            let mut request = [0; 4096];
            let _ = client.read(&mut request).await;
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            let _ = client.write_all(answer.as_bytes()).await;
            let _ = client.shutdown().await;
            return;
        }
        Line::Whole(bytes) if number < 3 => bytes,
        _ => u64::MAX,
    };
    let Ok(server) = tokio::net::TcpStream::connect(to).await else { return };
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let up = async {
        let mut buffer = vec![0; 16 << 10];
        while let Ok(count @ 1..) = from_client.read(&mut buffer).await {
            if matches!(line, Line::Whole(_)) {
                let (header, other) = (b"\r\nrange: ", b"\r\nother: ");
                while let Some(at) = buffer[..count].windows(header.len()).position(|part| part == header) {
                    buffer[at..at + other.len()].copy_from_slice(other);
                }
            }
            if to_server.write_all(&buffer[..count]).await.is_err() {
                return;
            }
        }
    };
    let down = async {
        let mut left = left;
        let mut buffer = vec![0; 16 << 10];
        while left > 0 {
            let most = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            let Ok(count @ 1..) = from_server.read(&mut buffer[..most]).await else { break };
            if let Line::Slow(rate) = line {
                tokio::time::sleep(Duration::from_secs_f64(count as f64 / rate as f64)).await;
            }
            if to_client.write_all(&buffer[..count]).await.is_err() {
                break;
            }
            all.fetch_add(count as u64, Ordering::SeqCst);
            left -= count as u64;
        }
    };
    tokio::select! {
        () = up => {}
        () = down => {}
    }
}

/// A file of credentials as Docker writes it.
pub(crate) fn docker_config(path: &Path, registry: &str, user: &str, password: &str) {
    use base64::Engine as _;
    let auth = base64::engine::general_purpose::STANDARD.encode(format!("{user}:{password}"));
    std::fs::write(path, json!({"auths": {registry: {"auth": auth}}}).to_string()).unwrap();
}
