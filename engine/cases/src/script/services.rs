//! Services of a case: each request that it provides for has one answer.

use super::Notes;
use crate::case::ServiceReply;
use crate::report::Problem;
use async_trait::async_trait;
use espalier_core::failure::Failure;
use espalier_core::host::service::{ServiceRequest, ServiceResponse, Services};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};

/// The services of one case, by name and then by `GET /path`.
pub(crate) struct ScriptedServices {
    replies: BTreeMap<String, BTreeMap<String, ServiceReply>>,
    asked: Mutex<BTreeSet<(String, String)>>,
    notes: Notes,
}

impl ScriptedServices {
    pub(crate) fn new(
        replies: BTreeMap<String, BTreeMap<String, ServiceReply>>,
        notes: Notes,
    ) -> ScriptedServices {
        ScriptedServices { replies, asked: Mutex::default(), notes }
    }

    /// Notes what was not asked for.
    pub(crate) fn note_rest(&self) {
        let asked = self.asked.lock();
        for (name, replies) in &self.replies {
            for line in replies.keys().filter(|line| !asked.contains(&(name.clone(), (*line).clone()))) {
                let key = format!("services.{name}.\"{line}\"");
                self.notes.add(Problem::new(key, "was not asked for".to_owned()));
            }
        }
    }
}

#[async_trait]
impl Services for ScriptedServices {
    async fn request(&self, request: ServiceRequest) -> Result<ServiceResponse, Failure> {
        let (name, line) = (request.name, format!("{} {}", request.method, request.path));
        let Some(reply) = self.replies.get(&name).and_then(|replies| replies.get(&line)) else {
            return Err(self.notes.unexpected(format!("services.{name}"), format!("no answer to `{line}`")));
        };
        self.asked.lock().insert((name, line));
        let (status, body) = (reply.status, reply.json.to_string().into_bytes());
        Ok(ServiceResponse { status, content_type: "application/json".to_owned(), body })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[tokio::test]
    async fn what_is_not_provided_and_what_is_not_asked_for_is_noted() {
        let notes = Notes::default();
        let reply = |json| ServiceReply { status: 200, json };
        let replies = [("GET /go", json!({"a": 1})), ("GET /state", json!({}))];
        let replies = replies.map(|(line, json)| (line.to_owned(), reply(json))).into_iter().collect();
        let services =
            ScriptedServices::new([("mail".to_owned(), replies)].into_iter().collect(), notes.clone());
        let ask = |path: &str| {
            let (name, method, path) = ("mail".to_owned(), "GET".to_owned(), path.to_owned());
            services.request(ServiceRequest { name, method, path, body: Vec::new() })
        };
        assert_eq!(ask("/go").await.unwrap().body, br#"{"a":1}"#);
        assert!(ask("/files").await.is_err());
        services.note_rest();
        let told: Vec<String> =
            notes.take().into_iter().map(|problem| format!("{}: {}", problem.key, problem.text)).collect();
        assert_eq!(
            told,
            ["services.mail: no answer to `GET /files`", "services.mail.\"GET /state\": was not asked for"]
        );
    }
}
