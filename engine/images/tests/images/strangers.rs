//! Images that strangers name: what folders and registries they reach, and who is shown the credentials of this machine's user.

use crate::registries::large;
use crate::registry::{Line, Proxy, Server, USER, docker_config};
use crate::tars::{Made, digest};
use crate::{get, left_over, options};
use espalier_core::sandbox::Rule;
use espalier_images::{Image, ImageError, ImageOptions, ImageStore, Progress, Source, Strangers};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::watch;

fn rules(opened: &[String]) -> Vec<Rule> {
    opened.iter().map(|rule| Rule::parse(rule).unwrap()).collect()
}

fn store(folder: &Path, strangers: Option<Strangers>) -> ImageStore {
    ImageStore::open(folder, ImageOptions { strangers, ..options() }).unwrap()
}

async fn get_with(store: &ImageStore, name: &str, credentials: bool) -> Result<Image, ImageError> {
    let progress = watch::Sender::new(Progress::default());
    store.get_with(&Source::parse(name)?, credentials, &progress).await
}

/// How a registry answers.
#[derive(Clone)]
enum FakeBehavior {
    /// Every request, to all.
    Open,
    /// Those with a token of the realm alone.
    Realm(String),
    /// Elsewhere.
    Redirect(String),
}

/// A registry with one image, and what it was asked with which credentials.
struct Fake {
    address: SocketAddr,
    asked: Arc<Mutex<Vec<String>>>,
    task: tokio::task::JoinHandle<()>,
}

impl Fake {
    async fn start(behavior: impl FnOnce(SocketAddr) -> FakeBehavior) -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (behavior, made, asked) = (behavior(address), Arc::new(large(1, 1000)), Arc::default());
        let heard = Arc::clone(&asked);
        // Ends with the registry.
        let task = tokio::spawn(async move {
            loop {
                let Ok((mut client, _)) = listener.accept().await else { return };
                let (behavior, made, heard) = (behavior.clone(), Arc::clone(&made), Arc::clone(&heard));
                tokio::spawn(async move {
                    let mut bytes = Vec::new();
                    while client.read_buf(&mut bytes).await.is_ok_and(|count| count > 0) {
                        if bytes.ends_with(b"\r\n\r\n") {
                            let answer = answer(&behavior, &made, &String::from_utf8_lossy(&bytes), &heard);
                            let last = bytes
                                .to_ascii_lowercase()
                                .windows(17)
                                .any(|part| part == b"connection: close");
                            if client.write_all(&answer).await.is_err() || last {
                                return;
                            }
                            bytes.clear();
                        }
                    }
                });
            }
        });
        Fake { address, asked, task }
    }

    fn name(&self) -> String {
        format!("{}/a:v1", self.address)
    }

    /// Each path once, with the kind of credentials that came with it.
    fn asked(&self) -> Vec<String> {
        let mut asked = self.asked.lock().unwrap().clone();
        asked.sort();
        asked.dedup();
        asked
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn answer(behavior: &FakeBehavior, made: &Made, request: &str, heard: &Mutex<Vec<String>>) -> Vec<u8> {
    let path = request.split(' ').nth(1).unwrap_or_default();
    let shown = request.lines().find_map(|line| line.strip_prefix("authorization: ")).unwrap_or("none");
    let shown = shown.split(' ').next().unwrap_or_default();
    let place = ["/token", "/manifests/", "/blobs/"].into_iter().find(|part| path.contains(part));
    heard.lock().unwrap().push(format!("{} {shown}", place.unwrap_or("/v2/")));
    let say = |status: &str, headers: &str, body: &[u8]| {
        let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n{headers}\r\n", body.len());
        [head.as_bytes(), body].concat()
    };
    if path.contains("/token") {
        return say("200 OK", "", br#"{"token":"good"}"#);
    }
    match behavior {
        FakeBehavior::Realm(realm) if shown != "Bearer" => {
            let challenge = format!("www-authenticate: Bearer realm=\"{realm}\",service=\"s\"\r\n");
            return say("401 Unauthorized", &challenge, b"");
        }
        FakeBehavior::Redirect(to) if path != "/v2/" => {
            return say("307 Temporary Redirect", &format!("location: {to}\r\n"), b"");
        }
        _ => {}
    }
    if path.contains("/manifests/") {
        let kind = "content-type: application/vnd.oci.image.manifest.v1+json\r\n";
        return say("200 OK", kind, &made.manifest);
    }
    let blob = made.blobs.iter().find(|blob| path.ends_with(&digest(blob)));
    blob.map_or_else(|| say("200 OK", "", b"{}"), |blob| say("200 OK", "", blob))
}

#[tokio::test]
async fn strangers_reach_no_inner_address_that_was_not_opened() {
    let folder = tempfile::tempdir().unwrap();
    let victim = Fake::start(|_| FakeBehavior::Open).await;
    let port = victim.address.port();
    let mut number = 0;
    let mut check = async |name: String, opened: Vec<String>, expect: bool| {
        number += 1;
        let strangers = Strangers { registries: rules(&opened), ..Strangers::default() };
        let at = folder.path().join(number.to_string());
        let got = get(&store(&at, Some(strangers)), &name).await;
        assert_eq!(left_over(&at), Vec::<String>::new());
        match (got, expect) {
            (Ok(_), true) => {}
            (Err(ImageError::NotReachable { .. }), false) => {
                assert_eq!(victim.asked(), Vec::<String>::new(), "{name}");
            }
            (got, _) => panic!("{name} {opened:?}: {:?}", got.map(|image| image.digest().clone())),
        }
    };
    // Named itself, in whatever spelling.
    for host in ["127.0.0.1", "localhost", "127.1", "2130706433", "0.0.0.0"] {
        check(format!("{host}:{port}/a:v1"), vec![], false).await;
        check(format!("{host}:{port}/a:v1"), vec![format!("127.0.0.1:{}", port ^ 1)], false).await;
    }
    // Where a registry that was opened leads.
    for host in ["127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "2130706433"] {
        let to = format!("http://{host}:{port}");
        let realm = Fake::start(|_| FakeBehavior::Realm(format!("{to}/token"))).await;
        check(realm.name(), vec![realm.address.to_string()], false).await;
        let redirect = Fake::start(|_| FakeBehavior::Redirect(format!("{to}/v2/a/manifests/v1"))).await;
        check(redirect.name(), vec![redirect.address.to_string()], false).await;
        if host == "127.0.0.1" {
            check(realm.name(), vec![realm.address.to_string(), victim.address.to_string()], true).await;
            victim.asked.lock().unwrap().clear();
        }
    }
    for (host, opened) in [("127.0.0.1", "127.0.0.1"), ("localhost", "localhost")] {
        check(format!("{host}:{port}/a:v1"), vec![format!("{opened}:{port}")], true).await;
    }
    // Whoever runs this process goes where they say.
    let realm = Fake::start(|_| FakeBehavior::Realm(format!("http://127.0.0.1:{port}/token"))).await;
    victim.asked.lock().unwrap().clear();
    get(&store(&folder.path().join("own"), None), &realm.name()).await.unwrap();
    assert_eq!(victim.asked(), ["/token none"]);
}

#[tokio::test]
async fn a_registry_that_was_opened_is_as_good_as_any() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(false).await;
    let bytes = 3 << 20;
    server.push(&large(2, bytes), "a:v1").await;
    // Over a line that cuts: what goes through the guard goes on where it was, too.
    let proxy = Proxy::start(server.address, Line::Cuts(600_000), 1).await;
    let opened = rules(&[proxy.address.to_string()]);
    let store = store(folder.path(), Some(Strangers { registries: opened, ..Strangers::default() }));
    let image = get(&store, &proxy.name("a:v1")).await.unwrap();
    assert_eq!(image.layers().len(), 2);
    let through = proxy.bytes.load(std::sync::atomic::Ordering::SeqCst);
    assert!(through < 2 * bytes as u64 * 3 / 2, "little came twice: {through}");
}

#[tokio::test]
async fn credentials_are_shown_to_their_registry_alone() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let own = Fake::start(|own| FakeBehavior::Realm(format!("http://{own}/token"))).await;
    let other = Fake::start(|_| FakeBehavior::Open).await;
    let elsewhere = Fake::start(|_| FakeBehavior::Realm(format!("http://{}/token", other.address))).await;
    let mut number = 0;
    let mut pull = async |fake: &Fake, strangers: Option<Strangers>, credentials: bool| {
        number += 1;
        docker_config(&at("config"), &fake.address.to_string(), USER.0, USER.1);
        let options = ImageOptions { credentials: vec![at("config")], strangers, ..options() };
        let store = ImageStore::open(&at(&number.to_string()), options).unwrap();
        fake.asked.lock().unwrap().clear();
        get_with(&store, &fake.name(), credentials).await.map(drop)
    };
    let opened = Strangers {
        registries: rules(&[own.address, other.address, elsewhere.address].map(|at| at.to_string())),
        ..Strangers::default()
    };
    let with_token = ["/blobs/ Bearer", "/manifests/ Bearer"];
    for strangers in [None, Some(opened.clone())] {
        pull(&own, strangers.clone(), true).await.unwrap();
        assert_eq!(own.asked(), [&with_token[..], &["/token Basic", "/v2/ none"]].concat());
        pull(&own, strangers.clone(), false).await.unwrap();
        assert_eq!(own.asked(), [&with_token[..], &["/token none", "/v2/ none"]].concat());
        // A realm elsewhere gives tokens to whoever shows nothing.
        pull(&elsewhere, strangers.clone(), false).await.unwrap();
        assert_eq!(other.asked(), ["/token none"]);
        other.asked.lock().unwrap().clear();
        let error = pull(&elsewhere, strangers, true).await.unwrap_err();
        let expect = format!(
            "image {} is not allowed: it leads to {}; credentials for {} are not sent to another host",
            elsewhere.name(),
            other.address,
            elsewhere.address
        );
        assert_eq!(error.to_string(), expect);
        assert_eq!(other.asked(), Vec::<String>::new());
    }
}

#[tokio::test]
async fn what_was_given_for_credentials_is_not_given_without() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    for closed in [true, false] {
        let server = Server::start(closed).await;
        server.push(&large(1, 1000), "a:v1").await;
        docker_config(&at("config"), &server.address.to_string(), USER.0, USER.1);
        let strangers =
            Strangers { registries: rules(&[server.address.to_string()]), ..Strangers::default() };
        let options =
            ImageOptions { credentials: vec![at("config")], strangers: Some(strangers), ..options() };
        let store = ImageStore::open(&at(&format!("store-{closed}")), options).unwrap();
        let name = server.name("a:v1");
        let image = get_with(&store, &name, true).await.unwrap();
        let pinned = server.name(&format!("a@{}", image.digest()));
        get_with(&store, &pinned, true).await.unwrap();
        for name in [&name, &pinned] {
            match get_with(&store, name, false).await {
                Ok(again) => assert!(!closed && again.digest() == image.digest()),
                Err(ImageError::Denied { credentials, .. }) if closed => {
                    assert_eq!(credentials, "without credentials");
                }
                Err(error) => panic!("{error}"),
            }
        }
        // What was given to somebody without is given to all, also when the registry has gone.
        server.stop();
        assert_eq!(get_with(&store, &name, false).await.is_ok(), !closed);
        get_with(&store, &name, true).await.unwrap();
    }
}

#[tokio::test]
async fn strangers_start_from_plain_files_in_folders_that_are_given() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    std::fs::create_dir(at("given")).unwrap();
    let run = |script: &str| {
        crate::trees::run(std::process::Command::new("sh").args(["-ec", script]).current_dir(folder.path()));
    };
    for place in ["given/layout", "elsewhere"] {
        large(1, 1000).layout(&at(place), "v1");
    }
    run("tar -C elsewhere -cf elsewhere.tar . && cp elsewhere.tar given/a.tar && mkfifo given/pipe.tar \
         && ln -s ../elsewhere given/link && ln -s ../elsewhere.tar given/link.tar && mkdir given/folder.tar \
         && cp -r elsewhere given/piped && rm given/piped/index.json && mkfifo given/piped/index.json \
         && cp -r elsewhere given/linked && rm -r given/linked/blobs && ln -s ../../elsewhere/blobs given/linked/blobs \
         && cp -r elsewhere given/nodes && rm given/nodes/index.json && mknod given/nodes/index.json c 1 5");
    let given = at("given").display().to_string();
    let outside = at("").display().to_string();
    let store = store(&at("store"), Some(Strangers { folders: vec![at("given")], ..Strangers::default() }));
    for name in [
        "oci:layout".to_owned(),
        "oci:layout:v1".to_owned(),
        "oci-archive:a.tar".to_owned(),
        format!("oci:{given}/layout:v1"),
        format!("oci-archive:{given}/a.tar:v1"),
    ] {
        let image = get(&store, &name).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(image.layers().len(), 1, "{name}");
    }
    // What is there and what is not are one.
    for name in [
        format!("oci:{outside}elsewhere:v1"),
        format!("oci:{outside}nothing:v1"),
        format!("oci-archive:{outside}elsewhere.tar"),
        format!("oci-archive:{outside}nothing.tar"),
        format!("oci:{given}/../elsewhere"),
        "oci:../elsewhere:v1".to_owned(),
        "oci:../nothing:v1".to_owned(),
        "oci:link".to_owned(),
        "oci-archive:link.tar".to_owned(),
        "oci-archive:pipe.tar".to_owned(),
        "oci-archive:folder.tar".to_owned(),
        "oci-archive:nothing.tar".to_owned(),
        "oci:a.tar".to_owned(),
        "oci-archive:/dev/zero".to_owned(),
        "oci-archive:/etc/shadow".to_owned(),
        "oci-archive:/etc/nothing".to_owned(),
        "oci:/root".to_owned(),
        "oci:/proc/self/root".to_owned(),
    ] {
        let error = get(&store, &name).await.unwrap_err();
        let expect =
            format!("no image {} in the image folders of the service", Source::parse(&name).unwrap());
        assert_eq!(error.to_string(), expect);
    }
    // In a layout no link is followed either, and nothing is waited for.
    for (name, expect) in [
        ("oci:piped", "not an OCI layout: index.json is missing"),
        ("oci:nodes", "not an OCI layout: index.json is missing"),
        ("oci:linked", "is missing"),
    ] {
        let error = get(&store, name).await.unwrap_err().to_string();
        assert!(error.contains(expect) && !error.contains(&outside), "{name}: {error}");
    }
    // Nothing is given where no folder was told; whoever runs this process names any.
    let none = self::store(&at("none"), Some(Strangers::default()));
    assert!(matches!(get(&none, &format!("oci:{given}/layout")).await, Err(ImageError::NotGiven { .. })));
    get(&self::store(&at("own"), None), &format!("oci:{outside}elsewhere:v1")).await.unwrap();
}
