//! Scripted capabilities: they give what the case says in its order, note whatever it does not provide, and what it provides in vain.

mod blobs;
mod browsers;
mod machines;
mod models;
mod services;
mod world;

pub(crate) use blobs::MemoryBlobs;
pub(crate) use browsers::ScriptedBrowsers;
pub(crate) use machines::ScriptedSandboxes;
pub(crate) use models::ScriptedModels;
pub(crate) use services::ScriptedServices;
pub(crate) use world::ScriptedWorld;

use crate::report::Problem;
use espalier_core::failure::Failure;
use parking_lot::Mutex;
use std::sync::Arc;

/// The `code` of the failure that a plugin is told where a case does not provide what it asks for.
const CODE: &str = "case";

/// What went another way than the case says. All clones are one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Notes(Arc<Mutex<Vec<Problem>>>);

impl Notes {
    pub(crate) fn add(&self, problem: Problem) {
        self.0.lock().push(problem);
    }

    /// Notes a call that the case does not provide for; what the plugin is told of it.
    pub(crate) fn unexpected(&self, key: impl Into<String>, text: impl Into<String>) -> Failure {
        let (key, text) = (key.into(), text.into());
        let failure = Failure::Other { code: CODE.to_owned(), text: format!("{key}: {text}") };
        self.add(Problem { key, text, diff: Vec::new() });
        failure
    }

    pub(crate) fn take(&self) -> Vec<Problem> {
        std::mem::take(&mut self.0.lock())
    }
}

#[cfg(test)]
mod tests;
