//! The quota of disk: what sandboxes may write, and what checkpoints have.

use crate::Service;
use async_trait::async_trait;
use espalier_api::Settings;
use espalier_api::keys::Scope;
use espalier_images::{Stop, Written};
use espalier_sandbox::backend::{Backend, Checkpoint, Ended, Order, Placed};
use espalier_sandbox::error::SandboxError;
use espalier_store::Quotas;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::broadcast;

const GIB: u64 = 1 << 30;

/// Has checkpoints, and makes no sandbox.
struct Kept {
    checkpoints: Mutex<Vec<Checkpoint>>,
    ended: broadcast::Sender<Ended>,
}

impl Kept {
    fn add(&self, owner: &str, disk: u64, bytes: Option<u64>) {
        let record = json!({
            "owner": owner, "id": "s", "image": "host", "cpu": 1.0, "memory": GIB, "disk": disk, "network": "none",
            "labels": {}, "created_ms": 1, "expires_ms": 2, "ready": true,
        });
        let mut all = self.checkpoints.lock().unwrap();
        let id = format!("c{}", all.len());
        all.push(Checkpoint {
            id,
            sandbox: "s".to_owned(),
            labels: BTreeMap::from([
                ("espalier.api".to_owned(), record.to_string()),
                (
                    "espalier.api-checkpoint".to_owned(),
                    r#"{"labels":{},"request":null,"passing":false}"#.to_owned(),
                ),
            ]),
            created_s: 1,
            frozen: Duration::ZERO,
            bytes,
        });
    }
}

fn none<T>() -> Result<T, SandboxError> {
    Err(SandboxError::Unavailable("no sandbox is made here".into()))
}

#[async_trait]
impl Backend for Kept {
    async fn promises(&self) -> Result<BTreeMap<String, Result<(), String>>, SandboxError> {
        Ok(BTreeMap::new())
    }
    async fn create(&self, _: &Order) -> Result<Placed, SandboxError> {
        none()
    }
    async fn delete(&self, _: &str) -> Result<(), SandboxError> {
        Ok(())
    }
    async fn list(&self) -> Result<Vec<Placed>, SandboxError> {
        Ok(Vec::new())
    }
    async fn ids(&self) -> Result<Vec<String>, SandboxError> {
        Ok(Vec::new())
    }
    async fn checkpoint_ids(&self) -> Result<Vec<String>, SandboxError> {
        Ok(self.checkpoints.lock().unwrap().iter().map(|kept| kept.id.clone()).collect())
    }
    async fn find(&self, _: &str) -> Result<Option<Placed>, SandboxError> {
        Ok(None)
    }
    async fn relabel(&self, _: &str, _: BTreeMap<String, Option<String>>) -> Result<(), SandboxError> {
        none()
    }
    async fn checkpoint(&self, _: &str, _: &str) -> Result<Checkpoint, SandboxError> {
        none()
    }
    async fn checkpoints(&self) -> Result<Vec<Checkpoint>, SandboxError> {
        Ok(self.checkpoints.lock().unwrap().clone())
    }
    async fn find_checkpoint(&self, id: &str) -> Result<Option<Checkpoint>, SandboxError> {
        Ok(self.checkpoints.lock().unwrap().iter().find(|kept| kept.id == id).cloned())
    }
    async fn delete_checkpoint(&self, _: &str) -> Result<(), SandboxError> {
        none()
    }
    async fn attach(&self, _: &Placed) -> Result<(), SandboxError> {
        none()
    }
    async fn suspend(&self, _: &str) -> Result<(), SandboxError> {
        none()
    }
    async fn resume(&self, _: &str) -> Result<(), SandboxError> {
        none()
    }
    async fn export(&self, _: &str, _: &Path, _: &Stop) -> Result<Written, SandboxError> {
        none()
    }
    fn ended(&self) -> broadcast::Receiver<Ended> {
        self.ended.subscribe()
    }
}

#[tokio::test]
async fn disk_of_sandboxes_and_checkpoints_is_bound_by_the_keys_quota() {
    let backend = Arc::new(Kept { checkpoints: Mutex::default(), ended: broadcast::channel(1).0 });
    let folder = Arc::new(tempfile::tempdir().unwrap());
    let service =
        Service::start_over(Arc::clone(&backend) as Arc<dyn Backend>, folder, Settings::default()).await;
    let bound = Quotas { disk: Some(10 * GIB), ..Quotas::default() };
    let header = |key: &str| format!("x-api-key: {key}\r\ncontent-type: application/json\r\n");
    let (first, other) = (
        header(&service.key(Scope::Write, bound).await),
        header(&service.key(Scope::Write, Quotas::default()).await),
    );
    let id = |headers: String| {
        let service = &service;
        async move { service.ask("GET", "/v1/key", &headers, "").await.2["id"].as_str().unwrap().to_owned() }
    };
    let (first_id, other_id) = (id(first.clone()).await, id(other.clone()).await);
    let create = async |headers: &str, disk: &str| {
        service.ask("POST", "/v1/sandboxes", headers, &format!("{{\"disk\":\"{disk}\"}}")).await
    };
    let refused = |(status, _, problem): (u16, String, Value), would: &str| {
        let detail =
            format!("this would bring the key to {would} of disk, checkpoints included; its quota is 10GiB");
        assert_eq!((status, &problem["code"]), (429, &json!("quota-exceeded")), "{problem}");
        assert_eq!(problem["detail"], detail);
    };
    refused(create(&first, "11GiB").await, "11GiB");
    assert_ne!(create(&first, "10GiB").await.0, 429);
    assert_ne!(create(&other, "100GiB").await.0, 429);
    // What each has where the backend tells, else what its sandbox might have written; those of the other key are its own.
    backend.add(&first_id, 8 * GIB, Some(3 * GIB));
    backend.add(&first_id, 4 * GIB, None);
    backend.add(&other_id, 100 * GIB, Some(100 * GIB));
    let service = service.again_over(backend).await;
    let create = async |headers: &str, disk: &str| {
        service.ask("POST", "/v1/sandboxes", headers, &format!("{{\"disk\":\"{disk}\"}}")).await
    };
    let refused = async |disk: &str, would: &str| refused(create(&first, disk).await, would);
    refused("4GiB", "11GiB").await;
    assert_ne!(create(&first, "3GiB").await.0, 429);
    for path in ["/resources", "/v1/key"] {
        let held = service.ask("GET", path, &first, "").await.2;
        assert_eq!(held["quotas"]["disk"], json!(10 * GIB), "{held}");
        assert_eq!(held["used"]["checkpoints"], json!(7 * GIB), "{held}");
    }
}
