//! How vLLM and SGLang take new weights, by their published forms: paused, loaded, labelled, going on.

use crate::answers::error;
use crate::http::Response;
use crate::{Scripted, Shared};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;

/// Whether a server samples, and what it was told.
pub(crate) struct Weights {
    paused: watch::Sender<bool>,
    /// How often all that is being sampled was given back.
    aborts: watch::Sender<u64>,
    asked: Mutex<Vec<String>>,
    broken: Mutex<Vec<String>>,
}

impl Default for Weights {
    fn default() -> Weights {
        let (paused, aborts) = (watch::Sender::new(false), watch::Sender::new(0));
        Weights { paused, aborts, asked: Mutex::default(), broken: Mutex::default() }
    }
}

impl Weights {
    /// Waits while the server stands still. False: what it samples was given back.
    pub(crate) async fn samples(&self) -> bool {
        let (mut paused, mut aborts) = (self.paused.subscribe(), self.aborts.subscribe());
        tokio::select! {
            biased;
            _ = paused.wait_for(|paused| !paused) => true,
            _ = aborts.changed() => false,
        }
    }
}

impl Scripted {
    /// What it was told about its weights, in order: the routes, with their queries.
    pub fn told(&self) -> Vec<String> {
        self.shared.weights.asked.lock().clone()
    }

    /// Routes that fail with 500 from now on.
    pub fn break_routes(&self, routes: &[&str]) {
        *self.shared.weights.broken.lock() = routes.iter().map(|route| (*route).to_owned()).collect();
    }

    /// Whether it stands still.
    pub fn is_paused(&self) -> bool {
        *self.shared.weights.paused.borrow()
    }
}

/// `None`: no such route.
pub(crate) fn answer(shared: &Shared, route: &str, body: &Value) -> Option<Response> {
    let (path, _) = route.split_once('?').unwrap_or((route, ""));
    let weights = &shared.weights;
    let version = |label: &Value| *shared.version.lock() = label.as_str().unwrap_or_default().to_owned();
    let known = ["/pause", "/resume", "/collective_rpc", "/reset_prefix_cache", "/update_weight_version"];
    let sglang = ["/pause_generation", "/continue_generation", "/update_weights_from_disk"];
    if !known.contains(&path) && !sglang.contains(&path) {
        return None;
    }
    weights.asked.lock().push(route.to_owned());
    if weights.broken.lock().iter().any(|broken| broken == path) {
        return Some(Response::json(500, &error(500, "it broke")));
    }
    let answer = match path {
        "/pause" | "/pause_generation" => {
            weights.paused.send_replace(true);
            if route.contains("mode=abort") || body["mode"] == "abort" {
                weights.aborts.send_modify(|aborts| *aborts += 1);
            }
            json!({ "status": "paused" })
        }
        "/resume" | "/continue_generation" => {
            weights.paused.send_replace(false);
            json!({ "status": "resumed" })
        }
        "/update_weight_version" => {
            version(&body["new_version"]);
            json!({ "success": true, "new_version": body["new_version"] })
        }
        "/update_weights_from_disk" => {
            version(&body["weight_version"]);
            json!({ "success": true, "message": "ok", "num_paused_requests": 0 })
        }
        "/reset_prefix_cache" => json!({ "success": route.contains("reset_running_requests=true") }),
        _ => json!({ "results": [null] }),
    };
    Some(Response::json(200, &answer))
}
