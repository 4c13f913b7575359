//! Browsers that somebody else starts: over byte streams, in pools, and over a port.

use crate::server::{Answer, Server};
use crate::support::options;
use espalier_browser::{
    Browser, BrowserError, BrowserPool, ContextOptions, Launcher, PageEvent, PoolOptions, RemoteOptions,
    Result,
};
use futures::future::BoxFuture;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tempfile::TempDir;
use tokio::process::Command;
use tokio::sync::{oneshot, watch};

/// Starts Chromium as a keeper of processes would: a command whose standard streams are carried.
struct Starter {
    folder: TempDir,
    started: AtomicUsize,
    alive: Arc<AtomicUsize>,
}

impl Starter {
    fn new() -> Arc<Starter> {
        Arc::new(Starter {
            folder: tempfile::tempdir().expect("a folder"),
            started: AtomicUsize::new(0),
            alive: Arc::default(),
        })
    }

    async fn start(&self) -> Result<(Browser, watch::Sender<bool>)> {
        let number = self.started.fetch_add(1, Ordering::Relaxed);
        let downloads = self.folder.path().join("downloads");
        let line = options().command_line(&self.folder.path().join(number.to_string()))?;
        let argv = line.over_standard_streams();
        let mut child = Command::new(&argv[0])
            .args(&argv[1..])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("it starts");
        let (reader, writer) = (child.stdout.take().expect("piped"), child.stdin.take().expect("piped"));
        let (tell, told) = oneshot::channel();
        let (end, mut to_end) = watch::channel(false);
        self.alive.fetch_add(1, Ordering::SeqCst);
        let alive = Arc::clone(&self.alive);
        tokio::spawn(async move {
            let status = tokio::select! {
                status = child.wait() => Some(status.expect("a status")),
                () = async { drop(to_end.wait_for(|end| *end).await) } => None,
            };
            let how = match status {
                Some(status) => status.to_string(),
                None => {
                    child.kill().await.expect("killed");
                    "ended by its owner".to_owned()
                }
            };
            alive.fetch_sub(1, Ordering::SeqCst);
            let _ = tell.send(how);
        });
        let kill = end.clone();
        let remote = RemoteOptions {
            ended: Some(Box::pin(async move { told.await.unwrap_or_default() })),
            end: Some(Box::new(move || {
                end.send_replace(true);
            })),
            downloads: Some(downloads),
            remove: Some(Box::new(|folder| std::fs::remove_dir_all(folder).expect("it is there"))),
            ..RemoteOptions::default()
        };
        Ok((Browser::over(reader, writer, remote).await?, kill))
    }
}

struct Source(Arc<Starter>);

impl Launcher for Source {
    fn launch(&self) -> BoxFuture<'_, Result<Browser>> {
        Box::pin(async { Ok(self.0.start().await?.0) })
    }

    fn is_sandboxed(&self) -> bool {
        true
    }
}

#[tokio::test]
async fn a_browser_works_over_streams_of_somebody_else() {
    let server = Server::start([
        ("/", Answer::html("<title>over</title><input type=file><a href=/file>file</a>")),
        (
            "/file",
            Answer::typed("application/x-thing", "content").header("content-disposition", "attachment"),
        ),
    ])
    .await;
    let starter = Starter::new();
    let (browser, _kill) = starter.start().await.expect("a browser");
    assert_eq!(browser.process_group(), None);
    let error = browser.memory_bytes().await.expect_err("not ours");
    assert!(matches!(error, BrowserError::Unsupported { .. }), "{error}");
    let context = browser.new_context(ContextOptions::default()).await.expect("a context");
    let page = context.new_page().await.expect("a page");
    page.goto(&server.url("/")).await.expect("loaded");
    assert_eq!(page.title().await.as_deref(), Ok("over"));
    assert!(!page.screenshot().await.expect("a picture").is_empty());

    let mut downloads = page.events();
    page.locator("a").click().await.expect("clicked");
    let download = loop {
        let event = downloads.next_within(Duration::from_secs(20)).await.expect("a download");
        if let PageEvent::Download(download) = event {
            break download;
        }
    };
    let path = download.path(Duration::from_secs(20)).await.expect("complete");
    assert!(path.starts_with(starter.folder.path()), "{}", path.display());
    assert_eq!(std::fs::read_to_string(&path).expect("the file"), "content");
    let copied = download.save_as("copy", Duration::from_secs(1)).await.expect_err("not on this machine");
    assert!(matches!(copied, BrowserError::Unsupported { .. }), "{copied}");

    context.close().await.expect("closed");
    assert!(!path.exists(), "its owner is told to remove {}", path.display());

    browser.close().await;
    assert_eq!(starter.alive.load(Ordering::SeqCst), 0, "close waits for the end");
    assert_eq!(page.evaluate::<i32>("1").await, Err(BrowserError::Closed { what: "browser" }));
}

#[tokio::test]
async fn the_end_of_a_remote_process_is_told_with_its_cause() {
    let starter = Starter::new();
    let (browser, kill) = starter.start().await.expect("a browser");
    let page = browser.new_context(ContextOptions::default()).await.expect("a context").new_page().await;
    let page = page.expect("a page");
    let waiting = tokio::spawn({
        let page = page.clone();
        async move { page.evaluate::<i32>("new Promise(() => {})").await }
    });
    assert_eq!(page.evaluate::<i32>("1").await, Ok(1));
    kill.send_replace(true);
    let error = waiting.await.expect("no panic").expect_err("it is gone");
    assert_eq!(error.to_string(), "the browser process crashed: ended by its owner");
    assert_eq!(browser.ended().await, error);
}

#[tokio::test]
async fn dropping_the_last_handle_ends_a_remote_process() {
    let starter = Starter::new();
    let (browser, kill) = starter.start().await.expect("a browser");
    drop(browser);
    tokio::time::timeout(Duration::from_secs(20), kill.closed()).await.expect("it was told to end");
}

#[tokio::test]
async fn streams_that_lead_to_no_browser_are_an_error() {
    let (ours, theirs) = tokio::io::duplex(1000);
    let (reader, writer) = tokio::io::split(ours);
    let short = RemoteOptions { timeout: Duration::from_millis(200), ..RemoteOptions::default() };
    let error = Browser::over(reader, writer, short).await.expect_err("nobody answers");
    assert!(error.to_string().contains("timed out after 200 ms"), "{error}");
    drop(theirs);
    let (ours, theirs) = tokio::io::duplex(1000);
    drop(theirs);
    let (reader, writer) = tokio::io::split(ours);
    let error = Browser::over(reader, writer, RemoteOptions::default()).await.expect_err("ended at once");
    assert!(error.to_string().contains("its streams ended"), "{error}");
}

#[tokio::test]
async fn pools_take_processes_from_a_launcher() {
    let starter = Starter::new();
    let limits = PoolOptions {
        processes_max: 2,
        contexts_per_process: 2,
        check_every: Duration::from_millis(50),
        ..PoolOptions::default()
    };
    let pool = BrowserPool::with_launcher(limits, Source(Arc::clone(&starter))).expect("a pool");
    let mut contexts = Vec::new();
    for _ in 0..3 {
        contexts.push(pool.new_context(ContextOptions::default()).await.expect("a context"));
    }
    assert_eq!(starter.started.load(Ordering::SeqCst), 2, "two share a process");
    for context in &contexts {
        let page = context.new_page().await.expect("a page");
        assert_eq!(page.evaluate::<i32>("1").await, Ok(1));
    }
    assert!(pool.members().iter().all(|member| member.process_group.is_none() && member.ill.is_none()));
    pool.close().await;
    assert_eq!(starter.alive.load(Ordering::SeqCst), 0);
}

#[test]
fn a_named_program_is_not_looked_for_on_this_machine() {
    let options = espalier_browser::LaunchOptions {
        executable: Some(PathBuf::from("chromium-headless-shell")),
        ..espalier_browser::LaunchOptions::default()
    };
    let line = options.command_line(Path::new("/tmp/profile")).expect("a command");
    assert_eq!(line.program, Path::new("chromium-headless-shell"));
    assert!(line.args.contains(&"--remote-debugging-pipe".to_owned()));
    assert!(!line.args.contains(&"--no-sandbox".to_owned()));
}

/// A process group, killed when dropped.
struct Group(u32);

impl Drop for Group {
    fn drop(&mut self) {
        let group = rustix::process::Pid::from_raw(self.0.cast_signed()).expect("a group");
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
    }
}

#[tokio::test]
async fn a_browser_works_over_its_port() {
    use tokio::io::{AsyncBufReadExt, BufReader};
    let folder = tempfile::tempdir().expect("a folder");
    let line = options().command_line(folder.path()).expect("a command");
    let args = line.args.iter().filter(|arg| *arg != "--remote-debugging-pipe");
    let mut child = Command::new(&line.program)
        .args(args)
        .arg("--remote-debugging-port=0")
        .stderr(Stdio::piped())
        // The program may be a script, whose child the browser is.
        .process_group(0)
        .spawn()
        .expect("it starts");
    let group = Group(child.id().expect("it runs"));
    let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
    let address = loop {
        let line = lines.next_line().await.expect("readable").expect("an address");
        if let Some((_, address)) = line.split_once("listening on ") {
            break address.trim().to_owned();
        }
    };
    let browser = Browser::connect(&address, RemoteOptions::default()).await.expect("connected");
    let page = browser.new_context(ContextOptions::default()).await.expect("a context").new_page().await;
    let page = page.expect("a page");
    assert_eq!(page.evaluate::<i32>("6 * 7").await, Ok(42));
    let long = "x".repeat(3 << 20);
    assert_eq!(page.call::<usize>("text => text.length", &[long.as_str().into()]).await, Ok(3 << 20));
    assert_eq!(page.evaluate::<String>("'y'.repeat(3 << 20)").await.map(|text| text.len()), Ok(3 << 20));
    drop(group);
    assert!(matches!(browser.ended().await, BrowserError::Crashed { .. }));
    let error = Browser::connect(&address, RemoteOptions::default()).await.expect_err("it is gone");
    assert!(error.to_string().contains("no DevTools at ws://"), "{error}");
    let error = Browser::connect("http://x", RemoteOptions::default()).await.expect_err("no WebSocket");
    assert!(matches!(error, BrowserError::Invalid { .. }), "{error}");
}
