//! One browser of a rollout.

use crate::convert;
use crate::episode::EpisodeNetwork;
use crate::launcher::{Agents, sandbox_of};
use crate::rollout::Losses;
use async_trait::async_trait;
use espalier_browser::agent::{Effect as PageEffect, PictureOptions, Session};
use espalier_browser::{BrowserError, PooledContext};
use espalier_core::chat::Tool;
use espalier_core::failure::Failure;
use espalier_core::host::Blobs;
use espalier_core::host::browser::{
    Action, BrowserSession, BrowserStep, Effect, Picture, ScreenshotOptions, ScriptWorld, Snapshot,
    SnapshotOptions, Tab,
};
use std::path::Path;
use std::sync::Arc;

/// Largest download that is kept as a blob.
const DOWNLOAD_BYTES_MAX: usize = 64 << 20;

/// See the module.
pub(crate) struct PageSession {
    session: Session,
    /// Closed when this is dropped.
    _context: PooledContext,
    network: Option<EpisodeNetwork>,
    agents: Agents,
    blobs: Arc<dyn Blobs>,
    losses: Losses,
}

impl PageSession {
    pub(crate) fn new(
        session: Session,
        (context, network): (PooledContext, Option<EpisodeNetwork>),
        agents: Agents,
        blobs: Arc<dyn Blobs>,
        losses: Losses,
    ) -> PageSession {
        PageSession { session, _context: context, network, agents, blobs, losses }
    }

    /// Of a deterministic episode.
    pub(crate) fn network(&self) -> Option<&EpisodeNetwork> {
        self.network.as_ref()
    }

    /// What the plugin is told of an error. What it did wrong and what its page does wrong are its own; all else is a loss.
    fn failure(&self, error: &BrowserError) -> Failure {
        match error {
            BrowserError::Invalid { .. } => Failure::Invalid(error.to_string()),
            BrowserError::Script { .. } => other("script", error),
            BrowserError::Timeout { .. } => other("timed-out", error),
            BrowserError::DialogOpen { .. } => other("dialog", error),
            BrowserError::Navigated | BrowserError::Detached | BrowserError::Stale => {
                other("navigated", error)
            }
            _ => self.losses.lost(error),
        }
    }

    async fn effect(&self, effect: PageEffect) -> Result<Effect, Failure> {
        Ok(match effect {
            PageEffect::Downloaded { name, url, size, path } => {
                let blob = match path {
                    Some(path) if size <= DOWNLOAD_BYTES_MAX as u64 => Some(self.keep(&path).await?),
                    _ => None,
                };
                Effect::Downloaded { name, url, blob, length: size }
            }
            other => convert::effect(other),
        })
    }

    /// A file of the browser's sandbox as a blob of the rollout.
    async fn keep(&self, path: &Path) -> Result<String, Failure> {
        let lost = |why: String| self.losses.lost(format_args!("the download {}: {why}", path.display()));
        let agent = sandbox_of(path).and_then(|id| self.agents.lock().get(id).cloned());
        let agent = agent.ok_or_else(|| lost("its sandbox has ended".to_owned()))?;
        let name = path.as_os_str().as_encoded_bytes().to_vec();
        let reader = agent.read(name, 0, 0).await.map_err(|error| lost(error.to_string()))?;
        let bytes = reader.collect(DOWNLOAD_BYTES_MAX).await.map_err(|error| lost(error.to_string()))?;
        self.blobs.put(bytes, "application/octet-stream").await
    }
}

fn other(code: &str, error: &BrowserError) -> Failure {
    Failure::Other { code: code.to_owned(), text: error.to_string() }
}

#[async_trait]
impl BrowserSession for PageSession {
    fn tools(&self) -> Vec<Tool> {
        self.session.tools().into_iter().map(convert::tool).collect()
    }

    async fn act(&self, actions: Vec<Action>) -> Result<Vec<BrowserStep>, Failure> {
        let calls: Vec<_> = actions.into_iter().map(convert::call).collect();
        let acted = self.session.act(&calls).await.map_err(|error| self.failure(&error))?;
        let mut steps = Vec::with_capacity(acted.len());
        for mut step in acted {
            let (mut meanwhile, mut effects) = (Vec::new(), Vec::new());
            for effect in std::mem::take(&mut step.meanwhile) {
                meanwhile.push(self.effect(effect).await?);
            }
            for effect in std::mem::take(&mut step.effects) {
                effects.push(self.effect(effect).await?);
            }
            steps.push(BrowserStep { meanwhile, effects, ..convert::step(step) });
        }
        Ok(steps)
    }

    async fn tabs(&self) -> Result<Vec<Tab>, Failure> {
        let tabs = self.session.tabs().await.map_err(|error| self.failure(&error))?;
        Ok(tabs.into_iter().map(convert::tab).collect())
    }

    async fn snapshot(&self, options: SnapshotOptions) -> Result<Snapshot, Failure> {
        let told = self.session.snapshot(convert::snapshot_options(&options)).await;
        let told = told.map_err(|error| self.failure(&error))?;
        Ok(Snapshot { text: told.text, tokens: told.tokens, left_out: told.truncated })
    }

    async fn screenshot(&self, options: ScreenshotOptions) -> Result<Picture, Failure> {
        let options: PictureOptions = convert::picture_options(&options);
        let picture = self.session.screenshot(options).await.map_err(|error| self.failure(&error))?;
        let blob = self.blobs.put(picture.bytes.to_vec(), picture.media_type).await?;
        Ok(Picture { blob, width: picture.width, height: picture.height })
    }

    async fn evaluate(&self, expression: String, world: ScriptWorld) -> Result<String, Failure> {
        let value = self.session.evaluate(&expression, convert::world(world)).await;
        Ok(value.map_err(|error| self.failure(&error))?.to_string())
    }

    async fn storage_state(&self) -> Result<String, Failure> {
        let state = self.session.context().storage_state().await.map_err(|error| self.failure(&error))?;
        serde_json::to_string(&state)
            .map_err(|error| Failure::Other { code: "script".to_owned(), text: format!("storage: {error}") })
    }
}
