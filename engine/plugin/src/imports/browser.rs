//! The imports of `espalier:browser`.

use super::sandbox::short;
use super::{Answer, handle, hold, opened};
use crate::bindings::harness::espalier::browser::browsers as wit;
use crate::convert::browser::{
    action_in, picture_out, screenshot_options_in, snapshot_options_in, snapshot_out, step_out, tab_out,
    tool_out, world_in,
};
use crate::convert::failure_out;
use crate::gate::Work;
use crate::guest::{Guest, OpenBrowser};
use espalier_core::failure::Failure;
use espalier_core::host::browser::{
    ACTIONS_MAX, Action, BrowserSession, BrowserStep, Browsers, ScriptWorld, StepOutcome, no_browser,
};
use espalier_core::journal::{Call, Reply};
use std::borrow::Cow;
use std::sync::Arc;
use wasmtime::component::Resource;

/// Longest expression that is evaluated, bytes.
const EXPRESSION_BYTES_MAX: usize = 1 << 20;

impl Guest {
    fn session(&self, this: &Resource<OpenBrowser>) -> wasmtime::Result<Arc<dyn BrowserSession>> {
        Ok(Arc::clone(&self.table.get(this)?.0))
    }

    fn the_browsers(&self, name: &str) -> Result<Arc<dyn Browsers>, Failure> {
        self.capabilities.browsers.clone().ok_or_else(|| no_browser(name))
    }

    /// One import of a browser, with a note for people on what came of it.
    async fn in_browser<T, U>(
        &mut self,
        call: Call<'_>,
        work: Work<T>,
        reply: impl FnOnce(&T) -> Reply<'_>,
        note: impl FnOnce(Option<&T>) -> String,
        out: impl FnOnce(T) -> U,
    ) -> Answer<U>
    where
        T: Send + 'static,
    {
        let asked = self.gate.asked(call);
        let answer = self.gate.pass_noted(asked, work, Ok, reply, |told| Some(note(told).into())).await?;
        Ok(answer.map(out).map_err(failure_out))
    }
}

impl wit::Host for Guest {
    async fn open(&mut self, name: String) -> Answer<Resource<OpenBrowser>> {
        let browsers = self.the_browsers(&name);
        let asked = self.gate.asked(Call::OpenBrowser { name: Cow::Borrowed(&name) });
        let note = name.clone();
        let work: Work<Arc<dyn BrowserSession>> = Box::pin(async move { browsers?.open(&name).await });
        let table = &mut self.table;
        let take = |session| hold(table, OpenBrowser(session));
        Ok(self.gate.pass_noted(asked, work, take, opened, |_| Some(note.into())).await?.map_err(failure_out))
    }
}

impl wit::HostSession for Guest {
    fn tools(&mut self, this: Resource<OpenBrowser>) -> wasmtime::Result<Vec<wit::Tool>> {
        let session = self.session(&this)?;
        let asked = self.gate.asked(Call::BrowserTools { session: handle(&this) });
        let tools = self.gate.pass_always(
            asked,
            |_| session.tools(),
            |tools| Reply::Tools(Cow::Borrowed(tools.as_slice())),
        )?;
        Ok(tools.into_iter().map(tool_out).collect())
    }

    async fn act(
        &mut self,
        this: Resource<OpenBrowser>,
        actions: Vec<wit::Action>,
    ) -> Answer<Vec<wit::Step>> {
        let session = self.session(&this)?;
        let actions: Vec<Action> = actions.into_iter().map(action_in).collect();
        let names = names(&actions);
        let call = Call::BrowserAct { session: handle(&this), actions: Cow::Owned(actions.clone()) };
        let work = Box::pin(async move {
            if actions.len() > ACTIONS_MAX {
                let count = actions.len();
                return Err(Failure::Invalid(format!("{count} actions: expected {ACTIONS_MAX} at most")));
            }
            session.act(actions).await
        });
        self.in_browser(
            call,
            work,
            |steps| Reply::BrowserSteps(Cow::Borrowed(steps.as_slice())),
            |steps| steps.map_or(names, |steps| told(steps)),
            |steps| steps.into_iter().map(step_out).collect(),
        )
        .await
    }

    async fn tabs(&mut self, this: Resource<OpenBrowser>) -> Answer<Vec<wit::Tab>> {
        let session = self.session(&this)?;
        let call = Call::BrowserTabs { session: handle(&this) };
        self.in_browser(
            call,
            Box::pin(async move { session.tabs().await }),
            |tabs| Reply::Tabs(Cow::Borrowed(tabs.as_slice())),
            |tabs| tabs.map_or_else(String::new, |tabs| format!("{} tabs", tabs.len())),
            |tabs| tabs.into_iter().map(tab_out).collect(),
        )
        .await
    }

    async fn snapshot(
        &mut self,
        this: Resource<OpenBrowser>,
        options: wit::SnapshotOptions,
    ) -> Answer<wit::Snapshot> {
        let session = self.session(&this)?;
        let options = snapshot_options_in(&options);
        let call = Call::BrowserSnapshot { session: handle(&this), options: Cow::Owned(options.clone()) };
        let work = Box::pin(async move {
            options.check()?;
            session.snapshot(options).await
        });
        self.in_browser(
            call,
            work,
            |snapshot| Reply::Snapshot(Cow::Borrowed(snapshot)),
            |snapshot| {
                snapshot.map_or_else(String::new, |snapshot| format!("about {} tokens", snapshot.tokens))
            },
            snapshot_out,
        )
        .await
    }

    async fn screenshot(
        &mut self,
        this: Resource<OpenBrowser>,
        options: wit::ScreenshotOptions,
    ) -> Answer<wit::Picture> {
        let session = self.session(&this)?;
        let options = screenshot_options_in(&options);
        let call = Call::BrowserScreenshot { session: handle(&this), options: Cow::Owned(options.clone()) };
        let work = Box::pin(async move {
            options.check()?;
            session.screenshot(options).await
        });
        self.in_browser(
            call,
            work,
            |picture| Reply::Picture(Cow::Borrowed(picture)),
            |picture| {
                picture.map_or_else(String::new, |picture| format!("{} x {}", picture.width, picture.height))
            },
            picture_out,
        )
        .await
    }

    async fn evaluate(
        &mut self,
        this: Resource<OpenBrowser>,
        expression: String,
        world: wit::ScriptWorld,
    ) -> Answer<String> {
        let session = self.session(&this)?;
        let world = world_in(world);
        let call = Call::BrowserEvaluate {
            session: handle(&this),
            expression: Cow::Owned(expression.clone()),
            world,
        };
        let note = noted(&expression, world);
        let work = Box::pin(async move {
            if expression.len() > EXPRESSION_BYTES_MAX {
                return Err(Failure::Invalid(format!(
                    "an expression of {} bytes: expected {EXPRESSION_BYTES_MAX} at most",
                    expression.len()
                )));
            }
            session.evaluate(expression, world).await
        });
        self.in_browser(call, work, |json| Reply::Text(Cow::Borrowed(json)), |_| note, |json| json).await
    }

    async fn storage_state(&mut self, this: Resource<OpenBrowser>) -> Answer<String> {
        let session = self.session(&this)?;
        let call = Call::BrowserStorageState { session: handle(&this) };
        let work = Box::pin(async move { session.storage_state().await });
        self.in_browser(call, work, |json| Reply::Text(Cow::Borrowed(json)), |_| String::new(), |json| json)
            .await
    }

    fn drop(&mut self, this: Resource<OpenBrowser>) -> wasmtime::Result<()> {
        self.table.delete(this)?;
        Ok(())
    }
}

/// `click, write`.
fn names(actions: &[Action]) -> String {
    actions.iter().map(|action| action.name.as_str()).collect::<Vec<_>>().join(", ")
}

/// `click button "Save"; write skipped`.
fn told(steps: &[BrowserStep]) -> String {
    let one = |step: &BrowserStep| {
        let element = step.element.as_ref().map(|element| format!(" {}", element.text)).unwrap_or_default();
        match &step.outcome {
            StepOutcome::Done | StepOutcome::Ended { .. } | StepOutcome::Asked(_) => {
                format!("{}{element}", step.name)
            }
            StepOutcome::Failed { code, .. } => format!("{}{element}: {code}", step.name),
            StepOutcome::Skipped(_) => format!("{} skipped", step.name),
        }
    };
    steps.iter().map(one).collect::<Vec<_>>().join("; ")
}

fn noted(expression: &str, world: ScriptWorld) -> String {
    match world {
        ScriptWorld::Page => short(expression),
        ScriptWorld::Isolated => format!("isolated: {}", short(expression)),
    }
}
