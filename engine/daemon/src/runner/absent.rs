//! What an attempt was refused because the experiment does not have it: the difference between a harness that fails by
//! itself and one that cannot work in this experiment at all.

use super::Runner;
use crate::scheduler::{MissingPart, RunBlocker};
use async_trait::async_trait;
use espalier_core::failure::Failure;
use espalier_core::host::browser::{BrowserSession, Browsers, no_browser};
use espalier_core::host::{Environment, Environments};
use espalier_inference::models::{Gone, RolloutModels};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Stands where the experiment names no environment, or no browser; remembers what was asked for.
#[derive(Debug, Default)]
pub(super) struct Absent {
    environment: AtomicBool,
    browser: AtomicBool,
}

impl Absent {
    /// What the harness asked for and the engine does not have.
    pub(super) fn missing_part(&self, models: &RolloutModels) -> Option<MissingPart> {
        let asked = |part: &AtomicBool| part.load(Ordering::Relaxed);
        let environment = asked(&self.environment).then_some(MissingPart::Environment);
        let browser = || asked(&self.browser).then_some(MissingPart::Browser);
        environment.or_else(browser).or_else(|| models.missing().map(MissingPart::Model))
    }
}

#[async_trait]
impl Environments for Absent {
    async fn open(&self) -> Result<Box<dyn Environment>, Failure> {
        self.environment.store(true, Ordering::Relaxed);
        Err(Failure::Invalid("the experiment names no environment".to_owned()))
    }
}

#[async_trait]
impl Browsers for Absent {
    async fn open(&self, name: &str) -> Result<Arc<dyn BrowserSession>, Failure> {
        self.browser.store(true, Ordering::Relaxed);
        Err(no_browser(name))
    }
}

impl Runner {
    /// Whether a model of the experiment cannot be asked now; asks their servers, each for at most 30 s.
    pub(crate) async fn gone(&self) -> Option<RunBlocker> {
        for (name, model) in self.models.iter() {
            let model_name = name.clone();
            match model.gone().await {
                None => {}
                Some(Gone::Away(why)) => return Some(RunBlocker::Away { model: model_name, why }),
                Some(Gone::ForGood(why)) => return Some(RunBlocker::Unusable { model: model_name, why }),
            }
        }
        None
    }
}
