//! A host for the tests, and capabilities that answer as a test wants.
#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test binary uses a part")]
#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

pub mod component;

use async_trait::async_trait;
use espalier_core::chat::{CompleteOptions, Completion, Finish, Message, Role, Tool, Usage};
use espalier_core::failure::Failure;
use espalier_core::host::sandbox::Sandboxes;
use espalier_core::host::{BlobInfo, Blobs, Branch, Capabilities, Conversation, Environments, Models};
use espalier_core::limits::Limits;
use espalier_core::meter::Meter;
use espalier_core::task::TaskView;
use espalier_plugin::{
    CancelToken, Compiler, EnvironmentHost, EnvironmentRun, HarnessOutcome, Job, JobClock, Plugin,
    PluginHost, PluginHostConfig, ScoreOutcome,
};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// The runtime of the engine's side, alive for the whole binary.
pub fn io() -> tokio::runtime::Handle {
    static IO: OnceLock<tokio::runtime::Runtime> = OnceLock::new();
    IO.get_or_init(|| {
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap()
    })
    .handle()
    .clone()
}

/// One host for all tests of a binary, with a cache that lasts from run to run.
pub fn host() -> PluginHost {
    static HOST: OnceLock<PluginHost> = OnceLock::new();
    HOST.get_or_init(|| new_host(Path::new(env!("CARGO_TARGET_TMPDIR")).join("code").as_path(), 4)).clone()
}

pub fn new_host(cache: &Path, guest_threads: usize) -> PluginHost {
    // Its own guests: trusted.
    let (cache_dir, compiler) = (Some(cache.to_owned()), Compiler::InProcess);
    let config = PluginHostConfig { cache_dir, compiler, guest_threads, instances_max: 256, io: io() };
    PluginHost::new(config).unwrap()
}

/// A built guest.
pub fn guest_path(name: &str) -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plugins/dist").join(format!("{name}.wasm"));
    assert!(path.is_file(), "{} is missing: run `make build`", path.display());
    path
}

pub async fn guest(name: &str) -> Arc<Plugin> {
    host().load(&guest_path(name)).await.unwrap_or_else(|error| panic!("{error}"))
}

/// Limits that let a fault show within a second.
pub fn short() -> Limits {
    Limits {
        turns: 3,
        guest_cpu: Duration::from_millis(200),
        guest_memory: 64 << 20,
        host_calls: 1_000,
        log_bytes: 64 << 10,
        ..Limits::default()
    }
}

pub fn task() -> TaskView {
    TaskView {
        id: "task-1".to_owned(),
        instruction: "do it".to_owned(),
        environment: Some("world".to_owned()),
        sandboxes: Vec::new(),
        tags: Vec::new(),
        data: "null".to_owned(),
        private_data: None,
    }
}

/// How the model behaves.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Script {
    Answers,
    Unavailable,
    /// The first answer never comes, later ones do.
    HangsOnce,
    Hangs,
    Panics,
}

/// A model that answers by script, and counts its turns against the meter as the real one does.
pub struct ScriptedModels {
    pub script: Script,
    pub meter: Arc<Meter>,
    pub asked: Arc<AtomicU32>,
}

#[async_trait]
impl Models for ScriptedModels {
    async fn open(
        &self,
        model: &str,
        _: Vec<Message>,
        _: Vec<Tool>,
    ) -> Result<Box<dyn Conversation>, Failure> {
        if model != "policy" {
            return Err(Failure::Invalid(format!("no model `{model}`")));
        }
        Ok(Box::new(ScriptedConversation {
            script: self.script,
            meter: Arc::clone(&self.meter),
            asked: Arc::clone(&self.asked),
        }))
    }
}

struct ScriptedConversation {
    script: Script,
    meter: Arc<Meter>,
    asked: Arc<AtomicU32>,
}

#[async_trait]
impl Conversation for ScriptedConversation {
    async fn append(&mut self, _: Vec<Message>) -> Result<(), Failure> {
        Ok(())
    }

    async fn complete(&mut self, _: CompleteOptions) -> Result<Completion, Failure> {
        let asked = self.asked.fetch_add(1, Ordering::SeqCst);
        match self.script {
            Script::Unavailable => return Err(Failure::Unavailable("endpoint gone".to_owned())),
            Script::Hangs => std::future::pending().await,
            Script::HangsOnce if asked == 0 => std::future::pending().await,
            Script::Panics => panic!("a bug of the host"),
            Script::Answers | Script::HangsOnce => self.meter.take_turns(1)?,
        }
        Ok(Completion {
            message: Message::text(Role::Assistant, "an answer"),
            tool_calls: Vec::new(),
            malformed: None,
            finish: Finish::Stop,
            usage: self.usage(),
            call: None,
        })
    }

    async fn complete_many(&mut self, _: u32, _: CompleteOptions) -> Result<Vec<Branch>, Failure> {
        Ok(Vec::new())
    }

    fn discard(&mut self) {}

    async fn fork(&mut self) -> Result<Box<dyn Conversation>, Failure> {
        Ok(Box::new(ScriptedConversation {
            script: self.script,
            meter: Arc::clone(&self.meter),
            asked: Arc::clone(&self.asked),
        }))
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
        Usage { turns: self.meter.turns(), turns_left: Some(self.meter.turns_left()), ..Usage::default() }
    }
}

/// Blobs in memory.
#[derive(Default)]
pub struct MemoryBlobs(Mutex<Vec<(Vec<u8>, String)>>);

impl MemoryBlobs {
    fn find(&self, blob: &str) -> Result<(Vec<u8>, String), Failure> {
        let unknown = || Failure::Invalid(format!("no blob `{blob}`"));
        let index: usize = blob.strip_prefix("blob-").and_then(|n| n.parse().ok()).ok_or_else(unknown)?;
        self.0.lock().unwrap().get(index).cloned().ok_or_else(unknown)
    }
}

#[async_trait]
impl Blobs for MemoryBlobs {
    async fn put(&self, bytes: Vec<u8>, media_type: &str) -> Result<String, Failure> {
        let mut kept = self.0.lock().unwrap();
        kept.push((bytes, media_type.to_owned()));
        Ok(format!("blob-{}", kept.len() - 1))
    }

    async fn stat(&self, blob: &str) -> Result<BlobInfo, Failure> {
        let (bytes, media_type) = self.find(blob)?;
        Ok(BlobInfo { length: bytes.len() as u64, media_type })
    }

    async fn read(&self, blob: &str, offset: u64, length: u32) -> Result<Vec<u8>, Failure> {
        let (bytes, _) = self.find(blob)?;
        Ok(bytes.into_iter().skip(offset as usize).take(length as usize).collect())
    }
}

/// A run of a harness, to be changed by the test.
pub struct Case {
    pub settings: serde_json::Value,
    pub limits: Limits,
    pub script: Script,
    pub environments: Option<Arc<dyn Environments>>,
    pub sandboxes: Option<Arc<dyn Sandboxes>>,
    pub meter: Option<Arc<Meter>>,
    pub cancel: CancelToken,
    pub seed: u64,
    pub record_calls: bool,
}

impl Case {
    pub fn new(settings: serde_json::Value) -> Case {
        Case {
            settings,
            limits: short(),
            script: Script::Answers,
            environments: None,
            sandboxes: None,
            meter: None,
            cancel: CancelToken::new(),
            seed: 7,
            record_calls: false,
        }
    }

    pub fn fault(fault: &str) -> Case {
        Case::new(serde_json::json!({ "fault": fault }))
    }

    pub async fn run(self, host: &PluginHost, plugin: &Arc<Plugin>) -> HarnessOutcome {
        tokio::time::timeout(Duration::from_secs(120), self.run_unbounded(host, plugin))
            .await
            .expect("every run is bounded")
    }

    pub async fn run_unbounded(self, host: &PluginHost, plugin: &Arc<Plugin>) -> HarnessOutcome {
        let meter = self.meter.unwrap_or_else(|| Arc::new(Meter::new(self.limits)));
        let models = ScriptedModels {
            script: self.script,
            meter: Arc::clone(&meter),
            asked: Arc::new(AtomicU32::new(0)),
        };
        let job = Job {
            plugin: Arc::clone(plugin),
            alias: plugin.name().to_owned(),
            wall: meter.limits().rollout_wall,
            settings: plugin.check_settings(&self.settings).unwrap_or_else(|error| panic!("{error}")),
            capabilities: Capabilities {
                models: Some(Arc::new(models)),
                environments: self.environments,
                blobs: Some(Arc::new(MemoryBlobs::default())),
                sandboxes: self.sandboxes,
                browsers: None,
                services: None,
            },
            meter,
            seed: self.seed,
            clock: JobClock::Runs { start_ms: 1_700_000_000_000 },
            record_calls: self.record_calls,
            cancel: self.cancel,
        };
        host.run_harness(job, task()).await
    }
}

/// The environment `fault-environment`.
pub async fn environment(settings: serde_json::Value, meter: &Arc<Meter>) -> Arc<EnvironmentHost> {
    let plugin = guest("fault-environment").await;
    host().environment(EnvironmentRun {
        alias: "world".to_owned(),
        task: Arc::new(task()),
        settings: plugin.check_settings(&settings).unwrap_or_else(|error| panic!("{error}")),
        seed: 11,
        start_ms: 1_700_000_000_000,
        meter: Arc::clone(meter),
        plugin,
    })
}

/// A scoring by `fault-reward`.
pub async fn score(
    fault: &str,
    view: espalier_core::trajectory::RolloutView,
    limits: Limits,
) -> ScoreOutcome {
    let plugin = guest("fault-reward").await;
    let job = Job {
        alias: "fault-reward".to_owned(),
        settings: plugin.check_settings(&serde_json::json!({ "fault": fault })).unwrap(),
        seed: 7,
        clock: JobClock::Frozen { now_ms: 1_700_000_000_000 },
        wall: limits.scoring_wall,
        meter: Arc::new(Meter::new(limits)),
        record_calls: false,
        capabilities: Capabilities {
            blobs: Some(Arc::new(MemoryBlobs::default())),
            ..Capabilities::default()
        },
        cancel: CancelToken::new(),
        plugin,
    };
    let host = host();
    let score = host.score(job, view);
    tokio::time::timeout(Duration::from_secs(120), score).await.expect("every run is bounded")
}
