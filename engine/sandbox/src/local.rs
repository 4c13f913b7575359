//! Sandboxes on this machine: Linux namespaces made by a keeper, a process of its own that outlives the engine ([`machine`]). Images
//! are folders here ([`base`]), and what leaves an allow-listed sandbox is carried by the engine that made or attached it ([`egress`]).

mod base;
mod checkpoint;
mod egress;
pub mod host;
pub mod machine;
mod over;

pub use espalier_egress::{Caller, SERVICE_DOMAIN, Service, ServiceAnswer, ServiceBody, Services};
pub use over::write_over_host;

use crate::backend::{Backend, Checkpoint, Ended, Order, Placed};
use crate::error::SandboxError;
use async_trait::async_trait;
use base::Bases;
use egress::EgressProxies;
use espalier_core::sandbox::{Network, check_environment};
use espalier_images::{Image, ImageOptions, ImageStore, Stop, Written};
use espalier_keeper::wire::{self, PROXY_PORT};
use machine::{Config, ENTRYPOINT, Machine, USER, WORKDIR};
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::broadcast;

/// Label: what the sandbox may reach, as JSON.
const NETWORK: &str = "espalier.network";
/// Label: the digest of the image, where it is in the store.
const DIGEST: &str = "espalier.image-digest";
/// What an image without PATH gets.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The backend of this machine.
pub struct Local {
    shared: Arc<Shared>,
}

struct Shared {
    machine: Machine,
    bases: Bases,
    egresses: EgressProxies,
    /// Images of sandboxes that this engine made: their layers are not given up while they run.
    images: Mutex<HashMap<String, Image>>,
}

impl Local {
    /// Opens the folder of sandboxes, with images in `images` of it. `services` are what allow-lists may name of this engine. Inside a
    /// runtime with timers, which its tasks then run on.
    pub fn open(config: Config, images: ImageOptions, services: Services) -> Result<Local, SandboxError> {
        let folder = config.folder.join("images");
        Ok(Local::over(Machine::open(config)?, &folder, images, services))
    }

    /// The same over a keeper, with images in a folder.
    pub fn over(machine: Machine, images: &Path, options: ImageOptions, services: Services) -> Local {
        let ended = machine.ended();
        let (bases, egresses) = (Bases::new(images, options), EgressProxies::new(services));
        let shared = Arc::new(Shared { machine, bases, egresses, images: Mutex::default() });
        // Ends when the backend does: it holds no strong reference to it.
        tokio::spawn(forget_ended(Arc::downgrade(&shared), ended));
        Local { shared }
    }

    /// Its images.
    pub fn images(&self) -> Result<&ImageStore, SandboxError> {
        self.shared.bases.store()
    }
}

impl Shared {
    fn images(&self) -> MutexGuard<'_, HashMap<String, Image>> {
        self.images.lock()
    }

    async fn carry_egress(&self, placed: &Placed) -> Result<(), SandboxError> {
        let network = placed.labels.get(NETWORK).and_then(|text| serde_json::from_str(text).ok());
        match network {
            Some(Network::Allow(rules)) => self.egresses.open(&self.machine, &placed.id, &rules).await,
            _ => Ok(()),
        }
    }

    fn forget(&self, sandbox: &str) -> Option<Image> {
        self.egresses.close(sandbox);
        self.images().remove(sandbox)
    }
}

async fn forget_ended(shared: Weak<Shared>, mut ended: broadcast::Receiver<Ended>) {
    use tokio::sync::broadcast::error::RecvError;
    loop {
        let ended = match ended.recv().await {
            Ok(ended) => ended,
            Err(RecvError::Lagged(_)) => continue,
            Err(RecvError::Closed) => return,
        };
        let Some(shared) = shared.upgrade() else { return };
        shared.forget(&ended.sandbox);
    }
}

#[async_trait]
impl Backend for Local {
    fn service_url(&self, service: &str) -> Option<String> {
        Some(espalier_egress::direct_url(PROXY_PORT, service))
    }

    async fn promises(&self) -> Result<BTreeMap<String, Result<(), String>>, SandboxError> {
        Ok(self.shared.machine.abilities().await?.promises)
    }

    async fn create(&self, order: &Order) -> Result<Placed, SandboxError> {
        let Order { spec, purpose, .. } = order;
        let Shared { machine, bases, .. } = &*self.shared;
        let base = bases.of(&spec.image, purpose.registry_credentials, machine).await?;
        let mut environment: BTreeMap<String, String> = base.environment.into_iter().collect();
        environment.entry("PATH".to_owned()).or_insert_with(|| PATH.to_owned());
        let network = match &spec.network {
            Network::None => wire::Reach::None,
            Network::Loopback => wire::Reach::Loopback,
            Network::Allow(_) => {
                environment.extend(espalier_egress::environment(PROXY_PORT));
                wire::Reach::Proxy
            }
        };
        environment.extend(spec.env.clone());
        // What the image says was not checked before.
        check_environment(&environment)?;
        let json = |value: serde_json::Result<String>| value.unwrap_or_default();
        let mut labels = base.labels;
        labels.extend(purpose.labels.clone());
        labels.insert(WORKDIR.to_owned(), spec.workdir.clone().unwrap_or(base.workdir));
        labels.insert(NETWORK.to_owned(), json(serde_json::to_string(&spec.network)));
        if let Some(user) = spec.user.clone().or(base.user) {
            labels.insert(USER.to_owned(), user);
        }
        if !base.entrypoint.is_empty() {
            labels.insert(ENTRYPOINT.to_owned(), json(serde_json::to_string(&base.entrypoint)));
        }
        let environment: Vec<(String, String)> = environment.into_iter().collect();
        let wanted = wire::Order {
            id: order.id.clone(),
            root: base.root,
            bounds: wire::Bounds {
                cpu: spec.cpu,
                memory: spec.memory,
                disk: spec.disk,
                files_max: spec.files_max,
                processes_max: spec.processes_max,
            },
            network,
            user_namespaces: spec.user_namespaces,
            lease_ms: u64::try_from(purpose.lease.as_millis()).unwrap_or(u64::MAX),
            secret: String::new(),
            environment: Some(wire::Environment::of(&environment)),
            labels,
        };
        if wanted.user_namespaces {
            machine.require("user-namespaces").await?;
        }
        let placed = machine.create(&wanted, &purpose.require).await?;
        if let Some(image) = base.image {
            self.shared.images().insert(order.id.clone(), image);
        }
        self.shared.carry_egress(&placed).await?;
        Ok(placed)
    }

    async fn attach(&self, placed: &Placed) -> Result<(), SandboxError> {
        self.shared.carry_egress(placed).await
    }

    async fn delete(&self, id: &str) -> Result<(), SandboxError> {
        // Its layers are kept until it is gone.
        let _image = self.shared.forget(id);
        self.shared.machine.delete(id).await
    }

    async fn suspend(&self, id: &str) -> Result<(), SandboxError> {
        self.shared.machine.suspend(id, true).await
    }

    async fn resume(&self, id: &str) -> Result<(), SandboxError> {
        self.shared.machine.suspend(id, false).await
    }

    async fn list(&self) -> Result<Vec<Placed>, SandboxError> {
        self.shared.machine.list().await
    }

    async fn ids(&self) -> Result<Vec<String>, SandboxError> {
        self.shared.machine.ids().await
    }

    async fn find(&self, id: &str) -> Result<Option<Placed>, SandboxError> {
        self.shared.machine.find(id).await
    }

    async fn relabel(&self, id: &str, labels: BTreeMap<String, Option<String>>) -> Result<(), SandboxError> {
        self.shared.machine.relabel(id, labels).await
    }

    async fn checkpoint(&self, id: &str, checkpoint: &str) -> Result<Checkpoint, SandboxError> {
        self.shared.checkpoint(id, checkpoint).await
    }

    async fn checkpoints(&self) -> Result<Vec<Checkpoint>, SandboxError> {
        Ok(self.shared.machine.checkpoints(false).await?.into_iter().map(Checkpoint::from).collect())
    }

    async fn checkpoint_ids(&self) -> Result<Vec<String>, SandboxError> {
        Ok(self.shared.machine.checkpoints(true).await?.into_iter().map(|made| made.id).collect())
    }

    async fn find_checkpoint(&self, id: &str) -> Result<Option<Checkpoint>, SandboxError> {
        Ok(self.shared.machine.find_checkpoint(id).await?.map(Checkpoint::from))
    }

    async fn delete_checkpoint(&self, id: &str) -> Result<(), SandboxError> {
        self.shared.delete_checkpoint(id).await
    }

    async fn export(&self, checkpoint: &str, file: &Path, stop: &Stop) -> Result<Written, SandboxError> {
        self.shared.export(checkpoint, file, stop).await
    }

    fn ended(&self) -> broadcast::Receiver<Ended> {
        self.shared.machine.ended()
    }
}

impl From<wire::Checkpoint> for Checkpoint {
    fn from(made: wire::Checkpoint) -> Checkpoint {
        Checkpoint {
            id: made.id,
            sandbox: made.sandbox,
            labels: made.labels,
            created_s: made.created_s,
            frozen: Duration::from_millis(made.frozen_ms),
            bytes: made.bytes,
        }
    }
}
