//! The sessions of one rollout: one of each service that its task names, under one id.

use crate::answer::Response;
use crate::app::AppSession;
use crate::miniwob::{Miniwob, MiniwobSession};
use crate::{ROLLOUTS_MAX, RunServices, Served};
use async_trait::async_trait;
use espalier_core::attempt::{AttemptCapability, Draft};
use espalier_core::failure::Failure;
use espalier_core::host::service::{ServiceRequest, ServiceResponse, Services};
use espalier_core::service::ServiceSession;
use espalier_core::task::Task;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What requests of one rollout are about.
#[derive(Debug)]
pub(crate) struct Sessions {
    pub(crate) sid: String,
    token: String,
    sessions: BTreeMap<String, Mutex<Session>>,
}

#[derive(Debug)]
pub(crate) enum Session {
    App(AppSession),
    Miniwob(MiniwobSession),
}

impl Sessions {
    pub(crate) fn of(&self, name: &str) -> Option<&Mutex<Session>> {
        self.sessions.get(name)
    }
}

/// 128 random bits, hex.
pub(crate) fn random_id() -> String {
    hex::encode(rand::random::<[u8; 16]>())
}

/// The services of one rollout, for its rewards and judges; its sessions end with it.
#[derive(Debug)]
pub struct RolloutServices {
    run: Arc<RunServices>,
    state: Mutex<State>,
    /// Whether it was asked after its end.
    missed: AtomicBool,
}

#[derive(Debug)]
enum State {
    Open(Arc<Sessions>),
    /// There was no room.
    Full,
    /// The rollout is over.
    Ended,
}

impl RolloutServices {
    /// Opens the sessions of a task that [`RunServices::check`] has let through.
    pub fn open(run: Arc<RunServices>, task: &Task) -> RolloutServices {
        let begun = task.services.iter().filter_map(|(name, service)| {
            let session = match run.served(name)? {
                Served::App(app) => Session::App(app.session(service)),
                Served::Miniwob(_) => Session::Miniwob(Miniwob::session(service, random_id(), random_id())),
            };
            Some((name.clone(), Mutex::new(session)))
        });
        let sessions = Sessions { sid: random_id(), token: random_id(), sessions: begun.collect() };
        let sessions = Arc::new(sessions);
        let mut rollouts = run.rollouts.lock();
        let state = if rollouts.len() < ROLLOUTS_MAX {
            rollouts.insert(sessions.token.clone(), Arc::clone(&sessions));
            State::Open(sessions)
        } else {
            State::Full
        };
        drop(rollouts);
        RolloutServices { run, state: Mutex::new(state), missed: AtomicBool::new(false) }
    }

    /// Where the rollout is over, and its sessions with it.
    pub fn ended(run: Arc<RunServices>) -> RolloutServices {
        RolloutServices { run, state: Mutex::new(State::Ended), missed: AtomicBool::new(false) }
    }

    /// Whether it was asked after its end.
    pub fn was_missed(&self) -> bool {
        self.missed.load(Ordering::Relaxed)
    }

    /// What the rollout's browser is given. `None`: there is no session.
    pub fn session(&self) -> Option<ServiceSession> {
        let State::Open(sessions) = &*self.state.lock() else { return None };
        Some(ServiceSession {
            sid: sessions.sid.clone(),
            token: sessions.token.clone(),
            names: sessions.sessions.keys().cloned().collect(),
        })
    }

    fn sessions(&self) -> Result<Arc<Sessions>, Failure> {
        match &*self.state.lock() {
            State::Open(sessions) => Ok(Arc::clone(sessions)),
            State::Full => {
                Err(Failure::Unavailable(format!("services: {ROLLOUTS_MAX} rollouts have sessions already")))
            }
            State::Ended => {
                self.missed.store(true, Ordering::Relaxed);
                Err(Failure::Unavailable("services: the sessions ended with their rollout".to_owned()))
            }
        }
    }

    fn end(&self) {
        let before = std::mem::replace(&mut *self.state.lock(), State::Ended);
        if let State::Open(sessions) = before {
            self.run.rollouts.lock().remove(&sessions.token);
        }
    }
}

impl Drop for RolloutServices {
    fn drop(&mut self) {
        self.end();
    }
}

#[async_trait]
impl Services for RolloutServices {
    async fn request(&self, request: ServiceRequest) -> Result<ServiceResponse, Failure> {
        request.check()?;
        let sessions = self.sessions()?;
        let (Some(served), Some(session)) = (self.run.served(&request.name), sessions.of(&request.name))
        else {
            let names: Vec<&str> = sessions.sessions.keys().map(String::as_str).collect();
            let has = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            let name: String = request.name.chars().take(100).collect();
            return Err(Failure::Invalid(format!("service {name:?}: this rollout has {has}")));
        };
        let Response { status, content_type, body, .. } =
            crate::answer::with_key(served, &sessions, session, request);
        Ok(ServiceResponse {
            status: status.as_u16(),
            content_type: content_type.to_owned(),
            body: body.to_vec(),
        })
    }
}

impl AttemptCapability for RolloutServices {
    fn finish(&self, _: &mut Draft) {
        self.end();
    }
}
