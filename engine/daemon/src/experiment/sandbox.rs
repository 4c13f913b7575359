//! `[sandbox]`: what an experiment says of sandboxes.

use espalier_core::escalation::Escalation;
use espalier_core::limits::{DurationText, SizeText};
use espalier_core::sandbox::{FileContent, Network, SandboxFile};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

/// What every sandbox of the tasks is made of and bounded by. What it says wins over a task; amounts and network are upper
/// bounds where both speak.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SandboxConfig {
    /// `host`, the name of an image, `oci:FOLDER[:TAG]`, `oci-archive:FILE[:TAG]`, or `checkpoint:ID`. Relative paths start
    /// from this file's folder.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Cores; default 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<f64>,
    /// Default 2GiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<SizeText>,
    /// What it may write; default 4GiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<SizeText>,
    /// Files it may make, where its disk is memory; default 500,000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files_max: Option<u64>,
    /// Processes and threads at once; default 512.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes_max: Option<u32>,
    /// `"none"` (default), `"loopback"`, or `{ allow = ["pypi.org:443"] }`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<Network>,
    /// For every command.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Who runs commands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Where commands start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// Whether what the image starts by itself (`ENTRYPOINT` and `CMD`) is run in the background, before `setup`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub entrypoint: Option<bool>,
    /// By absolute path.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub files: BTreeMap<String, FileContent>,
    /// Shell text, before the task's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub setup: Option<String>,
    /// Promises that have to hold on this machine, like `memory-limit`; `espalier doctor` lists them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub require: Vec<String>,
    /// Sandboxes that are kept ready, of all kinds together; default 0. Tasks that share image, files and set-up share a kind; those
    /// of the kind that was used least recently go first.
    #[serde(default)]
    pub warm: usize,
    /// What the images of this machine may take, as `50GiB`: above it those that nothing uses go after a pull, least recently
    /// used first. Without it all stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub images_max: Option<SizeText>,
    /// Whether the work in the sandbox `main` is kept as a patch, which `export --format swebench-predictions` writes; what it is
    /// compared with is a fresh sandbox. Default false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub keep_patch: bool,
    /// What the next try has more of, where a command of this one was killed for memory.
    #[serde(default, skip_serializing_if = "is_default")]
    pub escalate: Escalation,
    /// Silence of the engine that ends a sandbox; 1s to 24h, default 60s.
    #[serde(default = "default_lease")]
    pub lease: DurationText,
}

fn is_default(escalate: &Escalation) -> bool {
    *escalate == Escalation::default()
}

fn default_lease() -> DurationText {
    DurationText(Duration::from_secs(60))
}

impl Default for SandboxConfig {
    fn default() -> SandboxConfig {
        SandboxConfig {
            image: None,
            cpu: None,
            memory: None,
            disk: None,
            files_max: None,
            processes_max: None,
            network: None,
            env: BTreeMap::new(),
            user: None,
            workdir: None,
            entrypoint: None,
            files: BTreeMap::new(),
            setup: None,
            require: Vec::new(),
            warm: 0,
            images_max: None,
            keep_patch: false,
            escalate: Escalation::default(),
            lease: default_lease(),
        }
    }
}

impl SandboxConfig {
    /// What bounds a task's sandboxes; paths of images from this folder.
    pub fn file(&self, folder: &Path) -> SandboxFile {
        let image = self.image.as_ref().map(|image| {
            let local =
                ["oci:", "oci-archive:"].iter().find_map(|kind| Some((kind, image.strip_prefix(kind)?)));
            match local {
                Some((kind, path)) if !path.starts_with('/') => {
                    format!("{kind}{}", folder.join(path).display())
                }
                _ => image.clone(),
            }
        });
        SandboxFile {
            image,
            cpu: self.cpu,
            memory: self.memory,
            disk: self.disk,
            files_max: self.files_max,
            processes_max: self.processes_max,
            network: self.network.clone(),
            env: self.env.clone(),
            user: self.user.clone(),
            workdir: self.workdir.clone(),
            entrypoint: self.entrypoint,
            files: self.files.clone(),
            setup: self.setup.clone(),
        }
    }
}
