//! Browsers with the usual defaults; everything else is in [`crate::wit::espalier::browser`].

use crate::wit::espalier::browser::browsers::{
    self, Action, Format, Outcome, Picture, ScreenshotOptions, ScriptWorld, Snapshot, SnapshotOptions, Step,
    Tab,
};
use crate::wit::espalier::model::conversations::Tool;
use crate::{Failure, ToolCall, invalid};
use serde::de::DeserializeOwned;

/// A browser of the rollout.
#[derive(Debug)]
pub struct Browser(pub browsers::Session);

impl Browser {
    /// The browser of this name: `main`, or as the task names it.
    pub fn open(name: &str) -> Result<Browser, Failure> {
        browsers::open(name).map(Browser)
    }

    /// The tools that the experiment gives the model in this browser, for a conversation.
    pub fn tools(&self) -> Vec<Tool> {
        let tools = self.0.tools().into_iter();
        tools
            .map(|tool| Tool { name: tool.name, description: tool.description, parameters: tool.parameters })
            .collect()
    }

    /// Carries out calls of the model one after another. One step for each.
    pub fn act(&self, calls: &[ToolCall]) -> Result<Vec<Step>, Failure> {
        let action = |call: &ToolCall| Action { name: call.name.clone(), arguments: call.arguments.clone() };
        self.0.act(&calls.iter().map(action).collect::<Vec<_>>())
    }

    /// Carries out one tool with arguments of the plugin's own.
    pub fn tool(&self, name: &str, arguments: &serde_json::Value) -> Result<Step, Failure> {
        let action = Action { name: name.to_owned(), arguments: arguments.to_string() };
        let steps = self.0.act(&[action])?;
        steps.into_iter().next().ok_or_else(|| invalid(format_args!("{name}: no step came back")))
    }

    /// The tabs.
    pub fn tabs(&self) -> Result<Vec<Tab>, Failure> {
        self.0.tabs()
    }

    /// What is in the viewport as text, of about 2,000 tokens at most.
    pub fn snapshot(&self) -> Result<Snapshot, Failure> {
        let options = SnapshotOptions { tokens_max: None, changes: false, whole_page: false, extra: None };
        self.0.snapshot(&options)
    }

    /// The viewport as PNG.
    pub fn screenshot(&self) -> Result<Picture, Failure> {
        let format = Format::Png;
        let options = ScreenshotOptions { format, quality: None, scale: None, full_page: false, extra: None };
        self.0.screenshot(&options)
    }

    /// Value of an expression where the page's own scripts run. The page can forge it: a reward uses [`Browser::evaluate_isolated`], or
    /// asks the page's server.
    pub fn evaluate<T: DeserializeOwned>(&self, expression: &str) -> Result<T, Failure> {
        self.evaluate_in(expression, ScriptWorld::Page)
    }

    /// The same in a world of its own on the same document.
    pub fn evaluate_isolated<T: DeserializeOwned>(&self, expression: &str) -> Result<T, Failure> {
        self.evaluate_in(expression, ScriptWorld::Isolated)
    }

    fn evaluate_in<T: DeserializeOwned>(&self, expression: &str, world: ScriptWorld) -> Result<T, Failure> {
        let json = self.0.evaluate(expression, world)?;
        serde_json::from_str(&json)
            .map_err(|error| invalid(format_args!("the expression's value {json}: {error}")))
    }
}

impl Outcome {
    /// Whether the action was carried out.
    pub fn is_done(&self) -> bool {
        matches!(self, Outcome::Done)
    }
}
