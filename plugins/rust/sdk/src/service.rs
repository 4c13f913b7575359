//! Services that the engine answers itself, for rewards and judges; see [`crate::wit::espalier::service`].

use crate::wit::espalier::service::services::{self, Response};
use crate::{Failure, invalid};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// A service of the rollout, asked with the engine's key.
#[derive(Clone, Debug)]
pub struct Service(String);

impl Service {
    /// The service that the task names so in `services`.
    pub fn named(name: &str) -> Service {
        Service(name.to_owned())
    }

    /// What `GET` of a path answers, as JSON. Errors: `invalid` also for a status of 400 or more, with what the service says.
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Failure> {
        self.json(path, &services::request(&self.0, "GET", path, &[])?)
    }

    /// What `POST` to a path answers, as JSON. Errors as those of [`Service::get`].
    pub fn post<T: DeserializeOwned>(&self, path: &str, body: &Value) -> Result<T, Failure> {
        self.json(path, &services::request(&self.0, "POST", path, body.to_string().as_bytes())?)
    }

    fn json<T: DeserializeOwned>(&self, path: &str, response: &Response) -> Result<T, Failure> {
        let text = String::from_utf8_lossy(&response.body);
        let shown = || text.chars().take(500).collect::<String>();
        if response.status >= 400 {
            return Err(invalid(format_args!("{}{path}: status {}: {}", self.0, response.status, shown())));
        }
        serde_json::from_str(&text)
            .map_err(|error| invalid(format_args!("{}{path}: {error}: {}", self.0, shown())))
    }
}
