//! Services that the engine answers itself, for browsers of rollouts and for their rewards: web applications whose state belongs to one
//! rollout ([`app`]), and MiniWoB++ ([`miniwob`]).
//!
//! What is served is read once, when a run begins ([`folder`]); state is kept in memory, for as long as its rollout lives ([`rollout`]).
//! Nothing here opens a port: requests come from the proxy of a sandbox ([`RunServices::answer`]), as those of a page, or from a plugin
//! that scores ([`RolloutServices`]), with the engine's key. No request of a page, whatever it says, is one with the key.
//!
//! Reading order: [`folder`] -> [`app`] with `operations` and `diff` -> [`miniwob`] -> `answer` -> [`rollout`].

mod answer;
pub mod app;
mod diff;
pub mod folder;
pub mod miniwob;
mod operations;
mod pointer;
pub mod rollout;

pub use rollout::RolloutServices;

use app::App;
use espalier_core::service::{ServiceConfig, ServiceKind, check_name};
use espalier_core::task::Task;
use folder::Folder;
use miniwob::Miniwob;
use parking_lot::Mutex;
use rollout::Sessions;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Rollouts with sessions at a time.
pub const ROLLOUTS_MAX: usize = 100_000;

/// A service that cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{problem}")]
pub struct ServiceError {
    /// Which of `[services]`.
    pub name: String,
    /// The key there; empty for the section itself.
    pub key: &'static str,
    /// What is wrong, with the value.
    pub problem: String,
    /// What to do.
    pub hint: String,
}

/// What a service serves.
#[derive(Debug)]
pub(crate) enum Served {
    App(App),
    Miniwob(Miniwob),
}

/// The services of a run, with the sessions of its rollouts.
#[derive(Debug, Default)]
pub struct RunServices {
    served: BTreeMap<String, Served>,
    digests: BTreeMap<String, String>,
    /// By the token of their cookie.
    rollouts: Mutex<HashMap<String, Arc<Sessions>>>,
}

impl RunServices {
    /// Reads what is served. `resolve` makes a path of the experiment one of this process; `installed` finds the pages of MiniWoB++
    /// where the experiment names no folder. Errors name the service, the key and the remedy. Blocks.
    pub fn read(
        configs: &BTreeMap<String, ServiceConfig>,
        resolve: impl Fn(&Path) -> PathBuf,
        installed: impl Fn() -> Option<PathBuf>,
    ) -> Result<RunServices, ServiceError> {
        let mut services = RunServices::default();
        for (name, config) in configs {
            let refuse = |key: &'static str, problem: String, hint: &str| ServiceError {
                name: name.clone(),
                key,
                problem,
                hint: hint.to_owned(),
            };
            check_name(name).map_err(|problem| refuse("", problem, "such as `[services.mail]`"))?;
            let folder = match (&config.folder, config.kind) {
                (Some(folder), _) => resolve(folder),
                (None, ServiceKind::Miniwob) => installed().ok_or_else(|| {
                    let problem = "the Python package `miniwob` was not found".to_owned();
                    let hint = "`pip install miniwob==1.1.0`, or name its folder `html` in `folder`";
                    refuse("kind", problem, hint)
                })?,
                (None, ServiceKind::App) => {
                    let problem = "an `app` needs a `folder`".to_owned();
                    let hint = "add `folder = \"apps/mail\"`, a folder with `app.json` and `index.html`";
                    return Err(refuse("kind", problem, hint));
                }
            };
            let shown = folder.display().to_string();
            let read = Folder::read(&folder).map_err(|problem| {
                refuse("folder", format!("{shown}: {problem}"), "a path is relative to the experiment file")
            })?;
            services.digests.insert(name.clone(), read.digest().to_owned());
            let served = match config.kind {
                ServiceKind::App => App::new(read).map(Served::App).map_err(|problem| {
                    refuse(
                        "folder",
                        format!("{shown}: {problem}"),
                        "docs/services.md has the form of `app.json`",
                    )
                }),
                ServiceKind::Miniwob => Miniwob::new(read).map(Served::Miniwob).map_err(|problem| {
                    let hint = "the folder is `html` of the Python package `miniwob`";
                    refuse("folder", format!("{shown}: {problem}"), hint)
                }),
            }?;
            services.served.insert(name.clone(), served);
        }
        Ok(services)
    }

    /// Digests of what is served, by name: part of what a run is.
    pub fn digests(&self) -> &BTreeMap<String, String> {
        &self.digests
    }

    /// Refuses a task that needs a service which is not there, or says of one what does not fit. Errors begin with the key.
    pub fn check(&self, task: &Task) -> Result<(), String> {
        for (name, service) in &task.services {
            let key = format!("services.{name}");
            let fits = match self.served.get(name) {
                None => {
                    return Err(format!(
                        "needs the service `{name}`, but the experiment has no `[services.{name}]`"
                    ));
                }
                Some(Served::App(app)) => app.check(service),
                Some(Served::Miniwob(miniwob)) => miniwob.check(service),
            };
            fits.map_err(|problem| format!("{key}{problem}"))?;
        }
        Ok(())
    }

    /// Whether there is one of this name.
    pub fn has(&self, name: &str) -> bool {
        self.served.contains_key(name)
    }

    pub(crate) fn served(&self, name: &str) -> Option<&Served> {
        self.served.get(name)
    }
}
