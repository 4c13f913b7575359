//! Hosting guests in benches: a host, a job, and capabilities that answer nothing.

use crate::{Finding, median};
use async_trait::async_trait;
use espalier_core::chat::{CompleteOptions, Completion, Message, Tool, Usage};
use espalier_core::failure::Failure;
use espalier_core::host::{BlobInfo, Blobs, Branch, Capabilities, Conversation, Models};
use espalier_core::limits::Limits;
use espalier_core::meter::Meter;
use espalier_core::task::TaskView;
use espalier_plugin::{CancelToken, Compiler, Job, JobClock, Plugin, PluginHost, PluginHostConfig};
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How often a measurement is repeated; the median is printed.
pub const REPEATS: usize = 7;

/// Files are taken as settled after less.
const SETTLED: Duration = Duration::from_secs(4);

/// A host with this cache.
pub fn host(cache: &Path, instances_max: u32) -> Result<PluginHost, Box<dyn std::error::Error>> {
    let io = tokio::runtime::Handle::current();
    Ok(PluginHost::new(PluginHostConfig {
        cache_dir: Some(cache.to_owned()),
        compiler: Compiler::this_program(),
        guest_threads: 2,
        instances_max,
        io,
    })?)
}

/// Loading a plugin for the first time, and again in a new host from the cache on disk.
pub async fn load_twice(
    guest: &str,
    path: &Path,
    cache: &Path,
    at_most_ms: Option<f64>,
) -> Result<(), Box<dyn std::error::Error>> {
    let started = Instant::now();
    let size = host(cache, 4)?.load(path).await?.size_bytes();
    Finding::new(format!("load cold, {guest}"), millis(started.elapsed()), "ms")
        .note(format!("component of {size} bytes"))
        .print();
    // Files are hashed as long as they may still change unseen; afterwards they are known.
    tokio::time::sleep(SETTLED).await;
    host(cache, 4)?.load(path).await?;
    let mut warm = Vec::new();
    for _ in 0..REPEATS {
        let host = host(cache, 4)?;
        let started = Instant::now();
        host.load(path).await?;
        warm.push(millis(started.elapsed()));
    }
    let found = Finding::new(format!("load from cache, {guest}"), median(&mut warm), "ms");
    let found = at_most_ms.into_iter().fold(found, Finding::at_most);
    found.note(format!("component of {size} bytes")).print();
    Ok(())
}

/// In milliseconds.
pub fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// A task without anything.
pub fn task() -> TaskView {
    TaskView {
        id: "t".to_owned(),
        instruction: "wait".to_owned(),
        environment: None,
        sandboxes: Vec::new(),
        tags: Vec::new(),
        data: "null".to_owned(),
        private_data: None,
    }
}

/// A harness with these settings and a model that never answers.
pub fn harness(plugin: &Arc<Plugin>, settings: &Value, asked: &Arc<AtomicU32>) -> Job {
    let limits = Limits { host_calls: 10_000_000, ..Limits::default() };
    Job {
        plugin: Arc::clone(plugin),
        alias: "bench".to_owned(),
        settings: settings.to_string(),
        capabilities: Capabilities {
            models: Some(Arc::new(Silent(Arc::clone(asked)))),
            blobs: Some(Arc::new(NoBlobs)),
            ..Capabilities::default()
        },
        wall: limits.rollout_wall,
        meter: Arc::new(Meter::new(limits)),
        clock: JobClock::Runs { start_ms: 0 },
        seed: 7,
        record_calls: false,
        cancel: CancelToken::new(),
    }
}

/// A model that never answers.
pub struct Silent(pub Arc<AtomicU32>);

#[async_trait]
impl Models for Silent {
    async fn open(&self, _: &str, _: Vec<Message>, _: Vec<Tool>) -> Result<Box<dyn Conversation>, Failure> {
        Ok(Box::new(Silent(Arc::clone(&self.0))))
    }
}

#[async_trait]
impl Conversation for Silent {
    async fn append(&mut self, _: Vec<Message>) -> Result<(), Failure> {
        Ok(())
    }
    async fn complete(&mut self, _: CompleteOptions) -> Result<Completion, Failure> {
        self.0.fetch_add(1, Ordering::SeqCst);
        std::future::pending().await
    }
    async fn complete_many(&mut self, _: u32, _: CompleteOptions) -> Result<Vec<Branch>, Failure> {
        std::future::pending().await
    }
    fn discard(&mut self) {}
    async fn fork(&mut self) -> Result<Box<dyn Conversation>, Failure> {
        Ok(Box::new(Silent(Arc::clone(&self.0))))
    }
    async fn rewrite(&mut self, _: Vec<Message>) -> Result<(), Failure> {
        Ok(())
    }
    async fn elide_images(&mut self, _: u32) -> Result<u32, Failure> {
        Ok(0)
    }
    fn set_trainable(&mut self, _: u32, _: bool) -> Result<(), Failure> {
        Ok(())
    }
    fn usage(&self) -> Usage {
        Usage::default()
    }
}

/// No blobs are kept.
pub struct NoBlobs;

#[async_trait]
impl Blobs for NoBlobs {
    async fn put(&self, _: Vec<u8>, _: &str) -> Result<String, Failure> {
        Err(Failure::Invalid("no blobs here".to_owned()))
    }
    async fn stat(&self, _: &str) -> Result<BlobInfo, Failure> {
        Err(Failure::Invalid("no blobs here".to_owned()))
    }
    async fn read(&self, _: &str, _: u64, _: u32) -> Result<Vec<u8>, Failure> {
        Err(Failure::Invalid("no blobs here".to_owned()))
    }
}
