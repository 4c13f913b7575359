//! Credentials for servers and proxies that ask for them (Basic, Digest), once for each request.

use crate::connection::Session;
use crate::protocol::event;
use crate::storage::origin_of;
use chromiumoxide::cdp::browser_protocol::fetch::{
    AuthChallengeResponse, AuthChallengeResponseResponse, ContinueWithAuthParams,
};
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

/// Requests whose answer is remembered, so that a second challenge is told from the first.
const ANSWERED_KEPT: usize = 1000;

/// A name and a password for servers that ask for them.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The user.
    pub username: String,
    /// The password.
    pub password: String,
    /// Given to this origin only, such as `https://example.com`. Default: to every server and proxy that asks.
    pub origin: Option<String>,
}

impl Credentials {
    /// Credentials for every server and proxy that asks.
    pub fn new(username: impl Into<String>, password: impl Into<String>) -> Credentials {
        Credentials { username: username.into(), password: password.into(), origin: None }
    }
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("username", &self.username)
            .field("origin", &self.origin)
            .finish_non_exhaustive()
    }
}

/// The credentials of a context and the requests that have had them.
#[derive(Default)]
pub(crate) struct Auth {
    credentials: Mutex<Option<Credentials>>,
    answered: Mutex<VecDeque<String>>,
}

/// `Fetch.authRequired`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct AuthRequired {
    request_id: String,
    auth_challenge: Challenge,
}

#[derive(Deserialize)]
struct Challenge {
    origin: String,
}

impl Auth {
    pub(crate) fn set(&self, credentials: Option<Credentials>) {
        *self.credentials.lock() = credentials;
    }

    pub(crate) fn is_set(&self) -> bool {
        self.credentials.lock().is_some()
    }

    /// Answers a challenge; a second one for the same request is refused, so that the page sees the server's answer.
    pub(crate) fn required(&self, session: &Arc<Session>, method: &str, params: &RawValue) {
        let Some(required) = event::<AuthRequired>(method, params) else { return };
        let credentials = self.credentials.lock().clone().filter(|credentials| {
            let asks = origin_of(&required.auth_challenge.origin);
            credentials.origin.as_deref().is_none_or(|origin| asks == origin_of(origin))
        });
        let mut answer = AuthChallengeResponse::new(AuthChallengeResponseResponse::CancelAuth);
        if let (Some(credentials), true) = (credentials, self.is_first(&required.request_id)) {
            answer = AuthChallengeResponse::new(AuthChallengeResponseResponse::ProvideCredentials);
            answer.username = Some(credentials.username);
            answer.password = Some(credentials.password);
        }
        session.post(ContinueWithAuthParams::new(required.request_id, answer));
    }

    fn is_first(&self, request: &str) -> bool {
        let mut answered = self.answered.lock();
        if answered.iter().any(|id| id == request) {
            return false;
        }
        if answered.len() == ANSWERED_KEPT {
            answered.pop_front();
        }
        answered.push_back(request.to_owned());
        true
    }
}
