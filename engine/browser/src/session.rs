//! One browser of a rollout.

use crate::convert;
use crate::episode::EpisodeNetwork;
use crate::launcher::{Agents, OwnBrowser, sandbox_of};
use crate::rollout::Losses;
use async_trait::async_trait;
use espalier_agent_client::wire::MakeFolderRequest;
use espalier_agent_client::{Agent, AgentError, Reason};
use espalier_browser::agent::{Effect as PageEffect, PictureOptions, Session};
use espalier_browser::{BrowserContext, BrowserError, PooledContext};
use espalier_core::chat::Tool;
use espalier_core::failure::Failure;
use espalier_core::host::Blobs;
use espalier_core::host::browser::{
    Action, BrowserSession, BrowserStep, Effect, Picture, ScreenshotOptions, ScriptWorld, Snapshot,
    SnapshotOptions, Tab,
};
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

/// Largest download that is kept as a blob.
const DOWNLOAD_BYTES_MAX: usize = 64 << 20;

/// Where the downloads of a browser land that runs in a sandbox of the task.
const DOWNLOADS: &str = "/tmp/downloads";
/// Downloads of one name that are told apart by a number.
const SAME_NAME_MAX: u32 = 1000;

/// What a session lives in; closed when this is dropped.
pub(crate) enum Home {
    /// A context in a process that other rollouts share.
    Pooled(PooledContext),
    /// A browser in a sandbox of the task.
    Own(OwnBrowser, BrowserContext),
}

impl Home {
    pub(crate) fn context(&self) -> &BrowserContext {
        match self {
            Home::Pooled(context) => context,
            Home::Own(_, context) => context,
        }
    }

    /// Ends what is of the rollout alone, and waits until it is known how it ended: whether for memory.
    pub(crate) async fn end(&self) {
        if let Home::Own(own, _) = self {
            own.end().await;
        }
    }
}

/// See the module.
pub(crate) struct PageSession {
    session: Session,
    home: Home,
    network: Option<EpisodeNetwork>,
    agents: Agents,
    blobs: Arc<dyn Blobs>,
    losses: Losses,
}

impl PageSession {
    pub(crate) fn new(
        session: Session,
        (home, network): (Home, Option<EpisodeNetwork>),
        agents: Agents,
        blobs: Arc<dyn Blobs>,
        losses: Losses,
    ) -> PageSession {
        PageSession { session, home, network, agents, blobs, losses }
    }

    pub(crate) fn home(&self) -> &Home {
        &self.home
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

    /// What a download comes to that is done but cannot be put into its folder is told in `text`, too.
    async fn effect(&self, effect: PageEffect, text: &mut String) -> Result<Effect, Failure> {
        Ok(match effect {
            PageEffect::Downloaded { name, url, size, path } => {
                let blob = match &path {
                    Some(path) if size <= DOWNLOAD_BYTES_MAX as u64 => Some(self.keep(path).await?),
                    _ => None,
                };
                if let (Home::Own(own, _), Some(path)) = (&self.home, &path)
                    && let Some(reason) = self.land(&own.agent, path, &name).await?
                {
                    let _ = write!(text, " {name:?} could not be put into {DOWNLOADS}: {reason}.");
                    return Ok(Effect::DownloadFailed { name, reason });
                }
                Effect::Downloaded { name, url, blob, length: size }
            }
            other => convert::effect(other),
        })
    }

    /// A file of the browser's sandbox as a blob of the rollout.
    async fn keep(&self, path: &Path) -> Result<String, Failure> {
        let lost = |why: String| self.losses.lost(format_args!("the download {}: {why}", path.display()));
        let agent = match &self.home {
            Home::Own(own, _) => Some(own.agent.clone()),
            Home::Pooled(_) => sandbox_of(path).and_then(|id| self.agents.lock().get(id).cloned()),
        };
        let agent = agent.ok_or_else(|| lost("its sandbox has ended".to_owned()))?;
        let name = path.as_os_str().as_encoded_bytes().to_vec();
        let reader = agent.read(name, 0, 0).await.map_err(|error| lost(error.to_string()))?;
        let bytes = reader.collect(DOWNLOAD_BYTES_MAX).await.map_err(|error| lost(error.to_string()))?;
        self.blobs.put(bytes, "application/octet-stream").await
    }
}

impl PageSession {
    /// Puts a download where commands of the sandbox find it, under its name or one like it; says why that cannot be done, where programs
    /// there have seen to it.
    async fn land(&self, agent: &Agent, path: &Path, name: &str) -> Result<Option<String>, Failure> {
        let failed = |error: AgentError| match error {
            AgentError::Refused { message, .. } => Ok(Some(message)),
            error => Err(self.losses.lost(format_args!("the download {name}: {error}"))),
        };
        let request =
            MakeFolderRequest { path: DOWNLOADS.into(), parents: true, ..MakeFolderRequest::default() };
        if let Err(error) = agent.make_folder(&agent.allot(), request).await {
            return failed(error);
        }
        let from = path.as_os_str().as_encoded_bytes().to_vec();
        for number in 0..SAME_NAME_MAX {
            let to = format!("{DOWNLOADS}/{}", numbered(name, number));
            match agent.move_without_links(&agent.allot(), from.clone(), to).await {
                Ok(()) => return Ok(None),
                Err(AgentError::Refused { reason: Reason::Kind, .. }) => {}
                Err(error) => return failed(error),
            }
        }
        Ok(Some(format!("{DOWNLOADS} has {SAME_NAME_MAX} files of this name")))
    }
}

/// `report.pdf`, `report (1).pdf`.
fn numbered(name: &str, number: u32) -> String {
    let name: String = name.chars().map(|c| if c == '/' || c.is_control() { '_' } else { c }).collect();
    let name = if ["", ".", ".."].contains(&name.as_str()) { "download".to_owned() } else { name };
    match (number, name.rsplit_once('.')) {
        (0, _) => name,
        (_, Some((stem, ending))) if !stem.is_empty() => format!("{stem} ({number}).{ending}"),
        _ => format!("{name} ({number})"),
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
                meanwhile.push(self.effect(effect, &mut step.text).await?);
            }
            for effect in std::mem::take(&mut step.effects) {
                effects.push(self.effect(effect, &mut step.text).await?);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn downloads_of_one_name_are_numbered() {
        for (name, number, expect) in [
            ("report.pdf", 0, "report.pdf"),
            ("report.pdf", 2, "report (2).pdf"),
            (".bashrc", 1, ".bashrc (1)"),
            ("plain", 1, "plain (1)"),
            ("../../etc/passwd", 0, ".._.._etc_passwd"),
            ("..", 0, "download"),
        ] {
            assert_eq!(numbered(name, number), expect, "{name}");
        }
    }
}
